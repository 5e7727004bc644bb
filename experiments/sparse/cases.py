"""A reward at the end of a long answer, without a KL term and with one: to where training starts, or to a teacher."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp

import grpo_jax as gj
from experiments.small_scale.campaign import Case
from experiments.small_scale.imitation import warm_started
from experiments.small_scale.loop import FROZEN
from experiments.small_scale.records import kept
from experiments.small_scale.setting import Setting
from experiments.sparse.strings import KIND, problems
from grpo_jax.losses import Objective
from grpo_jax.types import Params
from grpo_jax.updates import Reference

SETTING = Setting(layers=1, imitated=600, demonstrations=96, slips=1.0, prompts=32, updates=120)
START, TEACHER = 0.4, 0.1
"""Probability that a demonstration has a digit replaced: of what training starts from, and of its teacher's."""
OWN, BETTER = "start", "teacher"
_TRIED = ((OWN, "to go"), (OWN, "reward"), (BETTER, "to go"))
BETAS = (0.01, 0.1)
"""Per nat of a completion."""
NONE = ("none", "to go", 0.0)
NAMES = [NONE, *((to, placement, beta) for to, placement in _TRIED for beta in BETAS)]
"""Of all cases: what the KL is measured to, where k1 stands, and beta."""


@functools.cache
def objective_of(placement: str) -> Objective:
    """Returns on-policy RLOO with k1 in the reward, whole or to go; sums over tokens, no clipping."""
    reduction = gj.reductions.sequence_mean_of_token_sum()
    term = gj.kl.penalty(gj.kl.k1, "reward" if placement == "reward" else "to_go")
    return gj.objective(gj.advantages.leave_one_out(), gj.surrogates.reinforce(), reduction, kl=term)


def imitated(setting: Setting, seeds: int, cache: Path | None, replaced: float = START) -> Params:
    """Returns policies that imitate demonstrations with so many digits replaced ``[S]``."""

    def make() -> Params:
        return warm_started(setting, seeds, {KIND: problems(20_000, replaced, 0)}, {KIND: 1.0})

    if cache is None:
        return make()
    name = "-".join(f"{each:g}" for each in (*setting[:7], replaced, seeds))
    return kept(cache / f"strings-{name}.npz", setting, make)


def teacher(setting: Setting, cache: Path | None) -> Reference:
    """Returns the reference that imitates better demonstrations, one for all seeds."""
    params = jax.tree.map(lambda leaf: leaf[0], imitated(setting, 1, cache, TEACHER))
    return FROZEN._replace(init=lambda _: jax.tree.map(jnp.copy, params), description="a better policy")


def cases(better: Reference) -> list[Case]:
    """Returns every case; those of one compilation stand together."""
    return [
        Case(
            {"KL to": to, "k1": placement, "beta": beta},
            objective_of(placement),
            beta,
            reference=better if to == BETTER else FROZEN,
        )
        for to, placement, beta in NAMES
    ]
