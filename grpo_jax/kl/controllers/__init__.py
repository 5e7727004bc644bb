"""Controllers of beta, the weight of the KL term: schedules, adaptive rules, and one after the other."""

from grpo_jax.kl.controllers.adaptive import clipped_proportional, proportional, proportional_integral
from grpo_jax.kl.controllers.controller import Controller, KLStatistic
from grpo_jax.kl.controllers.schedules import constant, linear_warmup, then, tight_then_loose

__all__ = [
    "Controller",
    "KLStatistic",
    "clipped_proportional",
    "constant",
    "linear_warmup",
    "proportional",
    "proportional_integral",
    "then",
    "tight_then_loose",
]
