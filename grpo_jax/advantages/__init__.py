"""Advantages: the rewards of one group ``[G]`` to the weights of its members' log-probabilities ``[G]``."""

from grpo_jax.advantages.advantage import AcrossBatch, Advantage, GroupAdvantage, Spread, from_function
from grpo_jax.advantages.batch import batch_whitened
from grpo_jax.advantages.group import spread
from grpo_jax.advantages.several import separately_standardised, weighted_sum
from grpo_jax.advantages.single import centred, leave_one_out, leave_one_out_standardised, max_rl, standardised

__all__ = [
    "AcrossBatch",
    "Advantage",
    "GroupAdvantage",
    "Spread",
    "batch_whitened",
    "centred",
    "from_function",
    "leave_one_out",
    "leave_one_out_standardised",
    "max_rl",
    "separately_standardised",
    "spread",
    "standardised",
    "weighted_sum",
]
