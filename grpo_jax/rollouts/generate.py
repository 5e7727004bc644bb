"""The sampler: prompts in, completions with the sampler's own log-probabilities out."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from grpo_jax.models.policy import Policy
from grpo_jax.models.scoring import log_prob_of
from grpo_jax.rollouts.sampling import Strategy
from grpo_jax.types import Params, Prompts, Rollout


class _Written(NamedTuple):
    """What has been generated so far; time leads, so that a step writes one contiguous slice."""

    tokens: Int[Array, "T P G"]
    mask: Bool[Array, "T P G"]
    log_probs: Float[Array, "T P G"]


class _Progress(NamedTuple):
    """Carry of the decode loop: steps done, cache, last tokens, which rows have stopped or ended, and the output."""

    steps: Int[Array, ""]
    cache: Any
    tokens: Int[Array, "P G"]
    stopped: Bool[Array, "P G"]
    finished: Bool[Array, "P G"]
    written: _Written


def sampler(
    policy: Policy, strategy: Strategy, group_size: int, max_tokens: int, end_ids: Sequence[int], pad_id: int
) -> Callable:
    """Builds the function that samples a group of completions for every prompt.

    Every prompt is read once, then all completions grow by a token a step until all have ended or the budget is spent.
    The recorded log-probability of a token is that of the whole temperature-scaled distribution, also where the
    strategy restricts the choice.

    Row g of group p draws its noise at step t from a key folded with p, g and t alone, so no two rows or steps share
    noise, and neither padding groups behind nor the devices that prompts are spread over change a row's tokens.

    Args:
        policy: the policy.
        strategy: how tokens are chosen, and the temperature.
        group_size: completions per prompt, G.
        max_tokens: completion budget, T.
        end_ids: token ids that end a completion, kept in its mask; empty: only the budget does.
        pad_id: what stands after the end; may be an end id, as the mask is by position.

    Returns:
        ``generate(params, prompts, *, key) -> Rollout``; pure, to be jitted by the caller. Consumes a typed key.
        A prompt without any token (padding group) gets completions with an all-False mask.

    Raises:
        ValueError: a number is out of range.
    """
    if group_size < 1:
        raise ValueError(f"sampler: group_size is {group_size}; give at least 1 completion per prompt")
    if max_tokens < 1:
        raise ValueError(f"sampler: max_tokens is {max_tokens}; give at least 1 token")
    for name, value in [("pad_id", pad_id), *(("end_ids", value) for value in end_ids)]:
        if not 0 <= value < policy.vocabulary_size:
            raise ValueError(f"sampler: {name} has {value}, outside the vocabulary of {policy.vocabulary_size} ids")
    choose = jax.vmap(jax.vmap(lambda logits, key: strategy.choose(logits, key=key)))
    ends = jnp.asarray(tuple(end_ids), jnp.int32)

    def write(progress: _Progress, logits: Float[Array, "P G V"], keys: Key[Array, "P G"]) -> _Progress:
        """Chooses the next token of every row and writes it down."""
        t, alive = progress.steps, ~progress.stopped
        scaled = logits / strategy.temperature
        step_keys = jax.vmap(jax.vmap(jax.random.fold_in, in_axes=(0, None)), in_axes=(0, None))(keys, t)
        tokens = jnp.where(alive, choose(scaled, step_keys), pad_id)
        log_probs = jnp.where(alive, jax.vmap(jax.vmap(log_prob_of))(scaled, tokens), 0)
        ended = alive & jnp.isin(tokens, ends)
        put = lambda buffer, row: buffer.at[t].set(row)  # noqa: E731
        return progress._replace(
            steps=t + 1,
            tokens=tokens,
            stopped=progress.stopped | ended,
            finished=progress.finished | ended,
            written=jax.tree.map(put, progress.written, _Written(tokens, alive, log_probs)),
        )

    def generate(params: Params, prompts: Prompts, *, key: Key[Array, ""]) -> Rollout:
        """Samples G completions for every prompt; see ``sampler``."""
        groups = prompts.tokens.shape[0]
        keys = _row_keys(key, groups, group_size)
        prefix = policy.prefill(params, prompts)
        logits = jnp.broadcast_to(prefix.logits[:, None], (groups, group_size, policy.vocabulary_size))
        start = _start(policy, prompts, group_size, max_tokens, pad_id)

        def unfinished(progress: _Progress) -> Bool[Array, ""]:
            return (progress.steps < max_tokens) & ~jnp.all(progress.stopped)

        def step(progress: _Progress) -> _Progress:
            step = progress.steps - 1
            t = jnp.broadcast_to(step, progress.tokens.shape)
            logits, cache = policy.decode(params, prefix, progress.cache, progress.tokens, t, step)
            return write(progress._replace(cache=cache), logits, keys)

        done = jax.lax.while_loop(unfinished, step, write(start, logits, keys))
        tokens, mask, log_probs = (jnp.moveaxis(x, 0, 2) for x in done.written)
        return Rollout(prompts, tokens, mask, log_probs, done.finished)

    return generate


def _row_keys(key: Key[Array, ""], groups: int, members: int) -> Key[Array, "P G"]:
    """Returns a key for every row, a function of the key and the row's group and member numbers only."""
    fold = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    return jax.vmap(fold, in_axes=(0, None))(fold(key, jnp.arange(groups)), jnp.arange(members))


def _start(policy: Policy, prompts: Prompts, members: int, length: int, pad_id: int) -> _Progress:
    groups = prompts.tokens.shape[0]
    rows = (groups, members)
    written = _Written(
        tokens=jnp.full((length, *rows), pad_id, jnp.int32),
        mask=jnp.zeros((length, *rows), bool),
        log_probs=jnp.zeros((length, *rows), jnp.float32),
    )
    return _Progress(
        steps=jnp.zeros((), jnp.int32),
        cache=policy.empty_cache(groups, members, length),
        tokens=jnp.full(rows, pad_id, jnp.int32),
        stopped=jnp.broadcast_to(~jnp.any(prompts.mask, axis=1)[:, None], rows),
        finished=jnp.zeros(rows, bool),
        written=written,
    )
