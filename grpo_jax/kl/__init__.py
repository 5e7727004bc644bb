"""KL estimators, their placement, their importance corrections, and the controllers of beta."""

from grpo_jax.kl import controllers, importance
from grpo_jax.kl.estimators import Estimator, absolute, clamped, k1, k2, k3, mixture, straight_through
from grpo_jax.kl.full_vocabulary import causal_weights, full_vocabulary, no_weights, prefix_weights
from grpo_jax.kl.penalty import Penalty, Tokens, penalty
from grpo_jax.kl.targets import Target

__all__ = [
    "Estimator",
    "Penalty",
    "Target",
    "Tokens",
    "absolute",
    "causal_weights",
    "clamped",
    "controllers",
    "full_vocabulary",
    "importance",
    "k1",
    "k2",
    "k3",
    "mixture",
    "no_weights",
    "penalty",
    "prefix_weights",
    "straight_through",
]
