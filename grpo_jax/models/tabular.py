"""Policies small enough to enumerate: a table of next-token logits, by prefix or by position."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from grpo_jax.models.policy import Policy, Prefix
from grpo_jax.models.scoring import read_logits, score_positions
from grpo_jax.types import Params, Prompts, Rollout, Scores


def prefix_tabular(vocabulary_size: int, max_tokens: int, contexts: int = 1) -> Policy:
    """Builds the policy with free logits at every prefix: any distribution over completions of ``max_tokens``.

    The prefix is a node of a V-ary tree, root 0, child ``node * V + 1 + token``.

    Args:
        vocabulary_size: number of token ids, V.
        max_tokens: longest completion, T.
        contexts: number of distinct prompts; a prompt's last token, modulo this, is its context.

    Returns:
        The policy; params are ``{"logits": [contexts, (V^T - 1) / (V - 1), V]}``, float32.

    Raises:
        ValueError: a count is below 1, or the table would have more than 2^24 entries.
    """
    rows = sum(vocabulary_size**t for t in range(max_tokens)) if max_tokens < 64 else 2**62
    step = lambda row, token: row * vocabulary_size + 1 + token  # noqa: E731
    return _tabular("prefix_tabular", vocabulary_size, max_tokens, contexts, rows, step)


def position_tabular(vocabulary_size: int, max_tokens: int, contexts: int = 1) -> Policy:
    """Builds the policy whose next-token logits depend on the position alone, so that tokens are independent.

    Args:
        vocabulary_size: number of token ids, V.
        max_tokens: longest completion, T.
        contexts: number of distinct prompts; a prompt's last token, modulo this, is its context.

    Returns:
        The policy; params are ``{"logits": [contexts, T, V]}``, float32.

    Raises:
        ValueError: a count is below 1, or the table would have more than 2^24 entries.
    """
    step = lambda row, token: row + 1  # noqa: E731
    return _tabular("position_tabular", vocabulary_size, max_tokens, contexts, max_tokens, step)


def _tabular(name: str, vocabulary_size: int, max_tokens: int, contexts: int, rows: int, step: Callable) -> Policy:
    """Builds a policy that reads row after row of a table; ``step(row, token)`` is the row after a token."""
    for argument, value in (("vocabulary_size", vocabulary_size), ("max_tokens", max_tokens), ("contexts", contexts)):
        if value < 1:
            raise ValueError(f"{name}: {argument} is {value}; give at least 1")
    if contexts * rows * vocabulary_size > 2**24:
        raise ValueError(
            f"{name}: a table for {vocabulary_size} tokens, {max_tokens} positions and {contexts} contexts has more "
            "than 2^24 entries; give fewer tokens or positions"
        )
    table = _Table((contexts, rows, vocabulary_size), step)
    return Policy(
        init=table.init,
        prefill=table.prefill,
        empty_cache=lambda P, G, T: jnp.zeros((P, G), jnp.int32),
        decode=table.decode,
        score=table.score,
        logical_axes=lambda: {"logits": (None, None, "vocabulary")},
        vocabulary_size=vocabulary_size,
        row_axis=0,
    )


class _Table(NamedTuple):
    """Shape of the table and how to walk it. The prompt's memory is its context, the cache the current row."""

    shape: tuple[int, int, int]
    step: Callable

    def init(self, *, key: Key[Array, ""]) -> Params:
        """Returns standard normal logits. Consumes the key."""
        return {"logits": jax.random.normal(key, self.shape)}

    def prefill(self, params: Params, prompts: Prompts) -> Prefix:
        """Reads every prompt's last token; see ``Policy``."""
        context, mask = self._contexts(prompts), prompts.mask
        return Prefix(context, mask, jnp.sum(mask, axis=1, dtype=jnp.int32), params["logits"][context, 0])

    def decode(
        self,
        params: Params,
        prefix: Prefix,
        cache: Int[Array, "P G"],
        tokens: Int[Array, "P G"],
        t: Int[Array, "P G"],
        step: Int[Array, ""],
    ) -> tuple[Float[Array, "P G V"], Int[Array, "P G"]]:
        """Moves every member to the row after its token; see ``Policy``. The last row stands in past the end."""
        row = jnp.clip(self.step(jnp.where(t == 0, 0, cache), tokens), 0, self.shape[1] - 1)
        return params["logits"][prefix.memory[:, None], row], row

    def score(
        self,
        params: Params,
        rollout: Rollout,
        temperature: float | Float[Array, ""],
        *,
        entropy: bool = False,
        ref_params: Params | None = None,
    ) -> Scores:
        """Scores a rollout's tokens; see ``Policy``."""
        safe = jnp.where(rollout.mask, rollout.tokens, 0)

        def walk(row: Int[Array, "P G"], tokens: Int[Array, "P G"]):
            return jnp.clip(self.step(row, tokens), 0, self.shape[1] - 1), row

        _, rows = jax.lax.scan(walk, jnp.zeros(safe.shape[:2], jnp.int32), jnp.moveaxis(safe, 2, 0))
        features = (
            jnp.broadcast_to(self._contexts(rollout.prompts)[:, None, None], safe.shape),
            jnp.moveaxis(rows, 0, 2),
        )

        def logits(params: Params) -> Callable:
            return lambda features: params["logits"][features] / temperature

        theirs = None if ref_params is None else logits(jax.lax.stop_gradient(ref_params))
        read = read_logits(logits(params), theirs, entropy=entropy)
        return score_positions(read, rollout.tokens, rollout.mask, features, positions_per_chunk=safe.shape[2])

    def _contexts(self, prompts: Prompts) -> Int[Array, " P"]:
        mask = prompts.mask
        last = jnp.max(jnp.where(mask, jnp.arange(mask.shape[1])[None], 0), axis=1)
        safe = jnp.where(mask, prompts.tokens, 0)
        return safe[jnp.arange(mask.shape[0]), last] % self.shape[0]
