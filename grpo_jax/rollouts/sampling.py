"""Strategies: how the next token is chosen from its distribution."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

BLOCK = 256
"""Width of the blocks of the two-level inverse CDF."""


class Strategy(NamedTuple):
    """A way to choose tokens.

    Attributes:
        temperature: what logits are divided by before they are chosen from, and for the recorded log-probabilities.
        choose: ``(logits [V], *, key) -> token []``, for one row; the logits are already divided by ``temperature``.
            Consumes the key.
    """

    temperature: float
    choose: Callable


def categorical(temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None) -> Strategy:
    """Builds sampling from ``softmax(logits / temperature)``, optionally cut to its most likely tokens.

    Args:
        temperature: above 0; use ``greedy()`` for the limit 0.
        top_k: sample among the k most likely tokens only; None: all.
        top_p: sample among the smallest set of most likely tokens that holds at least this probability, in (0, 1],
            measured after ``top_k``; None: all.

    Returns:
        A strategy. Restricting the choice does not change the recorded log-probabilities, which always belong to the
        whole temperature-scaled distribution.

    Raises:
        ValueError: a number is out of range.
    """
    if not 0 < temperature < float("inf"):
        raise ValueError(f"categorical: temperature is {temperature}; give a positive number, or use greedy()")
    if top_k is not None and top_k < 1:
        raise ValueError(f"categorical: top_k is {top_k}; give at least 1, or None for all tokens")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"categorical: top_p is {top_p}; give a probability in (0, 1], or None for all tokens")

    def choose_any(logits: Float[Array, " V"], *, key: Key[Array, ""]) -> Int[Array, ""]:
        return inverse_cdf(jnp.exp(logits - jnp.max(logits)), jax.random.uniform(key))

    def choose_likely(logits: Float[Array, " V"], *, key: Key[Array, ""]) -> Int[Array, ""]:
        count = logits.size if top_k is None else min(top_k, logits.size)
        likely, tokens = jax.lax.top_k(logits, count)
        weights = jnp.exp(likely - likely[0])
        if top_p is not None and top_p < 1:
            mass_before = jnp.cumsum(weights) - weights
            # a set that holds top_p but for rounding holds it
            weights = jnp.where(mass_before < top_p * (1 - 1e-6) * jnp.sum(weights), weights, 0)
        return tokens[inverse_cdf(weights, jax.random.uniform(key))]

    return Strategy(temperature, choose_any if top_k is None and top_p is None else choose_likely)


def greedy() -> Strategy:
    """Builds the choice of the most likely token, the first of equals; log-probs are recorded at temperature 1."""

    def choose(logits: Float[Array, " V"], *, key: Key[Array, ""]) -> Int[Array, ""]:
        return jnp.argmax(logits).astype(jnp.int32)

    return Strategy(1.0, choose)


def inverse_cdf(weights: Float[Array, " V"], uniform: Float[Array, ""]) -> Int[Array, ""]:
    """Returns the index at which the running sum of weights first exceeds ``uniform * sum(weights)``.

    One uniform number a row instead of one Gumbel number per token. Long rows are searched in two levels, first by sums
    of blocks, then within a block. An index of zero weight is never returned, whatever the rounding: where rounding
    leaves nothing above the target, the last index of positive weight is.

    Args:
        weights: non-negative, not all zero, not necessarily normalised ``[V]``.
        uniform: in [0, 1), scalar. With float32's 2^-23 steps, differences in probability below that are not resolved.

    Returns:
        Index, int32 scalar.
    """
    if weights.size <= 2 * BLOCK:
        return _first_above(weights, uniform * jnp.sum(weights))[0]
    padding = -weights.size % BLOCK
    blocks = jnp.pad(weights, (0, padding)).reshape(-1, BLOCK)
    sums = jnp.sum(blocks, axis=1)
    block, before = _first_above(sums, uniform * jnp.sum(sums))
    within, _ = _first_above(blocks[block], uniform * jnp.sum(sums) - before)
    return block * BLOCK + within


def _first_above(weights: Float[Array, " N"], target: Float[Array, ""]) -> tuple[Int[Array, ""], Float[Array, ""]]:
    """Returns the first index of positive weight whose running sum exceeds target, and the sum before it."""
    running, index, positive = jnp.cumsum(weights), jnp.arange(weights.size, dtype=jnp.int32), weights > 0
    first = jnp.min(jnp.where(positive & (running > target), index, weights.size))
    last = jnp.max(jnp.where(positive, index, 0))
    chosen = jnp.minimum(first, last)
    return chosen, running[chosen] - weights[chosen]
