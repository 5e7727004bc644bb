"""kill -9 of one of two processes, at any moment: the other ends too, and both resume bit for bit."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from grpo_jax.config import RewardConfig, to_dict
from grpo_jax.metrics import read_rows
from grpo_jax.program import compile_program
from tests.hosts.processes import compiled_once, pair
from tests.killing import assert_same, ended, killed, left, moments, seconds_of
from tests.runs import TINY

pytestmark = pytest.mark.slow

CONFIG = replace(
    TINY,
    steps=6,
    checkpoint_every=1,
    keep_best=1,
    gradient_share_every=0,
    reward=RewardConfig(functions="tests.runs:odd"),
    mesh="data=4,fsdp=2",
)


@pytest.fixture(scope="module")
def begin(tmp_path_factory):
    """What begins or resumes the two processes of the run in a folder; programs are compiled once for all of them."""
    root = tmp_path_factory.mktemp("programs")
    (root / "config.json").write_text(json.dumps(to_dict(CONFIG)))
    cache = compiled_once(root / "cache")

    def begin(folder, resume):
        start = ["--resume"] if resume else ["--config", str(root / "config.json")]
        return pair(["-m", "grpo_jax", "train", "--out", str(folder), *start, "--hosts.heartbeat", "10"], **cache)

    return begin


def test_one_of_two_processes_is_killed_at_twenty_moments_and_all_resume_bit_for_bit(begin, tmp_path):
    """The process that writes and the one that does not take turns."""
    shapes = compile_program(CONFIG).shapes
    seconds_of(begin, tmp_path / "compiled")
    seconds = seconds_of(begin, tmp_path / "whole")
    each = float(np.median([row["seconds"] for row in read_rows(tmp_path / "whole" / "metrics.jsonl")[2:]]))
    expected = left(tmp_path / "whole", shapes)
    assert expected.steps[-1] == 6
    assert all(row["gradient_norm"] > 0 for row in expected.rows[1:])
    stages = []
    for number, moment in enumerate(moments(20, len(expected.rows), seconds / 3, each, seed=0)):
        folder = tmp_path / f"run{number}"
        while not killed(begin, folder, moment, victim=number % 2):  # it had ended
            shutil.rmtree(folder)
            moment = moment._replace(seconds=moment.seconds / 2)
        stages.append(len(read_rows(folder / "metrics.jsonl")))
        for said in ended(begin(folder, True)):
            assert "is damaged" not in said
        assert_same(left(folder, shapes), expected)
        shutil.rmtree(folder)
    print(f"rows written when killed: {sorted(stages)}")
    assert len(set(stages)) >= 5, "all kills came at the same stage"
