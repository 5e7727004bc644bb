"""Text to numbers: reward functions and their combination."""

from grpo_jax.rewards.calls import RewardFunction
from grpo_jax.rewards.combine import Rewards, score, score_each, score_part, some_scored, together, weighted_sum
from grpo_jax.rewards.countdown import countdown
from grpo_jax.rewards.imported import imported
from grpo_jax.rewards.isolated import IsolatedReward, isolated
from grpo_jax.rewards.math import final_answer, math_answer, symbolic_answer
from grpo_jax.rewards.overlong import overlong, overlong_penalty

__all__ = [
    "IsolatedReward",
    "RewardFunction",
    "Rewards",
    "countdown",
    "final_answer",
    "imported",
    "isolated",
    "math_answer",
    "overlong",
    "overlong_penalty",
    "score",
    "score_each",
    "score_part",
    "some_scored",
    "symbolic_answer",
    "together",
    "weighted_sum",
]
