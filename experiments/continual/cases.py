"""A second task after a first one: what keeps the first."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp

import grpo_jax as gj
from experiments.small_scale import sums
from experiments.small_scale.campaign import Case
from experiments.small_scale.evaluation import world
from experiments.small_scale.loop import Training
from experiments.small_scale.records import kept, start
from experiments.small_scale.setting import Setting, over_seeds
from grpo_jax.losses import Objective
from grpo_jax.types import Params

FIRST, SECOND = "sums", "operators"
"""What is learnt before, A, and what is learnt now, B: kinds of `experiments.small_scale.sums`."""
BETAS = (0.1, 0.3, 1.0)
"""Per nat of a completion, with k1 to go."""
BIASED = 1.0
"""Beta of k1 in the loss, whose expected gradient is 0."""
SILENT = 1.0
"""Beta where prompts of A have no reward and the KL term alone acts on them."""
SHARES = (0.1, 0.3)
"""Shares of prompts of A among those of B, and what of them counts."""
LABELS = ("k1", "beta", "replay", "share")
NONE = ("none", 0.0, "none", 0.0)
NAMES = [
    NONE,
    *(("to go", beta, "none", 0.0) for beta in BETAS),
    *(("none", 0.0, "rewarded", share) for share in SHARES),
    ("to go", SILENT, "KL alone", SHARES[1]),
    ("loss", BIASED, "none", 0.0),
]
"""Of all cases: where k1 stands, beta, what prompts of A are there for, and their share."""
PROBLEMS = 8000
SETTING = Setting()


@functools.cache
def objective_of(placement: str) -> Objective:
    """Returns on-policy RLOO with k1 there; sums over tokens, no clipping. beta 0 is training without a KL term."""
    term = gj.kl.penalty(gj.kl.k1, "loss", allow_biased=True) if placement == "loss" else gj.kl.penalty(gj.kl.k1)
    reduction = gj.reductions.sequence_mean_of_token_sum()
    return gj.objective(gj.advantages.leave_one_out(), gj.surrogates.reinforce(), reduction, kl=term)


@functools.lru_cache
def asked(setting: Setting, share: float, rewarded: bool) -> sums.Problems:
    """Returns the problems to train on: of B, none of which is evaluated, and a share of A.

    Args:
        setting: see there.
        share: of A, in [0, 1).
        rewarded: whether those of A have a reward; otherwise it is 0, and only a KL term acts on them.
    """
    first, held_out = sums.problems(FIRST, False), world(setting).held_out[SECOND]
    second = sums.without(sums.problems(SECOND, False), held_out)
    again = first if rewarded else sums.unrewarded(first)
    return sums.blended(((second, 1 - share), (again, share)), PROBLEMS)


def learnt_first(setting: Setting, seeds: int, cache: Path | None) -> Params:
    """Returns every seed's policy that has learnt A without a KL term: start and reference of all cases ``[S]``."""

    def make() -> Params:
        run = over_seeds(Training(objective_of("to go"), setting, 0).run, setting)
        keys = jnp.stack([jax.random.fold_in(jax.random.key(1), seed) for seed in range(seeds)])
        shared = (jnp.float32(0), jnp.int32(0), world(setting).trained)
        return jax.tree.map(lambda leaf: leaf[:, -1], run(start(setting, seeds, cache), keys, shared)[0])

    if cache is None:
        return make()
    name = "-".join(f"{each:g}" for each in setting)
    return kept(cache / f"sums-learnt-{name}-{seeds}.npz", setting, make)


def cases(setting: Setting = SETTING) -> list[Case]:
    """Returns every case; those of one placement stand together, to be compiled once."""
    return [
        Case(
            dict(zip(LABELS, name, strict=True)),
            objective_of("loss" if name[0] == "loss" else "to go"),
            name[1],
            trained=asked(setting, name[3], name[2] != "KL alone"),
        )
        for name in NAMES
    ]
