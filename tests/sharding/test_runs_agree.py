"""Whole runs on meshes: the same completions, and the same metrics but for rounding, whatever the devices."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from grpo_jax import train
from grpo_jax.experience import Collector
from tests.runs import TINY, compiled, odd, rows_of, with_reward

KEY = jax.random.key(3)
LONG = replace(TINY, steps=20, checkpoint_every=20, evaluation=replace(TINY.evaluation, every=10))


def one_step(mesh, devices):
    """Experience of three prompts, and the parameters and metrics after an update on it."""
    config = replace(TINY, mesh=mesh, rollout=replace(TINY.rollout, prompts=3))
    program = compiled(config, devices=devices)
    params = program.initial(key=KEY)
    found = Collector(program.parts, program.generate, 3, program.rows, 4, 0).collect(params, 0, key=KEY)
    state, metrics = program.update(program.state(params, key=KEY), *program.place((found.rollout, found.batch)))
    return found, jax.device_get((state.params, metrics))


def test_three_prompts_on_two_data_shards_are_what_they_are_on_one_device():
    (alone, expected), (split, result) = one_step("", 1), one_step("data=2", 2)
    assert (alone.rollout.tokens.shape[0], split.rollout.tokens.shape[0]) == (3, 4)
    assert split.completions == alone.completions
    np.testing.assert_array_equal(split.rollout.tokens[:3], alone.rollout.tokens)
    np.testing.assert_array_equal(split.batch.rewards[:3], alone.batch.rewards)
    assert not split.batch.valid[3].any()
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6), result, expected)


def run(monkeypatch, folder, mesh, devices):
    """The rows of a run, and all completions that it was rewarded for."""
    seen = []

    def reward(prompts, completions, **columns):
        seen.append((list(prompts), list(completions)))
        return odd(prompts, completions)

    with monkeypatch.context() as patch:
        patch.setattr(train, "save_curves", lambda *_: None)
        patch.setattr(
            train, "compile_program", lambda config, _: with_reward(compiled(config, devices=devices), reward)
        )
        train.train(replace(LONG, mesh=mesh), folder)
    return rows_of(folder), seen


@pytest.fixture(scope="module")
def on_one_device(tmp_path_factory):
    return run(pytest.MonkeyPatch(), tmp_path_factory.mktemp("one") / "run", "", 1)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["data=8", "fsdp=8", "data=2,fsdp=2,tensor=2", "tensor=8"])
def test_twenty_steps_on_a_mesh_are_those_on_one_device(mesh, on_one_device, tmp_path, monkeypatch):
    rows, seen = run(monkeypatch, tmp_path / "run", mesh, 8)
    expected, expected_seen = on_one_device
    assert seen == expected_seen
    for row, wanted in zip(rows, expected, strict=True):
        assert row.keys() == wanted.keys()
        for name, value in wanted.items():
            assert row[name] == pytest.approx(value, rel=1e-4, abs=1e-5), (row["step"], name)
