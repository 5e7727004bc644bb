"""The faults to provoke: what is done to a small run, which finding shall recognise it, and its healthy twin."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from grpo_jax.config import (
    BetaConfig,
    Config,
    EvaluationConfig,
    ModelConfig,
    RewardConfig,
    RolloutConfig,
    TaskConfig,
    UpdateConfig,
    WarmStartConfig,
)
from grpo_jax.program import Program
from grpo_jax.types import Params

BASE = Config(
    task=TaskConfig(operators="+", digits=(1, 1)),
    model=ModelConfig(layers=1, width=32, heads=2, kv_heads=1, head_dim=16, hidden=64),
    rollout=RolloutConfig(prompts=16, group_size=8),
    update=UpdateConfig(learning_rate=1e-3),
    warm_start=WarmStartConfig(steps=300, batch=64, learning_rate=1e-2, slips=0.3),
    evaluation=EvaluationConfig(examples=32, every=0),
    steps=60,
    checkpoint_every=1000,
    gradient_share_every=0,
)
"""A decoder of some ten thousand parameters on sums of single digits: seconds, and healthy."""
LEAVING: dict[str, Any] = {
    "reward": RewardConfig(functions="experiments.diagnosis.rewards:nines"),
    "rollout": replace(BASE.rollout, max_tokens=8),
    "warm_start": replace(BASE.warm_start, steps=0),
}
"""A policy that knows nothing, and a reward that pays for leaving it."""


@dataclass(frozen=True)
class Fault:
    """A fault, how it is made, and the same run without it.

    Attributes:
        title: in words.
        name: of the finding that shall recognise it.
        measure: that the fault shows in.
        change: sections of the configuration, or fields at its top, that are replaced in both runs.
        wrong: those that make the fault.
        right: those that the healthy twin has in their place.
        program: what is done to the compiled program to make the fault.
        of_the_six: whether it stands in the article's table, or is one more that the rules know.
    """

    title: str
    name: str
    measure: str
    change: dict[str, Any] = field(default_factory=dict)
    wrong: dict[str, Any] = field(default_factory=dict)
    right: dict[str, Any] = field(default_factory=dict)
    program: Callable[[Program], Program] = lambda program: program
    of_the_six: bool = True

    def config(self, seed: int, twin: bool = False) -> Config:
        """Returns the configuration of the run, or of its twin."""
        return replace(BASE, seed=seed, **{**self.change, **(self.right if twin else self.wrong)})


def stale_sampler(program: Program) -> Program:
    """Returns a program that samples from the parameters of the first update for ever."""
    first: list[Params] = []

    def generate(params, prompts, *, key):
        if not first:
            first.append(jax.tree.map(jnp.copy, params))  # the update donates the others
        return program.generate(first[0], prompts, key=key)

    return program._replace(generate=generate)


def _update(**changes: Any) -> dict[str, Any]:
    return {"update": replace(BASE.update, **changes)}


def _beta(value: float, **changes: Any) -> dict[str, Any]:
    return {"beta": BetaConfig(value=value, **changes)}


FAULTS = (
    Fault(
        "KL large at the start",
        "kl_large_at_start",
        "kl_mean",
        wrong=_update(learning_rate=0.3, warmup_steps=0),
        right=_update(learning_rate=3e-3, warmup_steps=20),
    ),
    Fault(
        "KL rises without end",
        "kl_rises",
        "kl_mean",
        {**LEAVING, "rollout": replace(BASE.rollout, max_tokens=16), **_update(learning_rate=3e-4)},
        wrong=_beta(1e-6),
        right=_beta(1.0),
    ),
    Fault("KL at zero, reward flat", "kl_stuck_at_zero", "kl_mean", wrong=_update(learning_rate=1e-7)),
    Fault(
        "KL variance jumps",
        "kl_jumps",
        "kl_std",
        {**LEAVING, "steps": 80, **_update(learning_rate=2e-3)},
        wrong=_beta(1e-6, schedule="tight_then_loose", schedule_start=4.0, schedule_steps=50),
        right=_beta(2.0, schedule="tight_then_loose", schedule_start=4.0, schedule_steps=50),
    ),
    Fault(
        "single completions explode",
        "kl_single_samples",
        "kl_max",
        _update(learning_rate=3e-3),
        program=stale_sampler,
    ),
    Fault(
        "ratio above 2",
        "ratio_large",
        "ratio_max",
        wrong=_update(learning_rate=1e-2, updates_per_rollout=8),
        right=_update(updates_per_rollout=2),
    ),
    Fault(
        "reward drops at the start",
        "reward_drops_at_start",
        "reward_mean",
        wrong=_update(learning_rate=2e-2),
        right=_update(learning_rate=2e-3),
        of_the_six=False,
    ),
    Fault(
        "too conservative",
        "kl_falls",
        "kl_mean",
        {**LEAVING, "steps": 100, **_update(learning_rate=2e-3)},
        wrong=_beta(1e-2, adaptive="clipped_proportional", target=0.05, horizon=200.0, statistic="nats_per_sequence"),
        right=_beta(1.0),
        of_the_six=False,
    ),
)
"""What is provoked; where nothing is given for the twin, it has the values of ``BASE``."""
