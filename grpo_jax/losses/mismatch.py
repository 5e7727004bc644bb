"""Correction of the mismatch between the sampler's numbers and the trainer's for the same weights.

Each factory returns ``(old_log_probs [T], behaviour_log_probs [T], mask [T]) -> weights [T]``, detached, multiplied
into every term of the token's loss, KL and entropy included: all of them are expectations over the sampler's choices.
Tokens with weight 0 stay in the denominator of the reduction. A NaN sampler log-prob (unknown) gets weight 1 and is
counted.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from grpo_jax.ratios import bounded_exp


@runtime_checkable
class Mismatch(Protocol):
    """A mismatch correction."""

    def __call__(
        self,
        old_log_probs: Float[Array, " T"],
        behaviour_log_probs: Float[Array, " T"],
        mask: Bool[Array, " T"],
    ) -> Float[Array, " T"]:
        """Returns the weight of each token, >= 0."""
        ...


def truncated_token(cap: float = 2.0) -> Mismatch:
    """Builds min(pi_old / mu, cap) per token (truncated importance sampling).

    Args:
        cap: largest weight, >= 1.

    Raises:
        ValueError: cap below 1.

    References: Yao et al., "Your efficient RL framework secretly brings you off-policy RL training" (2025).
    """
    _check_cap("truncated_token", cap)
    return _per_token(lambda ratio: jnp.minimum(ratio, cap))


def truncated_sequence(cap: float = 2.0) -> Mismatch:
    """Builds min(prod_t pi_old / mu, cap), one weight for all tokens of a completion.

    Args:
        cap: largest weight, >= 1. The product over T tokens moves far more than one token's ratio.

    Raises:
        ValueError: cap below 1.
    """
    _check_cap("truncated_sequence", cap)
    return _per_sequence(lambda ratio: jnp.minimum(ratio, cap))


def masked_token(low: float = 0.5, high: float = 5.0) -> Mismatch:
    """Builds pi_old / mu per token where it lies in [low, high], else 0 (IcePop).

    Args:
        low: smallest ratio kept, in [0, 1].
        high: largest ratio kept, >= 1.

    Raises:
        ValueError: bounds that do not hold 1.
    """
    _check_bounds("masked_token", low, high)
    return _per_token(lambda ratio: jnp.where((ratio >= low) & (ratio <= high), ratio, 0))


def masked_sequence(low: float = 0.5, high: float = 2.0) -> Mismatch:
    """Builds prod_t pi_old / mu where it lies in [low, high], else 0 for the whole completion.

    Args:
        low: smallest ratio kept, in [0, 1].
        high: largest ratio kept, >= 1.

    Raises:
        ValueError: bounds that do not hold 1.
    """
    _check_bounds("masked_sequence", low, high)
    return _per_sequence(lambda ratio: jnp.where((ratio >= low) & (ratio <= high), ratio, 0))


def off_policy_sequences(
    delta: float,
) -> Callable[[Array, Array, Array, Array], Array]:
    """Builds the rule that drops completions with a negative advantage which the policy has already left.

    A completion is dropped when A < 0 and mean_t log(mu / pi) > delta. It stays in the denominator.

    Args:
        delta: threshold in nats per token, > 0.

    Returns:
        ``(log_probs [T], behaviour_log_probs [T], advantage [], mask [T]) -> keep, bool []``.

    Raises:
        ValueError: delta not positive.

    References: DeepSeek-V3.2 (arXiv 2512.02556), eq. 9.
    """
    if not delta > 0:
        raise ValueError(f"mismatch.off_policy_sequences: delta is {delta}; it must be > 0 nats per token")

    def keep(
        log_probs: Float[Array, " T"],
        behaviour_log_probs: Float[Array, " T"],
        advantage: Float[Array, ""],
        mask: Bool[Array, " T"],
    ) -> Bool[Array, ""]:
        known = mask & ~jnp.isnan(behaviour_log_probs)
        distance = jnp.where(known, behaviour_log_probs, 0) - jnp.where(known, log_probs, 0)
        mean = jnp.sum(distance) / jnp.maximum(jnp.sum(known), 1)
        return ~((advantage < 0) & (mean > delta))

    return keep


def _log_ratios(old_log_probs: Array, behaviour_log_probs: Array, mask: Array) -> Float[Array, " T"]:
    known = mask & ~jnp.isnan(behaviour_log_probs)
    return jnp.where(known, old_log_probs, 0) - jnp.where(known, behaviour_log_probs, 0)


def _per_token(bound: Callable[[Array], Array]) -> Mismatch:
    def weights(
        old_log_probs: Float[Array, " T"], behaviour_log_probs: Float[Array, " T"], mask: Bool[Array, " T"]
    ) -> Float[Array, " T"]:
        return bound(bounded_exp(_log_ratios(old_log_probs, behaviour_log_probs, mask)))

    return weights


def _per_sequence(bound: Callable[[Array], Array]) -> Mismatch:
    def weights(
        old_log_probs: Float[Array, " T"], behaviour_log_probs: Float[Array, " T"], mask: Bool[Array, " T"]
    ) -> Float[Array, " T"]:
        ratio = bounded_exp(jnp.sum(_log_ratios(old_log_probs, behaviour_log_probs, mask)))
        return jnp.broadcast_to(bound(ratio), old_log_probs.shape)

    return weights


def _check_cap(name: str, cap: float) -> None:
    if not cap >= 1:
        raise ValueError(f"mismatch.{name}: cap is {cap}; it must be >= 1, the weight of a perfect match (2 is common)")


def _check_bounds(name: str, low: float, high: float) -> None:
    if not 0 <= low <= 1 <= high:
        raise ValueError(
            f"mismatch.{name}: bounds are [{low}, {high}]; they must hold 1, the ratio of a perfect match: low in "
            "[0, 1], high >= 1"
        )
