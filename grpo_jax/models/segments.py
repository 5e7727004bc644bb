"""Completions as rows of segments: as they stand, or packed; which tokens read which, and back to ``[P, G, T]``."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from grpo_jax.types import Packing, Rollout


class Marks(NamedTuple):
    """What tells the tokens of one row apart.

    Attributes:
        segments: number of the sequence that a token belongs to ``[S]``.
        steps: its place in that sequence ``[S]``.
    """

    segments: Int[Array, "*B S"]
    steps: Int[Array, "*B S"]


class Rows(NamedTuple):
    """The completions of every group as rows that one causal pass reads.

    Attributes:
        tokens: the tokens ``[P, B, S]``; 0 where none is to be read.
        mask: True where a token is scored ``[P, B, S]``.
        marks: of the rows' tokens ``[P, B, S]``, or ``[S]`` where all rows have the same.
    """

    tokens: Int[Array, "P B S"]
    mask: Bool[Array, "P B S"]
    marks: Marks


def rows_of(rollout: Rollout) -> Rows:
    """Returns the completions as their packing has them; without one, a row each.

    A masked position before an unmasked one is context that somebody else wrote: read, not scored.
    """
    mask, packing = rollout.mask, rollout.packing
    read = jax.lax.cummax(mask.astype(jnp.int32), axis=2, reverse=True) > 0
    tokens = jnp.where(read, rollout.tokens, 0)
    if packing is None:
        steps = jnp.arange(mask.shape[2])
        return Rows(tokens, mask, Marks(jnp.zeros_like(steps), steps))
    return Rows(
        _taken(tokens, packing, mask.shape),
        _taken(mask, packing, mask.shape),
        Marks(packing.members, jnp.where(packing.members > 0, packing.steps, 0)),
    )


def put_back(values: Float[Array, "P B S"], rollout: Rollout) -> Float[Array, "P G T"]:
    """Returns what was found for each position of the rows at the place of its token; 0 where none stands.

    Where a packing does not hold every completion once, whole and in order, the whole group is NaN: an update then
    fails for all to see, instead of learning from other tokens than it was given.
    """
    mask, packing = rollout.mask, rollout.packing
    if packing is None:
        return values
    size = mask.shape[1] * mask.shape[2]
    put = jax.vmap(lambda places, values: jnp.zeros(size, values.dtype).at[places].add(values, mode="drop"))
    found = put(*(x.reshape(mask.shape[0], -1) for x in (_places(packing, mask.shape), values))).reshape(mask.shape)
    return jnp.where(jnp.asarray(packing.holds(mask))[:, None, None], found, jnp.nan)


def readable(queries: Marks, keys: Marks, window: Any) -> Bool[Array, "T S"]:
    """Returns which keys of its own row a query reads: those of its sequence, up to itself, within the window."""
    behind = queries.steps[:, None] - keys.steps[None]
    same = queries.segments[:, None] == keys.segments[None]
    return near(same & (behind >= 0), behind, window)


def near(allowed: Bool[Array, "*shape"], behind: Int[Array, "*shape"], window: Any) -> Bool[Array, "*shape"]:
    """Restricts what may be read to keys less than a window behind the query."""
    return allowed if window is None else allowed & (behind < window)


def _taken(values: Shaped[Array, "P G T"], packing: Packing, shape: tuple[int, ...]) -> Shaped[Array, "P B S"]:
    """Returns the value of each position's token, and nothing (0, False) where none stands."""
    places = _places(packing, shape)
    take = jax.vmap(lambda values, places: values.at[places].get(mode="fill", fill_value=0))
    return take(values.reshape(shape[0], -1), places.reshape(shape[0], -1)).reshape(places.shape)


def _places(packing: Packing, shape: tuple[int, ...]) -> Int[Array, "P B S"]:
    """Returns the place of each position's token among the ``G T`` of its group; beyond them where none stands."""
    _, members, length = shape
    return jnp.where(packing.members > 0, (packing.members - 1) * length + packing.steps, members * length)
