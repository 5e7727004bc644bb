"""Group-relative policy optimisation in JAX, with KL regularisation whose gradient is known.

The one objective that trains a policy is the one that the tests differentiate exactly; see the README for a tour.
"""

from grpo_jax import advantages, compat, kl, losses, models, oracle, rewards, rollouts, tasks, updates
from grpo_jax.losses import degenerate, mismatch, objective, reductions, surrogates
from grpo_jax.oracle import certify
from grpo_jax.types import Batch, Prompts, Rollout, Scores, TrainState

__all__ = [
    "Batch",
    "Prompts",
    "Rollout",
    "Scores",
    "TrainState",
    "advantages",
    "certify",
    "compat",
    "degenerate",
    "kl",
    "losses",
    "mismatch",
    "models",
    "objective",
    "oracle",
    "reductions",
    "rewards",
    "rollouts",
    "surrogates",
    "tasks",
    "updates",
]
