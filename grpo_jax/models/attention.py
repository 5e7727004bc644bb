"""Grouped-query attention over several sources of keys, and rotary positions; one sequence at a time."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from grpo_jax.models.architecture import RopeScaling

MASKED = -1e30
"""Stands for minus infinity in attention logits; finite, so that rows without any key stay finite."""


def wide(dtype: Any) -> Any:
    """Returns float32, or float64 where that is what is computed in: the dtype of sums, norms and softmax."""
    return jnp.promote_types(dtype, jnp.float32)


class KeyValues(NamedTuple):
    """Keys and values of S positions of a sequence, each laid out as the matrix product that reads it wants.

    Attributes:
        keys: ``[K, D, S]`` for K key-value heads of width D.
        values: ``[K, S, D]``.
    """

    keys: Float[Array, "K D S"]
    values: Float[Array, "K S D"]


class Source(NamedTuple):
    """Keys and values to attend to, and which query may read which of them.

    Attributes:
        memory: keys and values of S positions.
        mask: True where the query of a row may read the key of a column ``[T, S]``.
    """

    memory: KeyValues
    mask: Bool[Array, "T S"]


def attend(query: Float[Array, "T K R D"], sources: Sequence[Source]) -> Float[Array, "T K R D"]:
    """Attends to the union of several sources without ever joining them.

    ``softmax(q k / sqrt(D)) v`` over all readable keys of all sources, computed in float32 (or wider) with one common
    maximum and one common denominator. As sources stay apart, one shared by a whole group (the prompt) is never
    repeated: under vmap over the group's members it remains a single operand.

    Args:
        query: ``[T, K, R, D]``, R query heads to each of K key-value heads.
        sources: at least one; masks may leave a query nothing to read.

    Returns:
        ``[T, K, R, D]`` in the query's dtype; exactly 0 for a query that may read nothing.
    """
    scaled = query * query.shape[-1] ** -0.5
    logits = [_logits(scaled, source) for source in sources]
    peak = jnp.max(jnp.stack([jnp.max(x, axis=-1) for x in logits]), axis=0, initial=MASKED / 2)
    peak = jax.lax.stop_gradient(peak)[..., None]
    weights = [jnp.exp(x - peak) for x in logits]
    denominator = sum(jnp.sum(x, axis=-1) for x in weights)
    context = sum(_read(x, source.memory) for x, source in zip(weights, sources, strict=True))
    safe = jnp.where(denominator > 0, denominator, 1)
    return jnp.einsum("ktrd->tkrd", context / safe[..., None]).astype(query.dtype)


def attend_in_chunks(
    query: Float[Array, "T K R D"], marks: Any, sources: Callable[[Any], Sequence[Source]], queries_per_chunk: int
) -> Float[Array, "T K R D"]:
    """Attends with a few queries at a time, so that logits ``[K, T, R, S]`` never exist as a whole.

    Each chunk is one softmax over all its keys, so nothing is approximated and nothing has to be merged. Chunks run one
    after another and are recomputed in the backward pass; a single one is kept.

    Args:
        query: ``[T, K, R, D]``.
        marks: pytree of ``[T, ...]``, what the masks read of each query.
        sources: ``marks of c queries -> sources`` with masks ``[c, S]``, made where they are used and never kept.
        queries_per_chunk: how many queries to hold logits for at once, >= 1.

    Returns:
        What ``attend(query, sources(marks))`` returns, up to rounding.
    """
    length = query.shape[0]
    count = -(-length // queries_per_chunk)
    if count == 1:
        return attend(query, sources(marks))
    size = -(-length // count)

    def split(x: Array) -> Array:
        padding = [(0, count * size - length)] + [(0, 0)] * (x.ndim - 1)
        return jnp.pad(x, padding).reshape(count, size, *x.shape[1:])

    def attend_some(some: tuple) -> Array:
        query, marks = some
        return attend(query, sources(marks))

    # the loop itself keeps XLA from merging the recomputation with the first computation
    chunks = jax.lax.map(jax.checkpoint(attend_some, prevent_cse=False), jax.tree.map(split, (query, marks)))
    return chunks.reshape(count * size, *query.shape[1:])[:length]


def _logits(query: Float[Array, "T K R D"], source: Source) -> Float[Array, "K T R S"]:
    logits = jnp.einsum("tkrd,kds->ktrs", query, source.memory.keys, preferred_element_type=wide(query.dtype))
    return jnp.where(source.mask[None, :, None, :], logits, MASKED)


def _read(weights: Float[Array, "K T R S"], memory: KeyValues) -> Float[Array, "K T R D"]:
    values = memory.values
    return jnp.einsum("ktrs,ksd->ktrd", weights.astype(values.dtype), values, preferred_element_type=weights.dtype)


class Rotation(NamedTuple):
    """Cosines and sines of the rotary angles of N positions, each ``[N, D/2]``."""

    cosines: Float[Array, "N half"]
    sines: Float[Array, "N half"]


def rotation(
    positions: Int[Array, " N"],
    head_dim: int,
    theta: float,
    dtype: Any = jnp.float32,
    scaling: RopeScaling | None = None,
) -> Rotation:
    """Returns the rotary angles ``position * theta^(-2 i / D)`` of every position, computed in ``dtype``.

    Args:
        positions: from 0.
        head_dim: width of a head, D, even.
        theta: base of the frequencies.
        dtype: of the result.
        scaling: changes the frequencies; None: not at all.

    References:
        Su et al. 2021, arXiv 2104.09864, eq. 34, with the halves convention of GPT-NeoX and Llama.
    """
    frequencies = theta ** (-jnp.arange(0, head_dim, 2, dtype=dtype) / head_dim)
    frequencies = frequencies if scaling is None else scaling(frequencies)
    angles = positions[:, None].astype(dtype) * frequencies[None]
    # XLA for CPUs holds cosines cheap and computes them anew for every layer and head, but not what a loop returned
    functions = jnp.array([True, False])
    cosines, sines = jax.lax.map(lambda even: jnp.where(even, jnp.cos(angles), jnp.sin(angles)), functions)
    return Rotation(cosines, sines)


def rotate(x: Float[Array, "N H D"], angles: Rotation) -> Float[Array, "N H D"]:
    """Rotates the pairs (i, i + D/2) of every head by its position's angles, in the angles' dtype."""
    first, second = jnp.split(x.astype(angles.cosines.dtype), 2, axis=-1)
    cosines, sines = angles.cosines[:, None], angles.sines[:, None]
    rotated = [first * cosines - second * sines, second * cosines + first * sines]
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)
