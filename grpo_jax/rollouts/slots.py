"""Which row decodes in which slot: free slots filled from a queue, the batch shrunk, and rows found again in the log.

Devices that hold different groups (shards, D) each keep to their own rows, so that none are moved between them.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from grpo_jax.models.policy import Policy, Prefix


class Queue(NamedTuple):
    """The rows of a call, R = P G / D in each shard, in the order in which they get a slot.

    Attributes:
        order: the rows of each shard, those with something to decode first ``[D, R]``.
        waiting: how many have ``[D]``.
        keys: a key for each row ``[D, R]``.
        tokens: the first token of each row ``[D, R]``.
        prefix: what all P prompts left.
    """

    order: Int[Array, "D R"]
    waiting: Int[Array, " D"]
    keys: Key[Array, "D R"]
    tokens: Int[Array, "D R"]
    prefix: Prefix


class Log(NamedTuple):
    """What the slots wrote, step by step, so that a step writes one contiguous slice.

    Attributes:
        tokens: tokens chosen ``[N, D, S]``.
        t: their number in their completion ``[N, D, S]``; -1 where a slot was free.
        log_probs: their log-probabilities ``[N, D, S]``.
    """

    tokens: Int[Array, "N D S"]
    t: Int[Array, "N D S"]
    log_probs: Float[Array, "N D S"]


class Slots(NamedTuple):
    """The decoding batch and where its rows come from; S slots a shard, as P' groups of G' members each.

    Attributes:
        step: decode steps done.
        prefix: the prompts of the groups, P' in front.
        cache: the policy's.
        rows: which row of its shard is in a slot ``[P', G']``.
        tokens: the token that is read next ``[P', G']``.
        t: its number in its completion ``[P', G']``.
        alive: whether there is something left to decode ``[P', G']``.
        taken: how many rows of the queue have had a slot ``[D]``.
        starts: at which step each row started ``[D, R]``; -1 where it has not.
        homes: the column of the log that it is in ``[D, R]``.
        log: what has been written.
    """

    step: Int[Array, ""]
    prefix: Prefix
    cache: Any
    rows: Int[Array, "groups members"]
    tokens: Int[Array, "groups members"]
    t: Int[Array, "groups members"]
    alive: Bool[Array, "groups members"]
    taken: Int[Array, " D"]
    starts: Int[Array, "D R"]
    homes: Int[Array, "D R"]
    log: Log


def fill(policy: Policy, queue: Queue, size: int, max_tokens: int) -> Slots:
    """Returns the first batch: all rows in their groups where they fit, otherwise the first of the queue.

    Args:
        policy: the policy.
        queue: the rows.
        size: slots of each shard, S, at most R.
        max_tokens: completion budget, T.
    """
    (shards, count), groups = queue.order.shape, queue.prefix.mask.shape[0]
    everywhere = jnp.arange(shards)[:, None]
    prefix, members = queue.prefix._replace(logits=None), shards * count // groups
    if size == count:
        layout, rows = (groups, members), jnp.broadcast_to(jnp.arange(count, dtype=jnp.int32), (shards, count))
        places = jnp.zeros((shards, count), jnp.int32).at[everywhere, queue.order].set(rows)
        alive, taken = places < queue.waiting[:, None], queue.waiting
    else:
        layout, rows = (shards * size, 1), queue.order[:, :size]
        alive, taken = jnp.arange(size)[None] < queue.waiting[:, None], jnp.minimum(queue.waiting, size)
        prefix = _pick_prompts(policy, prefix, rows // members)
    homes = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (shards, size))
    written = (max(1, (max_tokens - 1) * -(-count // size)), shards, size)
    return Slots(
        step=jnp.zeros((), jnp.int32),
        prefix=prefix,
        cache=policy.empty_cache(*layout, max_tokens),
        rows=rows.reshape(layout),
        tokens=jnp.take_along_axis(queue.tokens, rows, axis=1).reshape(layout),
        t=jnp.zeros(layout, jnp.int32),
        alive=alive.reshape(layout),
        taken=taken,
        starts=jnp.full((shards, count), -1, jnp.int32).at[everywhere, rows].set(0),
        homes=jnp.zeros((shards, count), jnp.int32).at[everywhere, rows].set(homes),
        log=Log(jnp.zeros(written, jnp.int32), jnp.full(written, -1, jnp.int32), jnp.zeros(written, jnp.float32)),
    )


def refill(policy: Policy, queue: Queue, slots: Slots) -> Slots:
    """Gives every free slot the next row of its shard's queue, as long as there are any; slots are groups of one.

    One row at a time, in place, so that a step without a free slot pays nothing, and another one row's prompt.
    """
    shards, count = queue.order.shape
    members = shards * count // queue.prefix.mask.shape[0]
    size = slots.rows.size // shards
    at_each = jax.vmap(lambda own, at: own[at])
    put_each = jax.vmap(lambda own, at, value: own.at[at].set(value, mode="drop"))

    def due(slots: Slots) -> Bool[Array, " D"]:
        return jnp.any(~slots.alive.reshape(shards, -1), axis=1) & (slots.taken < queue.waiting)

    def place(slots: Slots) -> Slots:
        wanted = due(slots)
        row = at_each(queue.order, slots.taken % count)
        at = jnp.where(wanted, jnp.argmin(slots.alive.reshape(shards, -1), axis=1), size)

        def put(values: Array, value: Array) -> Array:
            return put_each(values.reshape(shards, -1), at, value).reshape(values.shape)

        def put_prompt(axis: int) -> Any:
            return lambda leaf, source: _put(leaf, at, source, row // members, axis)

        known = jnp.where(wanted, row, count)
        return slots._replace(
            prefix=Prefix(
                memory=jax.tree.map(put_prompt(policy.row_axis), slots.prefix.memory, queue.prefix.memory),
                mask=put_prompt(0)(slots.prefix.mask, queue.prefix.mask),
                lengths=put_prompt(0)(slots.prefix.lengths, queue.prefix.lengths),
                logits=None,
            ),
            rows=put(slots.rows, row),
            tokens=put(slots.tokens, at_each(queue.tokens, row)),
            t=put(slots.t, jnp.zeros_like(row)),
            alive=put(slots.alive, wanted),
            taken=slots.taken + wanted,
            starts=put_each(slots.starts, known, jnp.broadcast_to(slots.step, known.shape)),
            homes=put_each(slots.homes, known, at.astype(jnp.int32)),
        )

    untouched = {"cache": slots.cache, "log": slots.log}
    slots = slots._replace(**dict.fromkeys(untouched))
    return jax.lax.while_loop(lambda slots: jnp.any(due(slots)), place, slots)._replace(**untouched)


def shrink(policy: Policy, slots: Slots, size: int) -> Slots:
    """Returns a smaller batch with the live rows, at most ``size`` in each shard, as groups of one."""
    (groups, members), shards = slots.rows.shape, slots.taken.size
    kept = jnp.argsort(~slots.alive.reshape(shards, -1), axis=1, stable=True)[:, :size]

    def pick(values: Array) -> Array:
        return jnp.take_along_axis(values.reshape(shards, -1), kept, axis=1).reshape(-1, 1)

    def pick_cache(leaf: Array) -> Array:
        axis = policy.row_axis
        rows = leaf.reshape(*leaf.shape[:axis], groups * members, *leaf.shape[axis + 2 :])
        return jnp.expand_dims(_pick(rows, kept, axis), axis + 1)

    return slots._replace(
        prefix=_pick_prompts(policy, slots.prefix, kept // members),
        cache=jax.tree.map(pick_cache, slots.cache),
        **{name: pick(getattr(slots, name)) for name in ("rows", "tokens", "t", "alive")},
    )


def recorder(slots: Slots) -> Any:
    """Returns ``(log, step, tokens, t, log_probs) -> log``, which writes a step of these slots, ``[P', G']`` each.

    Slots keep the columns of the log that their rows started in when the batch shrinks.
    """
    (shards, _), columns = slots.homes.shape, slots.log.t.shape[2]
    size = slots.rows.size // shards
    spread = lambda values: values.reshape(shards, size)  # noqa: E731
    if size < columns:
        homes = jnp.take_along_axis(slots.homes, slots.rows.reshape(shards, size), axis=1)
        inside = jnp.full((shards, columns), size).at[jnp.arange(shards)[:, None], homes].set(jnp.arange(size)[None])
        # slots that are gone read one that is always free
        spread = lambda values: jnp.take_along_axis(  # noqa: E731
            jnp.pad(values.reshape(shards, size), ((0, 0), (0, 1)), constant_values=-1), inside, axis=1
        )

    def record(log: Log, step: Int[Array, ""], tokens: Array, t: Array, log_probs: Array) -> Log:
        return jax.tree.map(lambda buffer, values: buffer.at[step].set(spread(values)), log, Log(tokens, t, log_probs))

    return record


def found(slots: Slots, max_tokens: int) -> tuple[Array, Array, Array]:
    """Returns tokens, mask and log-probabilities of all rows after their first token, ``[D, R, T - 1]`` each."""
    t = jnp.arange(max_tokens - 1)
    at = jnp.minimum(slots.starts[..., None] + t[None, None], slots.log.t.shape[0] - 1)
    read = jax.vmap(lambda values, at, homes: values[at, homes[:, None]], in_axes=(1, 0, 0))
    tokens, numbers, log_probs = (read(values, at, slots.homes) for values in slots.log)
    # where another row has followed in the same slot, its numbers are lower
    return tokens, (slots.starts[..., None] >= 0) & (numbers == t[None, None] + 1), log_probs


def _pick_prompts(policy: Policy, prefix: Prefix, groups: Int[Array, "D S"]) -> Prefix:
    memory = jax.tree.map(lambda leaf: _pick(leaf, groups, policy.row_axis), prefix.memory)
    return Prefix(memory, _pick(prefix.mask, groups, 0), _pick(prefix.lengths, groups, 0), None)


def _pick(leaf: Array, index: Int[Array, "D N"], axis: int) -> Array:
    """Returns entries ``index`` of each shard along an axis that has all shards one after the other."""
    take = jax.vmap(lambda own, at: jnp.take(own, at, axis=axis, mode="clip"), in_axes=(axis, 0), out_axes=axis)
    picked = take(_split(leaf, index.shape[0], axis), index)
    return picked.reshape(*leaf.shape[:axis], index.size, *leaf.shape[axis + 1 :])


def _put(leaf: Array, at: Int[Array, " D"], source: Array, index: Int[Array, " D"], axis: int) -> Array:
    """Returns the leaf with entry ``at`` of each shard replaced by the source's ``index``; none where out of range."""

    def put(own: Array, at: Array, source: Array, index: Array) -> Array:
        value = jnp.take(source, index, axis=axis, mode="clip")
        return own.at[(*[slice(None)] * axis, at)].set(value, mode="drop")

    shards = at.size
    parts = _split(leaf, shards, axis), at, _split(source, shards, axis), index
    return jax.vmap(put, in_axes=(axis, 0, axis, 0), out_axes=axis)(*parts).reshape(leaf.shape)


def _split(leaf: Array, shards: int, axis: int) -> Array:
    return leaf.reshape(*leaf.shape[:axis], shards, -1, *leaf.shape[axis + 1 :])
