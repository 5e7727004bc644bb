"""The sampler: prompts in, completions with the sampler's own log-probabilities out."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from grpo_jax.models.policy import Policy, Prefix
from grpo_jax.models.scoring import log_prob_of
from grpo_jax.rollouts.sampling import Strategy
from grpo_jax.rollouts.slots import Queue, Slots, fill, found, recorder, refill, shrink
from grpo_jax.types import Params, Prompts, Rollout

LEAST_TOKENS = 32
"""Budget from which the batch shrinks by itself: less does not pay for compiling the step again."""


def sampler(
    policy: Policy,
    strategy: Strategy,
    group_size: int,
    max_tokens: int,
    end_ids: Sequence[int],
    pad_id: int,
    *,
    slots: int | Sequence[int] | None = None,
    shards: int = 1,
) -> Callable:
    """Builds the function that samples a group of completions for every prompt.

    Every prompt is read once. Then completions (rows) grow by a token a step, each in a slot of the decoding batch. A
    row that ends leaves its slot to the next one in the queue. When none are waiting and the batch would do with a
    smaller size, it shrinks, so that a few long rows do not cost steps of the whole batch. Each size compiles the step
    once more. The recorded log-probability of a token is that of the whole temperature-scaled distribution, also where
    the strategy restricts the choice.

    Row g of group p draws its noise for token t from a key folded with p, g and t alone, so no two rows or tokens share
    noise, and neither padding groups behind nor slots nor devices that prompts are spread over change a row's tokens.

    Args:
        policy: the policy.
        strategy: how tokens are chosen, and the temperature.
        group_size: completions per prompt, G.
        max_tokens: completion budget, T.
        end_ids: token ids that end a completion, kept in its mask; empty: only the budget does.
        pad_id: what stands after the end; may be an end id, as the mask is by position.
        slots: most rows that decode at a time. None: all of them, in groups that share what is kept of their prompt;
            every slot has a copy of its own. Several: the sizes of the batch, the first as above, each taken as soon as
            it is large enough for what is left. One or None: quarters of the batch, as long as these are at least 4,
            follow if the budget is at least `LEAST_TOKENS`. ``(slots,)``: none do.
        shards: devices, or groups of them, that P is spread over. Slots are divided among them, and each keeps to its
            own rows; P must be a multiple.

    Returns:
        ``generate(params, prompts, *, key) -> Rollout``; pure, to be jitted by the caller. Consumes a typed key.
        A prompt without any token (padding group) gets completions with an all-False mask.

    Raises:
        ValueError: a number is out of range.
    """
    _check(policy, group_size, max_tokens, end_ids, pad_id)
    sizes_of = _plan(slots, shards, max_tokens)
    choose = jax.vmap(jax.vmap(lambda logits, key: strategy.choose(logits, key=key)))
    ends = jnp.asarray(tuple(end_ids), jnp.int32)

    def chosen(logits: Float[Array, "P G V"], keys: Key[Array, "P G"], t: Int[Array, "P G"]) -> tuple[Array, Array]:
        """Returns token number t of every row and its log-probability."""
        scaled = logits / strategy.temperature
        tokens = choose(scaled, jax.vmap(jax.vmap(jax.random.fold_in))(keys, t))
        return tokens, jax.vmap(jax.vmap(log_prob_of))(scaled, tokens)

    def begun(
        prefix: Prefix, logits: Float[Array, "P V"], key: Key[Array, ""]
    ) -> tuple[Queue, tuple[Array, Array, Array]]:
        """Queues the rows that go on after their first token; also returns that token, mask and log-prob ``[P, G]``."""
        rows = (logits.shape[0], group_size)
        keys = _row_keys(key, *rows)
        logits = jnp.broadcast_to(logits[:, None], (*rows, policy.vocabulary_size))
        tokens, log_probs = chosen(logits, keys, jnp.zeros(rows, jnp.int32))
        mask = jnp.broadcast_to(jnp.any(prefix.mask, axis=1)[:, None], rows)
        goes_on = (mask & ~jnp.isin(tokens, ends) & (max_tokens > 1)).reshape(shards, -1)
        order = jnp.argsort(~goes_on, axis=1, stable=True).astype(jnp.int32)
        waiting = jnp.sum(goes_on, axis=1, dtype=jnp.int32)
        queue = Queue(order, waiting, keys.reshape(order.shape), tokens.reshape(order.shape), prefix)
        return queue, (tokens, mask, log_probs)

    def decoded(params: Params, queue: Queue, slots: Slots, enough: int, waits: bool) -> Slots:
        """Decodes until none are waiting and at most ``enough`` rows of each shard are left."""
        shape, record = slots.rows.shape, recorder(slots)

        def unfinished(slots: Slots) -> Bool[Array, ""]:
            left = jnp.sum(slots.alive.reshape(shards, -1), axis=1)
            return jnp.any(left > enough) | jnp.any((left > 0) & (slots.taken < queue.waiting))

        def step(slots: Slots) -> Slots:
            logits, cache = policy.decode(params, slots.prefix, slots.cache, slots.tokens, slots.t, slots.step)
            rows, t = slots.rows.reshape(shards, -1), slots.t + 1
            keys = jax.vmap(lambda keys, rows: keys[rows])(queue.keys, rows).reshape(shape)
            tokens, log_probs = chosen(logits, keys, t)
            slots = slots._replace(
                step=slots.step + 1,
                cache=cache,
                tokens=tokens,
                t=t,
                alive=slots.alive & ~jnp.isin(tokens, ends) & (t < max_tokens - 1),
                log=record(slots.log, slots.step, tokens, jnp.where(slots.alive, t, -1), log_probs),
            )
            return refill(policy, queue, slots) if waits else slots

        return jax.lax.while_loop(unfinished, step, slots)

    def generate(params: Params, prompts: Prompts, *, key: Key[Array, ""]) -> Rollout:
        """Samples G completions for every prompt; see ``sampler``."""
        sizes = sizes_of(prompts.tokens.shape[0], group_size)
        prefix = policy.prefill(params, prompts)
        queue, first = begun(prefix, prefix.logits, key)
        slots = fill(policy, queue, sizes[0], max_tokens)
        waits = slots.rows.size < queue.order.size
        for size, smaller in pairwise((*sizes, 0)):
            slots = slots if size == sizes[0] else shrink(policy, slots, size)
            slots = decoded(params, queue, slots, smaller, waits and size == sizes[0])
        rest = (x.reshape(*first[0].shape, -1) for x in found(slots, max_tokens))
        tokens, mask, log_probs = (jnp.concatenate([x[..., None], y], axis=2) for x, y in zip(first, rest, strict=True))
        finished = jnp.any(mask & jnp.isin(tokens, ends), axis=2)
        return Rollout(prompts, jnp.where(mask, tokens, pad_id), mask, jnp.where(mask, log_probs, 0), finished)

    return generate


def _check(policy: Policy, group_size: int, max_tokens: int, end_ids: Sequence[int], pad_id: int) -> None:
    if group_size < 1:
        raise ValueError(f"sampler: group_size is {group_size}; give at least 1 completion per prompt")
    if max_tokens < 1:
        raise ValueError(f"sampler: max_tokens is {max_tokens}; give at least 1 token")
    for name, value in [("pad_id", pad_id), *(("end_ids", value) for value in end_ids)]:
        if not 0 <= value < policy.vocabulary_size:
            raise ValueError(f"sampler: {name} has {value}, outside the vocabulary of {policy.vocabulary_size} ids")


def _plan(slots: int | Sequence[int] | None, shards: int, max_tokens: int) -> Callable[[int, int], tuple[int, ...]]:
    """Returns the function from P and G to the sizes of the batch, per shard and in falling order."""
    if shards < 1:
        raise ValueError(f"sampler: shards is {shards}; give at least 1")
    given = () if slots is None else (slots,) if isinstance(slots, int) else tuple(slots)
    if any(size < 1 for size in given) or list(given) != sorted(set(given), reverse=True) or slots == ():
        raise ValueError(f"sampler: slots is {slots}; give at least 1, and several in falling order")
    automatic = slots is None or isinstance(slots, int)

    def sizes_of(groups: int, members: int) -> tuple[int, ...]:
        if groups % shards:
            raise ValueError(f"sampler: {groups} prompts do not divide by {shards} shards; pad them to a multiple")
        each = groups * members // shards
        sizes = [min(each, -(-size // shards)) for size in given] or [each]
        while automatic and max_tokens >= LEAST_TOKENS and sizes[-1] >= 16:
            sizes.append(sizes[-1] // 4)
        return tuple(dict.fromkeys(sizes))

    return sizes_of


def _row_keys(key: Key[Array, ""], groups: int, members: int) -> Key[Array, "P G"]:
    """Returns a key for every row, a function of the key and the row's group and member numbers only."""
    fold = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    return jax.vmap(fold, in_axes=(0, None))(fold(key, jnp.arange(groups)), jnp.arange(members))
