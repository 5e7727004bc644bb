"""The trainings of the small decoder: one case a rule, all rules of one statistic in one compiled function."""

import functools

import jax.numpy as jnp

import grpo_jax as gj
from experiments.beta_control.rules import PER_TOKEN, RIGHT, WRONG, one_of
from experiments.small_scale.campaign import Case
from experiments.small_scale.setting import Setting
from grpo_jax.losses import Objective

SETTING = Setting(updates=200, every=5, prompts=16)
EXACT_ALONE = ("clipped, tight start", "integral, tight start")
"""Rules that are not trained with, to save time."""


@functools.cache
def objective() -> Objective:
    """Returns on-policy RLOO with k1 to go; sums over tokens, no clipping."""
    reduction = gj.reductions.sequence_mean_of_token_sum()
    return gj.objective(gj.advantages.leave_one_out(), gj.surrogates.reinforce(), reduction, kl=gj.kl.penalty(gj.kl.k1))


def cases() -> list[Case]:
    """Returns every rule."""
    found = []
    for rules in (RIGHT | WRONG, PER_TOKEN):
        shared = one_of(tuple(rules.values()))
        for number, (name, rule) in enumerate(rules.items()):
            if name not in EXACT_ALONE:
                first = float(rule.beta(rule.init()))
                state = shared.init()._replace(number=jnp.int32(number))
                found.append(Case({"rule": name}, objective(), first, controller=shared, state=state))
    return found
