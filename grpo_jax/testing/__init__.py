"""Fakes for tests, shipped so that users' own tests can use them."""

from grpo_jax.testing.builders import poisoned, random_batch, random_scores
from grpo_jax.testing.scripted import scripted_sampler
from grpo_jax.testing.tokenizers import ByteTokenizer

__all__ = ["ByteTokenizer", "poisoned", "random_batch", "random_scores", "scripted_sampler"]
