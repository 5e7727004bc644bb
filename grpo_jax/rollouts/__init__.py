"""From prompts to rollouts: sampling strategies and the decode loop."""

from grpo_jax.rollouts.generate import sampler
from grpo_jax.rollouts.sampling import Strategy, categorical, greedy

__all__ = ["Strategy", "categorical", "greedy", "sampler"]
