"""A run of two processes with four devices each is the run of one process with eight."""

import dataclasses
import json
import re
import signal
import time

import jax
import numpy as np
import pytest

from grpo_jax import checkpoints
from grpo_jax.config import RewardConfig, RolloutConfig, UpdateConfig, to_dict
from grpo_jax.metrics import read_rows
from grpo_jax.program import compile_program
from tests.hosts.processes import begun, compiled_once, ended, free_port, pair
from tests.runs import TINY, rows_of

pytestmark = pytest.mark.slow

CONFIG = dataclasses.replace(
    TINY,
    rollout=RolloutConfig(prompts=6, group_size=4, max_tokens=3, resample_rounds=1),
    update=UpdateConfig(learning_rate=0.01, packing_widths=2, micro_batches=1),
    reward=RewardConfig(functions="tests.hosts.recorded:odd"),
    evaluation=dataclasses.replace(TINY.evaluation, examples=12, every=5),
    steps=20,
    mesh="data=4,fsdp=2",
    checkpoint_every=10,
)
"""Six prompts on eight shards: the last host has fewer; some groups are sampled anew, some on the other host."""


def words(folder, *more):
    config = folder.with_suffix(".json")
    config.write_text(json.dumps(to_dict(CONFIG)))
    return ["-m", "grpo_jax", "train", "--config", str(config), "--out", str(folder), *more]


