"""Advantages of one reward per member, each within its own group."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from grpo_jax.advantages.advantage import Advantage, from_function
from grpo_jax.advantages.group import deviations, divided, standard_deviation
from grpo_jax.statistics import mean_of


def centred() -> Advantage:
    r"""Builds the reward minus the group's mean (Dr. GRPO).

    .. math:: A_i = r_i - \bar r

    The member's own reward is part of the baseline, so the expected gradient is exactly (G-1)/G of that of E[R]:
    a smaller learning rate, no other direction. ``leave_one_out`` has no such factor.

    References:
        Liu et al. 2025, Understanding R1-Zero-like training, arXiv 2503.20783.
    """
    return from_function(deviations, name="centred", linear=True, reward_target="(G-1)/G * E[R]")


def standardised(ddof: int = 1, epsilon: float | int = 1e-4) -> Advantage:
    r"""Builds the reward minus the group's mean, divided by its standard deviation (GRPO).

    .. math:: A_i = \frac{r_i - \bar r}{\sqrt{\sum_j (r_j - \bar r)^2 / (G - ddof)} + \epsilon}

    Dividing follows another utility than E[R]: 2 arcsin sqrt(p) for 0/1 rewards as G grows. Libraries differ, and so
    do their numbers for [1, 0, 0, 0]: 1.4997 with ddof 1, epsilon 1e-4 (TRL; the default here), 1.5 with epsilon 1e-6
    (verl, SkyRL, slime, Tunix), 1.7321 with ddof 0, epsilon near 0 (open-instruct).

    1. Equal rewards give exactly 0; the formula as written gives up to .96 (.7 x 16 in float32, epsilon 1e-9).
    2. A KL return is never subtracted from the reward before this: in a group of equal rewards it would be blown up
       to unit scale whatever beta is.

    Args:
        ddof: 1 for the sample's standard deviation, 0 for the population's.
        epsilon: added to the standard deviation outside the root, not negative.

    Raises:
        ValueError: ddof is neither 0 nor 1; epsilon is negative or not finite.

    References:
        Shao et al. 2024, DeepSeekMath, arXiv 2402.03300, section 4.1.2.
    """
    check_standardisation("standardised", ddof, epsilon)

    def formula(rewards: Float[Array, "G"], mask: Bool[Array, "G"]) -> Float[Array, "G"]:
        differences = deviations(rewards, mask)
        return divided(differences, standard_deviation(differences, mask, ddof), epsilon)

    return from_function(
        formula, name=f"standardised(ddof={ddof}, epsilon={epsilon:g})", reward_target="another utility"
    )


def leave_one_out() -> Advantage:
    r"""Builds the reward minus the mean of the *other* members' rewards (RLOO).

    .. math:: A_i = r_i - \frac{1}{G-1} \sum_{j \ne i} r_j = \frac{G}{G-1} (r_i - \bar r)

    The baseline is independent of the member it is subtracted from, so the expected gradient is that of E[R].

    Raises:
        ValueError: while tracing, for a group of one: there is no other member. A group of several of which fewer
            than two are scorable has advantage 0 instead.

    References:
        Ahmadian et al. 2024, Back to basics, arXiv 2402.14740, equation 8.
    """

    def formula(rewards: Float[Array, "G"], mask: Bool[Array, "G"]) -> Float[Array, "G"]:
        _check_group("leave_one_out", rewards)
        return _leave_one_out(rewards, mask)

    return from_function(formula, name="leave_one_out", linear=True, reward_target="E[R]")


def leave_one_out_standardised(epsilon: float | int = 1e-6) -> Advantage:
    r"""Builds the leave-one-out advantage divided by the standard deviation of the *other* members' rewards.

    .. math:: A_i = \frac{r_i - \bar r_{-i}}{s_{-i} + \epsilon}, \quad s_{-i}: \text{ddof } 1

    The divisor knows nothing of the member, so on each prompt the expected gradient is that of E[R] times the mean of
    1 / (s + epsilon), a positive number. Over several prompts that number is a weight: the more a prompt's rewards
    agree, the more it counts.

    1. Where the others' standard deviation is 0 (the odd one of [1, 0, 0, 0]) nothing is divided; libraries that
       divide by epsilon there give that member an advantage of a million.
    2. Two passes over the others of each member: subtracting one square from a sum of squares fails in float32.

    Args:
        epsilon: added to the standard deviation outside the root, positive: a standard deviation of others that
            differ by rounding is as small as rounding.

    Raises:
        ValueError: epsilon is not positive or not finite; while tracing, a group of one.
    """
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ValueError(
            f"leave_one_out_standardised: epsilon={epsilon} must be positive and finite, since the others' standard "
            "deviation may be arbitrarily small; 1e-6 is usual"
        )

    def formula(rewards: Float[Array, "G"], mask: Bool[Array, "G"]) -> Float[Array, "G"]:
        _check_group("leave_one_out_standardised", rewards)
        advantages = _leave_one_out(rewards, mask)
        others = mask[None, :] & ~jnp.eye(len(mask), dtype=bool)
        std = jax.vmap(lambda member: standard_deviation(deviations(rewards, member), member, 1))(others)
        return jnp.where(std > 0, divided(advantages, std, epsilon), advantages)

    return from_function(
        formula,
        name=f"leave_one_out_standardised(epsilon={epsilon:g})",
        reward_target="E[R] of each prompt, times a positive factor that differs from prompt to prompt",
    )


def max_rl() -> Advantage:
    r"""Builds the deviation from the group's mean, divided by that mean (MaxRL), for rewards in [0, 1].

    .. math:: A_i = (r_i - \bar r) / \bar r

    For 0/1 rewards with success probability p it follows the log-likelihood of success cut off after G - 1 terms,
    ``-sum_{k=1}^{G-1} (1 - p)^k / k``: E[R] for G = 2, log p as G grows.

    1. 0 where the mean is 0, as published, and where it is negative, where dividing would turn every sign round.
    2. ``|A| <= G - 1`` holds for rewards that are not negative, which this formula is made for.

    References:
        Tajwar et al. 2026, Maximum likelihood reinforcement learning, arXiv 2602.02710.
    """

    def formula(rewards: Float[Array, "G"], mask: Bool[Array, "G"]) -> Float[Array, "G"]:
        mean = mean_of(rewards, mask).compute()
        return divided(deviations(rewards, mask), mean, 0)

    return from_function(formula, name="max_rl", reward_target="another utility")


def check_standardisation(place: str, ddof: int, epsilon: float | int) -> None:
    """Raises ValueError unless ddof is 0 or 1 and epsilon is finite and not negative."""
    if ddof not in (0, 1):
        raise ValueError(f"{place}: ddof={ddof} must be 0 (population) or 1 (sample; what TRL and verl use)")
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise ValueError(f"{place}: epsilon={epsilon} must be finite and not negative; 1e-4 is TRL's")


def _leave_one_out(rewards: Float[Array, "G"], mask: Bool[Array, "G"]) -> Float[Array, "G"]:
    count = jnp.sum(mask, dtype=rewards.dtype)
    return deviations(rewards, mask) * (count / jnp.maximum(count - 1, 1))


def _check_group(place: str, rewards: Float[Array, "G"]) -> None:
    if len(rewards) < 2:
        raise ValueError(
            f"{place}: a group of {len(rewards)} has no other members to compare with; use a group size of 2 or more"
        )
