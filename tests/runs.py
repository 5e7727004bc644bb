"""Runs small enough for tests: a decoder of a few hundred parameters on one device, compiled once per configuration."""

import functools
from dataclasses import replace

import jax
import numpy as np

import grpo_jax.program
from grpo_jax import checkpoints
from grpo_jax.config import (
    Config,
    EvaluationConfig,
    ModelConfig,
    RolloutConfig,
    TaskConfig,
    UpdateConfig,
    WarmStartConfig,
)
from grpo_jax.metrics import is_timing, read_rows

TINY = Config(
    task=TaskConfig(digits=(1, 1)),
    model=ModelConfig(layers=1, width=16, heads=2, kv_heads=1, head_dim=8, hidden=16),
    rollout=RolloutConfig(prompts=8, group_size=4, max_tokens=3),
    update=UpdateConfig(learning_rate=0.01, max_rejected=2),
    warm_start=WarmStartConfig(steps=0),
    evaluation=EvaluationConfig(examples=8, every=2),
    steps=4,
    checkpoint_every=2,
    gradient_share_every=2,
)
_compile = grpo_jax.program.compile_program


def odd(prompts, completions, **columns):
    """A reward that a policy knowing nothing gets half of the time: whether the sum of the characters is odd."""
    return [float(sum(map(ord, completion)) % 2) for completion in completions]


def compiled(config, objective=None, devices=1):
    """The program of a run on some devices, with the reward ``odd``; equal runs but for their length share one."""
    update = replace(config.update, max_rejected=2, packing_widths=None)
    evaluation = replace(config.evaluation, every=0)
    rollout = replace(config.rollout, resample_rounds=0, lag=min(config.rollout.lag, 1))
    same = replace(TINY, **{name: getattr(config, name) for name in ("task", "model", "reward")}, rollout=rollout)
    same = replace(same, objective=config.objective, beta=config.beta, reference=config.reference, update=update)
    same = replace(same, evaluation=evaluation, mesh=config.mesh, check_invariants=config.check_invariants)
    same = replace(same, certify_every=min(config.certify_every, 1))
    return with_reward(_compiled(same, objective, devices), odd)


@functools.cache
def _compiled(config, objective, devices):
    return _compile(config, objective, devices=jax.devices()[:devices])


def with_reward(program, reward):
    """The same program with another reward for the task."""
    parts = program.parts
    task = parts.task._replace(reward=reward)
    return program._replace(parts=parts._replace(task=task, rewards=(reward, *parts.rewards[1:])))


def rows_of(folder):
    """The rows of a run without what depends on the clock."""
    rows = read_rows(folder / "metrics.jsonl")
    return [{name: value for name, value in row.items() if not is_timing(name)} for row in rows]


def final_state(folder, config=TINY, step=None, **kwargs):
    """The newest checkpoint of a run, or that of a step, on the host."""
    state = checkpoints.restore(folder / "checkpoints", compiled(config, **kwargs).shapes, step)
    return jax.device_get(state._replace(key=jax.random.key_data(state.key)))


def assert_same(one, other):
    """The same trees bit for bit."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)
