"""kill -9 at any moment costs nothing but the time since the last checkpoint."""

import json
import shutil
import signal
import time
from dataclasses import replace

import jax
import numpy as np
import pytest

from grpo_jax.config import RewardConfig, WarmStartConfig, to_dict
from grpo_jax.metrics import read_rows
from grpo_jax.program import compile_program
from tests.hosts.processes import begun, compiled_once
from tests.killing import assert_same, ended, killed, left, moments, seconds_of
from tests.runs import TINY

CONFIG = replace(
    TINY,
    steps=8,
    checkpoint_every=1,
    keep_best=1,
    gradient_share_every=0,
    reward=RewardConfig(functions="tests.runs:odd"),
    warm_start=WarmStartConfig(steps=2, batch=4, check_every=1, target=1.0),
)


@pytest.fixture(scope="module")
def begin(tmp_path_factory):
    """What begins or resumes the run in a folder; programs are compiled once for all of them."""
    root = tmp_path_factory.mktemp("programs")
    (root / "config.json").write_text(json.dumps(to_dict(CONFIG)))
    cache = compiled_once(root / "cache")

    def begin(folder, resume):
        start = ["--resume"] if resume else ["--config", str(root / "config.json")]
        return [begun(["-m", "grpo_jax", "train", "--out", str(folder), *start], 1, **cache)]

    return begin


@pytest.fixture(scope="module")
def whole(begin, tmp_path_factory):
    """What a run leaves that nobody disturbed; the seconds to its first row and for another one, with all compiled."""
    root, shapes = tmp_path_factory.mktemp("whole"), compile_program(CONFIG, devices=jax.devices()[:1]).shapes
    seconds_of(begin, root / "first")
    seconds = seconds_of(begin, root / "second")
    each = float(np.median([row["seconds"] for row in read_rows(root / "second" / "metrics.jsonl")[2:]]))
    expected = left(root / "first", shapes)
    assert expected.steps[-3:] == [6, 7, 8]
    assert all(row["gradient_norm"] > 0 for row in read_rows(root / "first" / "metrics.jsonl")[1:])
    assert_same(left(root / "second", shapes), expected)
    return expected, seconds / 3, each, shapes


@pytest.mark.slow
def test_a_program_that_is_preempted_saves_and_ends_with_status_143(begin, whole, tmp_path):
    expected, _, _, shapes = whole
    (process,) = begin(tmp_path / "run", False)
    while len(read_rows(tmp_path / "run" / "metrics.jsonl")) < 4:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 143
    step = len(read_rows(tmp_path / "run" / "metrics.jsonl")) - 1
    assert 3 <= step < 8
    assert f"grpo-jax: SIGTERM: step {step} is saved" in said
    assert left(tmp_path / "run", shapes).steps[-1] == step
    ended(begin(tmp_path / "run", True))
    assert_same(left(tmp_path / "run", shapes), expected)


@pytest.mark.slow
def test_a_run_killed_at_any_of_twenty_moments_ends_as_the_one_that_was_not(begin, whole, tmp_path):
    """Every fifth is killed a second time after it was resumed."""
    expected, first, each, shapes = whole
    stages = []
    for number, moment in enumerate(moments(20, len(expected.rows), first, each, seed=0)):
        folder = tmp_path / f"run{number}"
        while not killed(begin, folder, moment):  # it had ended
            shutil.rmtree(folder)
            moment = moment._replace(seconds=moment.seconds / 2)
        again = number % 5 == 0 and killed(begin, folder, moment._replace(rows=moment.rows + 1), resume=True)
        stages.append((len(read_rows(folder / "metrics.jsonl")), again))
        (said,) = ended(begin(folder, True))
        assert "is damaged" not in said
        assert_same(left(folder, shapes), expected)
        shutil.rmtree(folder)
    print(f"rows written when killed, and whether killed twice: {sorted(stages)}")
    assert len({rows for rows, _ in stages}) >= 6, "all kills came at the same stage"
