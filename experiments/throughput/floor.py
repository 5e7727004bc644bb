"""What nobody can do without: the operations of the matrix products, and how fast this machine multiplies."""

import math
import time
from typing import Any

import jax
import jax.numpy as jnp


def _operations(shape: Any, vocabulary: int, tokens: float, keys: float, predicted: float) -> float:
    """Multiplications and additions of one forward pass.

    Args:
        shape: with the fields of a decoder.
        vocabulary: number of tokens, V.
        tokens: that pass the network.
        keys: that the tokens read, all together.
        predicted: tokens whose distribution is needed.
    """
    heads = shape.heads * shape.head_dim
    weights = shape.width * (2 * heads + 2 * shape.kv_heads * shape.head_dim + 3 * shape.hidden)
    return 2 * (shape.layers * (weights * tokens + 2 * heads * keys) + vocabulary * shape.width * predicted)


def step_operations(shape: Any, vocabulary: int, work: dict) -> float:
    """A whole step with prompts read once.

    Every prompt token and every completion token but the last passes the network once to sample, once for the
    reference, and once forward and twice backward for the gradient.
    """
    rollout, prompt = work["config"]["rollout"], work["prompt_tokens"]
    length, rows = rollout["max_tokens"], rollout["prompts"] * rollout["group_size"]
    tokens = rollout["prompts"] * prompt + rows * (length - 1)
    keys = rollout["prompts"] * prompt * (prompt + 1) / 2 + rows * sum(prompt + t for t in range(1, length))
    return 5 * _operations(shape, vocabulary, tokens, keys, rows * length)


def training_operations(shape: Any, vocabulary: int, sequences: int, length: int) -> float:
    """Sequences without prompts, forward once and backward twice."""
    tokens = sequences * (length - 1)
    return 3 * _operations(shape, vocabulary, tokens, sequences * length * (length - 1) / 2, tokens)


def multiplied_per_second(size: int = 1024, repeats: int = 20) -> float:
    """Operations per second in float32 products of two square matrices, the best of several."""
    square = jnp.ones((size, size), jnp.float32)
    product, best = jax.jit(jnp.matmul), math.inf
    for _ in range(repeats + 1):
        began = time.perf_counter()
        product(square, square).block_until_ready()
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best
