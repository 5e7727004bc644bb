"""A run of two processes with four devices each is the run of one process with eight."""

import dataclasses
import json

import pytest

from grpo_jax.config import RewardConfig, RolloutConfig, UpdateConfig, to_dict
from tests.hosts.processes import begun, ended, pair
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
    return {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("cache")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


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
