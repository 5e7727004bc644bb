"""The grid: an entropy bonus beside a KL term."""

import functools

import grpo_jax as gj
from experiments.small_scale.campaign import Case
from grpo_jax.losses import Objective

BONUSES = (0.0, 0.03, 0.1, 0.3)
"""Weights of the entropy, in units of the reward per nat."""
BETAS = (0.0, 0.1, 0.3)
"""Weights of the KL, in units of the reward per nat of a completion."""


@functools.cache
def objective_of(bonus: float) -> Objective:
    """Returns on-policy RLOO with k1 to go and an entropy bonus; sums over tokens, no clipping."""
    return gj.objective(
        gj.advantages.leave_one_out(),
        gj.surrogates.reinforce(),
        gj.reductions.sequence_mean_of_token_sum(),
        kl=gj.kl.penalty(gj.kl.k1),
        entropy_coefficient=bonus,
    )


def cases() -> list[Case]:
    """Returns every bonus with every beta."""
    return [Case({"bonus": bonus, "beta": beta}, objective_of(bonus), beta) for bonus in BONUSES for beta in BETAS]
