"""Log-probabilities, entropy and exact KL of next-token distributions, of all positions or a few at a time."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from grpo_jax.types import Scores


def log_prob_of(logits: Float[Array, " V"], token: Int[Array, ""]) -> Float[Array, ""]:
    """Returns ``logits[token] - logsumexp(logits)``, in nats, without normalising the whole vocabulary."""
    return logits[token] - jax.nn.logsumexp(logits)


def entropy_of(logits: Float[Array, " V"]) -> Float[Array, ""]:
    """Returns the entropy ``-sum_v p_v log p_v`` of softmax(logits), in nats."""
    log_probs = jax.nn.log_softmax(logits)
    return -jnp.sum(jnp.exp(log_probs) * log_probs)


def full_kl_of(logits: Float[Array, " V"], ref_logits: Float[Array, " V"]) -> Float[Array, ""]:
    """Returns KL(softmax(logits) || softmax(ref_logits)) over the whole vocabulary, in nats."""
    log_probs = jax.nn.log_softmax(logits)
    return jnp.sum(jnp.exp(log_probs) * (log_probs - jax.nn.log_softmax(ref_logits)))


def read_logits(
    logits: Callable, ref_logits: Callable | None, *, entropy: bool
) -> Callable[[Any, Int[Array, "P G c"]], Scores]:
    """Builds the function that scores positions from their logits.

    Args:
        logits: ``features of c positions -> [P, G, c, V]``, float32, already divided by the temperature.
        ref_logits: the same of the reference, from the same features; None: no KL is computed.
        entropy: whether to compute entropies.

    Returns:
        ``(features, tokens [P, G, c]) -> Scores`` with leaves ``[P, G, c]``.
    """

    def read(features: Any, tokens: Int[Array, "P G c"]) -> Scores:
        ours = logits(features)
        return Scores(
            log_probs=_everywhere(log_prob_of)(ours, tokens),
            entropy=_everywhere(entropy_of)(ours) if entropy else None,
            full_kl=None if ref_logits is None else _everywhere(full_kl_of)(ours, ref_logits(features)),
        )

    return read


def score_positions(
    read: Callable[[Any, Int[Array, "P G c"]], Scores],
    tokens: Int[Array, "P G T"],
    mask: Bool[Array, "P G T"],
    features: Any,
    *,
    positions_per_chunk: int,
) -> Scores:
    """Scores every completion token from features of its position, so that ``[P, G, T, V]`` need not exist.

    Args:
        read: scores c positions, see ``read_logits``.
        tokens: the tokens that were chosen ``[P, G, T]``; not read where masked.
        mask: True where a token is scored ``[P, G, T]``.
        features: pytree of ``[P, G, T, ...]``, what is read of each position; not read where masked, so that even a NaN
            there reaches neither value nor gradient.
        positions_per_chunk: how many positions to read at once, c. Several chunks are recomputed in the backward pass,
            a single one is kept.

    Returns:
        Scores with ``[P, G, T]`` float32 leaves, exactly 0 where masked, in value and gradient.
    """

    def score_chunk(chunk: tuple) -> Scores:
        features, tokens, mask = chunk
        features = jax.tree.map(lambda x: jnp.where(jnp.expand_dims(mask, range(3, x.ndim)), x, 0), features)
        scores = read(features, jnp.where(mask, tokens, 0))
        return jax.tree.map(lambda values: jnp.where(mask, values, 0), scores)

    return _in_chunks(score_chunk, (features, tokens, mask), tokens.shape[2], positions_per_chunk)


def _everywhere(one: Callable) -> Callable:
    """Maps a function of one position over ``[P, G, c]``."""
    return jax.vmap(jax.vmap(jax.vmap(one)))


def _in_chunks(f: Callable, inputs: Any, length: int, size: int) -> Any:
    """Applies f to runs of ``size`` positions of axis 2 in turn, keeping only inputs and outputs for the gradient."""
    if size >= length:
        return f(inputs)
    count = -(-length // size)

    def split(x: Array) -> Array:
        padding = [(0, count * size - length if axis == 2 else 0) for axis in range(x.ndim)]
        return jnp.moveaxis(jnp.pad(x, padding).reshape(*x.shape[:2], count, size, *x.shape[3:]), 2, 0)

    def join(x: Array) -> Array:
        return jnp.moveaxis(x, 0, 2).reshape(*x.shape[1:3], count * size)[:, :, :length]

    return jax.tree.map(join, jax.lax.map(jax.checkpoint(f), jax.tree.map(split, inputs)))
