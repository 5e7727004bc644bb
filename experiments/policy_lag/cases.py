"""What is trained when the sampling policy is some updates behind: KL terms and their corrections."""

import functools

import grpo_jax as gj
from experiments.small_scale.campaign import Case
from grpo_jax.kl import Penalty, importance
from grpo_jax.kl.importance import Importance
from grpo_jax.losses import Objective

LAGS = (0, 1, 2, 5, 10)
"""Updates."""
BETA = 0.1
"""Per nat of a completion."""


def in_loss(correction: Importance) -> Penalty:
    """Returns k3 in the loss with a correction."""
    return gj.kl.penalty(gj.kl.k3, "loss", importance=correction)


TO_GO = gj.kl.penalty(gj.kl.k1)
WHOLE = gj.surrogates.sequence_importance_weighted()
CONFIGURATIONS = {
    "k1 to go, no ratio": (gj.surrogates.reinforce(), TO_GO),
    "k1 to go, token ratio": (gj.surrogates.importance_weighted(), TO_GO),
    "k1 to go, sequence ratio": (WHOLE, TO_GO),
    "k3 loss, no ratio": (WHOLE, in_loss(importance.none())),
    "k3 loss, token ratio": (WHOLE, in_loss(importance.token())),
    "k3 loss, prefix ratio": (WHOLE, in_loss(importance.prefix())),
    "k3 loss, causal ratio": (WHOLE, in_loss(importance.causal())),
}
"""Surrogate and KL term; with k3 the reward's part is always exact."""


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
