"""Advantages of several rewards per member: summed first, or standardised one by one."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from grpo_jax.advantages.advantage import Advantage
from grpo_jax.advantages.batch import scaled_by_batch
from grpo_jax.advantages.group import Rewards, scorable, spread
from grpo_jax.advantages.single import check_standardisation, standardised
from grpo_jax.arguments import check_built
from grpo_jax.statistics import masked


def weighted_sum(weights: Sequence[float | int], inner: Advantage) -> Advantage:
    r"""Builds an advantage of the weighted sum of several rewards.

    .. math:: r_i = \sum_k w_k r_{ik}, \quad A = \mathrm{inner}(r)

    1. A reward that could not be scored drops out of its member's sum; a member drops out when none could (as in TRL).
    2. Sums that agree to within the rounding of adding K terms count as equal, so that .1 + .7 and .8 in float32 do
       not make a degenerate group look informative.

    Rewards of shape ``[G]`` are taken as already summed: so a KL return enters, ``compute(r) - beta * compute(kl)``.

    Args:
        weights: one finite weight per reward, not all 0; negative ones are penalties.
        inner: what is done with the sum; it decides linearity, target and what happens across the batch.

    Returns:
        An advantage of rewards ``[G, K]``, whose spread is that of the weighted sum.

    Raises:
        ValueError: a weight is not finite, or none is other than 0; while tracing, K is not the number of weights.
        TypeError: an inner advantage that is its own factory, uncalled.
    """
    check_built("weighted_sum", Advantage, inner=inner)
    bound = _check_weights("weighted_sum", weights)

    def compute(rewards: Rewards, mask: Bool[Array, "G"]) -> Float[Array, "G"]:
        return inner.compute(_combined(bound, rewards, mask), scorable(rewards, mask))

    def spread_of_sum(rewards: Rewards, mask: Bool[Array, "G"]) -> Float[Array, ""]:
        return inner.spread(_combined(bound, rewards, mask), scorable(rewards, mask))

    return Advantage(
        f"weighted_sum({bound}, {inner.name})",
        compute,
        inner.linear,
        inner.reward_target,
        inner.across_batch,
        spread_of_sum,
    )


def separately_standardised(weights: Sequence[float | int], ddof: int = 1, epsilon: float | int = 1e-4) -> Advantage:
    r"""Builds GDPO: each reward standardised in its group, the weighted sum of them divided by the batch's deviation.

    .. math:: A_{pi} = a_{pi} / (\mathrm{std}_{qj}(a_{qj}) + \epsilon), \quad
        a_{pi} = \sum_k w_k \frac{r_{pik} - \bar r_{pk}}{\mathrm{std}_i(r_{pik}) + \epsilon}

    A reward on which a group agrees, or that fewer than two of its members have, contributes exactly 0 there, and so
    no reward drowns another by its scale.

    1. The batch mean, which the paper subtracts, is 0 already (see ``batch_whitened``).
    2. A group is degenerate only if it agrees on every reward: ``spread`` is the largest of the rewards' spreads.

    Args:
        weights: one finite weight per reward, not all 0. A common factor changes nothing but the part of epsilon.
        ddof: 1 for the sample's standard deviation, 0 for the population's; in the group and in the batch.
        epsilon: added to each standard deviation outside the root, not negative.

    Returns:
        An advantage of rewards ``[G, K]``.

    Raises:
        ValueError: a weight is not finite, or none is other than 0; ddof is neither 0 nor 1; epsilon is negative or
            not finite; while tracing, K is not the number of weights.

    References:
        Liu et al. 2026, GDPO: Group reward-decoupled normalization policy optimization, arXiv 2601.05242.
    """
    bound = _check_weights("separately_standardised", weights)
    check_standardisation("separately_standardised", ddof, epsilon)
    one_reward = standardised(ddof, epsilon).compute

    def compute(rewards: Float[Array, "G K"], mask: Bool[Array, "G"]) -> Float[Array, "G"]:
        _check_count("separately_standardised", bound, rewards)
        each = jax.vmap(one_reward, in_axes=(1, None), out_axes=1)(rewards, mask)
        return jnp.sum(each * jnp.asarray(bound, each.dtype)[None, :], axis=1)

    return Advantage(
        f"separately_standardised({bound}, ddof={ddof}, epsilon={epsilon:g})",
        compute,
        linear=False,
        reward_target="another utility",
        across_batch=scaled_by_batch(ddof, epsilon),
    )


def _combined(weights: tuple[float, ...], rewards: Rewards, mask: Bool[Array, "G"]) -> Float[Array, "G"]:
    """The weighted sum of each member's finite rewards, equal where it differs by no more than rounding."""
    if rewards.ndim == 1:
        return rewards
    _check_count("weighted_sum", weights, rewards)
    mask = scorable(rewards, mask)
    rewards = rewards.astype(jnp.promote_types(rewards.dtype, jnp.float32))
    terms = masked(rewards, jnp.isfinite(rewards) & mask[:, None]) * jnp.asarray(weights, rewards.dtype)[None, :]
    total = jnp.sum(terms, axis=1)
    rounding = len(weights) * jnp.finfo(total.dtype).eps * jnp.max(jnp.sum(jnp.abs(terms), axis=1))
    lowest = jnp.min(total, where=mask, initial=jnp.inf)
    return masked(jnp.where(spread(total, mask) <= rounding, lowest, total), mask)


def _check_weights(place: str, weights: Sequence[float | int]) -> tuple[float, ...]:
    bound = tuple(float(weight) for weight in weights)
    if not all(math.isfinite(weight) for weight in bound):
        raise ValueError(f"{place}: weights={bound} must be finite; give one number per reward")
    if not any(bound):
        raise ValueError(f"{place}: weights={bound} leave no reward; give at least one that is not 0")
    return bound


def _check_count(place: str, weights: tuple[float, ...], rewards: Float[Array, "G K"]) -> None:
    if rewards.shape[1] != len(weights):
        raise ValueError(
            f"{place}: {rewards.shape[1]} rewards of each member but {len(weights)} weights; give one weight per reward"
        )
