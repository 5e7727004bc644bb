"""Text to numbers: reward functions and their combination."""

from grpo_jax.rewards.calls import RewardFunction
from grpo_jax.rewards.combine import Rewards, score, score_each, weighted_sum
from grpo_jax.rewards.overlong import overlong, overlong_penalty

__all__ = ["RewardFunction", "Rewards", "overlong", "overlong_penalty", "score", "score_each", "weighted_sum"]
