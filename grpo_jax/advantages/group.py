"""Statistics of one group that masked members never touch and that are exact where all rewards are equal."""

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from grpo_jax.statistics import masked

Rewards = Float[Array, "G"] | Float[Array, "G K"]
"""The rewards of one group: one of each member ``[G]``, or several ``[G, K]``; not finite where not scorable."""


def scorable(rewards: Rewards, mask: Bool[Array, "G"]) -> Bool[Array, "G"]:
    """Returns which members have a reward: unmasked, and at least one of their rewards is finite."""
    chex.assert_rank(rewards, {1, 2})
    chex.assert_rank(mask, 1)
    chex.assert_equal_shape_prefix([rewards, mask], 1)
    chex.assert_type(mask, bool)
    finite = jnp.isfinite(rewards)
    return mask & (finite if rewards.ndim == 1 else jnp.any(finite, axis=1))


def spread(rewards: Rewards, mask: Bool[Array, "G"]) -> Float[Array, ""]:
    """Returns by how much the members' rewards differ: max - min, which is exact where a std is not.

    Args:
        rewards: rewards of one group ``[G]``, or several of each member ``[G, K]``; not finite where not scorable.
        mask: members that count ``[G]``.

    Returns:
        max - min of the scorable members, ``[]``, never negative; with several rewards the largest of theirs. Exactly
        0 where all are equal and where fewer than two members are scorable.
    """
    if rewards.ndim == 2:
        return jnp.max(jax.vmap(spread, in_axes=(1, None))(rewards, mask), initial=0)
    mask = scorable(rewards, mask)
    highest = jnp.max(rewards, where=mask, initial=-jnp.inf)
    lowest = jnp.min(rewards, where=mask, initial=jnp.inf)
    return jnp.where(jnp.sum(mask) < 2, 0, highest - lowest)


def deviations(rewards: Float[Array, "G"], mask: Bool[Array, "G"]) -> Float[Array, "G"]:
    """Returns each unmasked reward minus their mean; 0 where masked.

    The lowest reward is subtracted first: ``x - x`` is 0 whatever x is, so equal rewards deviate by exactly 0, which
    ``x - mean`` does not guarantee (.1 x 8 misses by an ulp), and a large common level costs no digits. Any constant
    may be subtracted, so no gradient flows through the choice of this one.
    """
    lowest = jnp.min(jax.lax.stop_gradient(rewards), where=mask, initial=jnp.inf)
    offsets = masked(rewards - lowest, mask)
    return masked(offsets - jnp.sum(offsets) / jnp.maximum(jnp.sum(mask), 1), mask)


def standard_deviation(centred: Float[Array, "*shape"], mask: Bool[Array, "*shape"], ddof: int) -> Float[Array, ""]:
    """Returns the standard deviation of unmasked values whose mean was subtracted before (the second pass).

    Values are divided by the largest before they are squared, so neither 1e30 nor 1e-30 leaves float32; the gradient
    is finite at 0 too.

    Args:
        centred: values minus their mean, 0 where masked.
        mask: values that count.
        ddof: what is subtracted from their number in the denominator.

    Returns:
        ``sqrt(sum(centred^2) / (n - ddof))``, ``[]``; exactly 0 where all values are 0 or ``n <= ddof``.
    """
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(masked(centred, mask)), initial=0))
    degrees = jnp.sum(mask) - ddof
    defined = (largest > 0) & (degrees > 0)
    scale = jnp.where(largest > 0, largest, 1)
    squares = jnp.sum(jnp.square(masked(centred, mask) / scale))
    variance = jnp.where(defined, squares, 1) / jnp.where(defined, degrees, 1)
    return jnp.where(defined, scale * jnp.sqrt(variance), 0)


def divided(
    values: Float[Array, "*shape"], std: Float[Array, ""] | Float[Array, "*shape"], epsilon: float | int
) -> Float[Array, "*shape"]:
    """Returns values / (std + epsilon); 0 where std is 0, so that epsilon 0 is allowed."""
    return jnp.where(std > 0, values / (jnp.where(std > 0, std, 1) + epsilon), 0)
