"""What is trained when the sampling policy is some updates behind: KL terms and their corrections."""

import functools

import grpo_jax as gj
from experiments.small_scale.campaign import Case
from grpo_jax.losses import Objective

LAGS = (0, 1, 2, 5, 10)
"""Updates."""
BETA = 0.1
"""Per nat of a completion."""


TO_GO = gj.kl.penalty(gj.kl.k1)
WHOLE = gj.surrogates.sequence_importance_weighted()
CONFIGURATIONS = {
    "k1 to go, no ratio": (gj.surrogates.reinforce(), TO_GO),
    "k1 to go, token ratio": (gj.surrogates.importance_weighted(), TO_GO),
    "k1 to go, sequence ratio": (WHOLE, TO_GO),
    "k3 loss, no ratio": (WHOLE, gj.kl.penalty(gj.kl.k3, "loss")),
}
"""Surrogate and KL term; with k3 the reward's part is exact and the KL term is not."""


@functools.lru_cache
def objective_of(name: str) -> Objective:
    """Returns the objective: leave-one-out advantage, sums over tokens."""
    surrogate, term = CONFIGURATIONS[name]
    reduction = gj.reductions.sequence_mean_of_token_sum()
    return gj.objective(gj.advantages.leave_one_out(), surrogate, reduction, kl=term)


def cases() -> list[Case]:
    """Returns every configuration at every lag."""
    return [
        Case({"configuration": name, "lag": lag}, objective_of(name), BETA, lag)
        for name in CONFIGURATIONS
        for lag in LAGS
    ]
