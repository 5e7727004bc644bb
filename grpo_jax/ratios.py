"""Ratios of probabilities between two policies, safe at masked positions and at overflow.

Every function takes the log-probabilities of one completion ``[T]`` and its mask. Masked entries are replaced *before*
the exponential: a ``where`` after it would leave 0 * inf = NaN in the gradient.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

EXPONENT_LIMIT = 20.0
"""Largest exponent taken; e^20 = 4.9e8 is far from float32's overflow even after products with rewards and beta."""


def log_ratio(
    log_probs: Float[Array, " T"], other_log_probs: Float[Array, " T"], mask: Bool[Array, " T"]
) -> Float[Array, " T"]:
    """Returns log(pi / other) per token in nats; exactly 0 where masked, in value and gradient."""
    return jnp.where(mask, log_probs, 0) - jnp.where(mask, other_log_probs, 0)


def bounded_exp(exponent: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns exp(x), continued by its tangent above ``EXPONENT_LIMIT``.

    Value and gradient stay finite and the gradient never dies, unlike with a clamp. At minus infinity it is 0.
    """
    return jnp.exp(jnp.minimum(exponent, EXPONENT_LIMIT)) * (1 + jnp.maximum(exponent - EXPONENT_LIMIT, 0))


def sequence_ratio(log_ratios: Float[Array, " T"]) -> Float[Array, ""]:
    """Returns pi(y) / mu(y), the product over the completion's tokens; ``log_ratios`` are 0 where masked."""
    return bounded_exp(jnp.sum(log_ratios))


def causal_ratio(log_ratios: Float[Array, " T"]) -> Float[Array, " T"]:
    """Returns w_{1:t}, the ratio of everything up to and including token t."""
    return bounded_exp(jnp.cumsum(log_ratios))


def prefix_ratio(log_ratios: Float[Array, " T"]) -> Float[Array, " T"]:
    """Returns w_{1:t-1}, the ratio of everything before token t; 1 at the first token."""
    return bounded_exp(jnp.cumsum(log_ratios) - log_ratios)


def geometric_mean_ratio(log_ratios: Float[Array, " T"], mask: Bool[Array, " T"]) -> Float[Array, ""]:
    """Returns (pi(y) / mu(y))^(1/|y|), GSPO's ratio: no importance weight, but of the scale of one token's."""
    length = jnp.maximum(jnp.sum(mask), 1)
    return bounded_exp(jnp.sum(log_ratios) / length)


def score_carrier(log_probs: Float[Array, " T"]) -> Float[Array, " T"]:
    """Returns pi_t / sg(pi_t): value 1, gradient s_t. Turns a detached weight into a score-function gradient."""
    return jnp.exp(log_probs - jax.lax.stop_gradient(log_probs))