def records(folder, hosts):
    """What the reward was asked in each of its calls, the processes' parts in their order."""
    texts = [(folder / f"{host}.jsonl").read_text() for host in range(hosts)]
    parts = [[json.loads(line) for line in text.splitlines()] for text in texts]
    return [[sum(each, []) for each in zip(*calls, strict=True)] for calls in zip(*parts, strict=True)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Environment under which programs are compiled once for all runs of as many processes."""
    return compiled_once(tmp_path_factory.mktemp("cache"))


def both(folder, cache, *more, **environment):
    """The two processes of the run in a folder, begun or, where it has one already, resumed."""
    records = folder.with_suffix(".records")
    records.mkdir(exist_ok=True)
    options = ["--resume", *more] if (folder / "config.json").exists() else more
    return pair(words(folder, *options), RECORD=str(records), **cache, **environment)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, cache):
    """Folders of the run of one process and of that of two, and what the latter printed."""
    folder = tmp_path_factory.mktemp("hosts")
    (folder / "one.records").mkdir()
    alone = begun(words(folder / "one"), devices=8, RECORD=str(folder / "one.records"))
    ((status, _, error),) = ended([alone], 900)
    assert status == 0, error
    results = ended(both(folder / "two", cache, "--profile-steps", "3:4"), 900)
    assert [status for status, _, _ in results] == [0, 0], results
    return folder, results


def test_the_reward_is_asked_the_same_in_the_same_order(runs):
    folder, _ = runs
    assert records(folder / "two.records", 2) == records(folder / "one.records", 1)


def test_every_row_is_the_same_but_for_rounding(runs):
    folder, _ = runs
    rows, expected = rows_of(folder / "two"), rows_of(folder / "one")
    assert len(rows) == 21
    for row, wanted in zip(rows, expected, strict=True):
        assert row.keys() == wanted.keys()
        for name, value in wanted.items():
            assert row[name] == pytest.approx(value, rel=1e-4, abs=1e-6), (row["step"], name)
    assert max(row["rounds"] for row in rows[1:]) == 2


GLOO = re.compile(r"\[Gloo\]|Rank|is connected to|peer ranks\.|Expected number of connected peer ranks is|[\d\s:]")
"""What gloo says of its connections, in pieces: its threads print at the same time."""


def test_one_process_writes_and_prints_and_all_leave_signs_of_life_and_traces(runs):
    folder, ((_, first, _), (_, second, _)) = runs
    assert "In 20 steps and" in first
    assert GLOO.sub("", second) == ""
    assert [row["slowest_host"] in (0, 1) for row in read_rows(folder / "two" / "metrics.jsonl")[1:]] == [True] * 20
    signs = {path.name: json.loads(path.read_text()) for path in (folder / "two" / "heartbeats").iterdir()}
    assert {name: sign["step"] for name, sign in signs.items()} == {"0.json": 20, "1.json": 20}
    assert len({sign["process"] for sign in signs.values()}) == 2
    assert list((folder / "two" / "profile").rglob("*.xplane.pb"))
    assert (folder / "two" / "curves.png").exists()


def wait_for_rows(folder, count, processes):
    while len(read_rows(folder / "metrics.jsonl")) < count and all(each.poll() is None for each in processes):
        time.sleep(0.05)


def assert_as_undisturbed(folder, runs):
    """The folder holds what the run of two processes left that nobody disturbed, bit for bit."""
    whole = runs[0] / "two"
    assert rows_of(folder) == rows_of(whole)
    shapes = compile_program(CONFIG).shapes
    found, expected = (checkpoints.restore(each / "checkpoints", shapes, 20) for each in (folder, whole))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.array_equal(*(jax.random.key_data(x) if x.dtype == found.key.dtype else x for x in (one, other)))


def test_a_signal_to_one_process_lets_all_save_the_same_step_and_end(runs, cache, tmp_path):
    processes = both(tmp_path / "run", cache)
    wait_for_rows(tmp_path / "run", 4, processes)
    processes[1].send_signal(signal.SIGTERM)
    results = ended(processes)
    assert [status for status, _, _ in results] == [143, 143], results
    step = read_rows(tmp_path / "run" / "metrics.jsonl")[-1]["step"]
    assert step < 20
    assert checkpoints.latest(tmp_path / "run" / "checkpoints") == step
    assert all(f"SIGTERM: step {step} is saved" in error for _, _, error in results)
    assert [status for status, _, _ in ended(both(tmp_path / "run", cache), 900)] == [0, 0]
    assert_as_undisturbed(tmp_path / "run", runs)


def test_where_one_process_is_killed_the_others_end_and_all_resume_bit_for_bit(runs, cache, tmp_path):
    processes = both(tmp_path / "run", cache, "--hosts.heartbeat", "10")
    wait_for_rows(tmp_path / "run", 13, processes)
    processes[1].kill()
    results = ended(processes, 120)
    assert results[1][0] == -signal.SIGKILL
    assert results[0][0] not in (0, -signal.SIGKILL), results  # it noticed by itself
    assert [status for status, _, _ in ended(both(tmp_path / "run", cache), 900)] == [0, 0]
    assert_as_undisturbed(tmp_path / "run", runs)


def test_where_one_judge_fails_all_stop_with_one_message(cache, tmp_path):
    results = ended(both(tmp_path / "run", cache, FAIL_AT="1:1"), 300)
    assert [status for status, _, _ in results] == [1, 1], results
    for _, _, error in results:
        last = [line for line in error.splitlines() if line.startswith("grpo-jax: ")]
        assert len(last) == 1
        assert last[0].startswith("grpo-jax: host 1 of 2 failed: RuntimeError: ")
        assert "the judge is out" in last[0]


def test_other_options_in_one_process_are_named_by_all(tmp_path):
    named = ["--hosts.coordinator", f"127.0.0.1:{free_port()}", "--hosts.count", "2", "--hosts.index"]
    processes = [begun([*words(tmp_path / "run", "--seed", str(index)), *named, str(index)]) for index in range(2)]
    for status, _, error in ended(processes, 300):
        assert status == 1
        assert "host 1 of 2 failed: ValueError: another configuration than that of host 0: seed: 0 there" in error


def test_a_run_goes_on_with_another_number_of_processes(runs):
    folder, _ = runs
    (folder / "more").mkdir()
    resumed = ["-m", "grpo_jax", "train", "--out", str(folder / "two"), "--resume", "--steps", "22"]
    ((status, output, error),) = ended([begun(resumed, devices=8, RECORD=str(folder / "more"))], 600)
    assert status == 0, error
    assert "at step 20" in output
    assert [row["step"] for row in rows_of(folder / "two")] == list(range(23))


def test_a_lagging_run_sampled_in_another_layout_and_resumed_is_that_of_one_process(cache, tmp_path):
    lagging = ["--rollout.lag", "2", "--rollout.layout", "data=4,tensor=2", "--steps"]
    (tmp_path / "one.records").mkdir()
    alone = begun(words(tmp_path / "one", *lagging, "6"), devices=8, RECORD=str(tmp_path / "one.records"))
    ((status, _, error),) = ended([alone], 900)
    assert status == 0, error
    for steps in ("3", "6"):
        results = ended(both(tmp_path / "two", cache, *lagging, steps), 900)
        assert [status for status, _, _ in results] == [0, 0], results
    rows, expected = rows_of(tmp_path / "two"), rows_of(tmp_path / "one")
    assert [row["lag_mean"] for row in rows[1:]] == [0, 1, 2, 2, 2, 2]
    for row, wanted in zip(rows, expected, strict=True):
        for name in wanted.keys() - {"queued"}:
            assert row[name] == pytest.approx(wanted[name], rel=1e-4, abs=1e-6), (row["step"], name)
