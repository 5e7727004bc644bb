"""From scores and rewards to a loss: surrogates, reductions, degenerate groups, and the objective of them all."""

from grpo_jax.losses import degenerate, mismatch, reductions, surrogates
from grpo_jax.losses.degenerate import Degenerate, Group
from grpo_jax.losses.invariants import assert_degenerate_gradients_are_zero, log_prob_gradient
from grpo_jax.losses.mismatch import Mismatch
from grpo_jax.losses.objective import Objective, objective
from grpo_jax.losses.reductions import Reduction
from grpo_jax.losses.surrogates import Surrogate
from grpo_jax.losses.terms import Parts, Terms

__all__ = [
    "Degenerate",
    "Group",
    "Mismatch",
    "Objective",
    "Parts",
    "Reduction",
    "Surrogate",
    "Terms",
    "assert_degenerate_gradients_are_zero",
    "degenerate",
    "log_prob_gradient",
    "mismatch",
    "objective",
    "reductions",
    "surrogates",
]
