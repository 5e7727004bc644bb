"""A policy that writes completions of chosen lengths, at the cost of the decoder that it is made of."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from grpo_jax.models import Policy

END, MARK = 0, 1


def with_lengths(policy: Policy, mean: float, share: float) -> Policy:
    """Returns the policy with another probability of the end token, and with a share of rows that never end.

    Args:
        policy: with unrolled layers, so that rows lead in its cache.
        mean: of the geometric lengths, > 1; infinite: no completion ends.
        share: of completions that start with `MARK` and run to the budget.
    """

    def ending(logits: Float[Array, "P G V"], never: Array) -> Float[Array, "P G V"]:
        others = jax.nn.logsumexp(logits[..., END + 1 :], axis=-1)
        end = jnp.where(never, -1e30, others - jnp.log(mean - 1))
        return logits.at[..., END].set(end)

    def prefill(params: Any, prompts: Any) -> Any:
        prefix = policy.prefill(params, prompts)
        others = jax.nn.logsumexp(prefix.logits.at[:, MARK].set(-1e30).at[:, END].set(-1e30), axis=-1)
        marked = others + jnp.log(share / (1 - share)) if share else jnp.full_like(others, -1e30)
        logits = prefix.logits.at[:, MARK].set(marked)
        return prefix._replace(logits=ending(logits, jnp.zeros(others.shape, bool)))

    def decode(params: Any, prefix: Any, cache: Any, tokens: Array, t: Array, step: Array) -> tuple[Array, Any]:
        inner, never = cache
        never = jnp.where(t == 0, (tokens == MARK) & (share > 0), never)
        logits, inner = policy.decode(params, prefix, inner, tokens, t, step)
        return ending(logits, never), (inner, never)

    def empty_cache(P: int, G: int, T: int) -> Any:
        return policy.empty_cache(P, G, T), jnp.zeros((P, G), bool)

    return policy._replace(prefill=prefill, decode=decode, empty_cache=empty_cache)
