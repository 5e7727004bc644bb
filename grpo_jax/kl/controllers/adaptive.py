"""Betas that react to the measured KL: raised above the target, lowered below it."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from grpo_jax.kl.controllers.controller import (
    Controller,
    KLStatistic,
    Scalar,
    check_positive,
    check_statistic,
)


class AdaptiveState(NamedTuple):
    """The current beta, ``[]`` float32."""

    beta: Float[Array, ""]


class IntegralState(NamedTuple):
    """The current beta and the accumulated error (KL - target) in nats, both ``[]`` float32."""

    beta: Float[Array, ""]
    integral: Float[Array, ""]


def proportional(
    beta: float | int,
    target: float | int,
    alpha: float | int = 0.2,
    *,
    floor: float | int = 1e-6,
    ceiling: float | int = 10.0,
    statistic: KLStatistic = "nats_per_token",
) -> Controller:
    r"""Builds the proportional controller.

    .. math:: \beta \leftarrow \mathrm{clip}(\beta (1 + \alpha (KL - target)), floor, ceiling)

    1. The article sets no bounds. Without a floor a KL more than 1/alpha below the target makes beta negative, and a
       beta of 0 stays 0 for ever, since each update multiplies.
    2. The error is in nats, not relative to the target: at twice a target of .05 and alpha .2 beta grows by 1 %, at
       twice a target of 5 it doubles. ``clipped_proportional`` reacts to the relative error.

    Args:
        beta: the first beta, in [floor, ceiling].
        target: the KL aimed at, in nats of ``statistic``, positive.
        alpha: the gain per nat, positive. .1 to .3 is right for a KL of about 1 nat, so *per sequence*: beta then
            moves by 10 to 30 % of itself where KL is 0 or twice the target. It is alpha times target that counts, so
            for another target give .1 / target to .3 / target: at 5 nats per sequence .2 doubles beta and throws it on
            the floor, and at .05 nats per token it moves beta by 1 %, 70 updates for a doubling. Less where the policy
            answers within few updates and beta swings.
        floor: the smallest beta, positive.
        ceiling: the largest beta.
        statistic: the KL that ``target`` speaks of.

    Raises:
        ValueError: an argument is outside its range.
    """
    _check("proportional", beta, target, floor, ceiling, statistic)
    check_positive("proportional", "0.1 / target to 0.3 / target is usual", alpha=alpha)
    return _multiplicative(
        lambda kl, samples: 1 + alpha * (kl - target),
        beta,
        (floor, ceiling),
        statistic,
        f"proportional, alpha {alpha:g}, to a KL of {target:g} {_unit(statistic)}, from beta {beta:g}",
    )


def clipped_proportional(
    beta: float | int,
    target: float | int,
    horizon: float | int,
    *,
    floor: float | int = 1e-6,
    ceiling: float | int = 10.0,
    statistic: KLStatistic = "nats_per_token",
) -> Controller:
    r"""Builds the clipped proportional controller of the PPO libraries.

    .. math:: \beta \leftarrow \mathrm{clip}(\beta (1 + e\, n / horizon), floor, ceiling), \quad
        e = \mathrm{clip}(KL / target - 1, -.2, .2)

    1. n is the number of completions since the last update, not the number of updates. From beta .2 with target .1,
       horizon 100, KL .2 and n 10 it goes to .204.
    2. The libraries set no bounds: with n = 10 horizon and KL 0 their beta changes its sign. Here it stops at the
       floor, which is positive because a beta of 0 would stay 0 for ever.
    3. The paper writes ``beta *= 1 + .1 e`` per batch; the libraries' ``n / horizon`` replaces its gain.

    Args:
        beta: the first beta, in [floor, ceiling].
        target: the KL aimed at, in nats of ``statistic``, positive. The paper's 6 and 10 are per sequence.
        horizon: completions over which beta may change by a factor of about e^.2, positive.
        floor: the smallest beta, positive.
        ceiling: the largest beta.
        statistic: the KL that ``target`` speaks of.

    Raises:
        ValueError: an argument is outside its range.

    References:
        Ziegler et al. 2019, Fine-tuning language models from human preferences, arXiv 1909.08593, section 2.2.
    """
    _check("clipped_proportional", beta, target, floor, ceiling, statistic)
    check_positive("clipped_proportional", "it counts completions; 10000 is usual", horizon=horizon)
    return _multiplicative(
        lambda kl, samples: 1 + jnp.clip(kl / target - 1, -0.2, 0.2) * samples / horizon,
        beta,
        (floor, ceiling),
        statistic,
        f"clipped proportional, horizon {horizon:g} completions, to a KL of {target:g} {_unit(statistic)}, "
        f"from beta {beta:g}",
    )


def proportional_integral(
    beta: float | int,
    target: float | int,
    horizon: float | int,
    *,
    proportional_gain: float | int = 0.1,
    integral_gain: float | int = 0.01,
    floor: float | int = 1e-6,
    ceiling: float | int = 10.0,
    statistic: KLStatistic = "nats_per_token",
) -> Controller:
    r"""Builds the proportional-integral controller.

    .. math:: \beta \leftarrow \mathrm{clip}\Big(\beta \Big(1 + .1 \frac{e}{target}
        + .01 \frac{\sum e}{horizon \cdot target}\Big), 10^{-6}, 10\Big), \quad e = KL - target

    The sum includes the current error. In numbers where this differs from the article:

    1. The integral term is held within half the proportional gain (+-.05). A KL of 0 moves the proportional term by
       -.1 and no further, so with an unbounded sum one long excursion above the target would keep raising beta for as
       long again after KL had gone. With the limit such a KL lowers beta by at least 5 % from the first update on.
    2. While beta rests on a bound, an error that pushes it further out is not added: it could not act when it was
       measured and would only delay the return.
    3. The sum is 0 again where ``then`` hands over.

    Args:
        beta: the first beta, in [floor, ceiling].
        target: the KL aimed at, in nats of ``statistic``, positive.
        horizon: updates over which the integral acts, positive.
        proportional_gain: weight of the relative error, positive.
        integral_gain: weight of the accumulated relative error, positive.
        floor: the smallest beta, positive.
        ceiling: the largest beta.
        statistic: the KL that ``target`` speaks of.

    Raises:
        ValueError: an argument is outside its range.
    """
    place = "proportional_integral"
    _check(place, beta, target, floor, ceiling, statistic)
    check_positive(place, "it counts updates; 100 is a start", horizon=horizon)
    check_positive(
        place, "the article has 0.1 and 0.01", proportional_gain=proportional_gain, integral_gain=integral_gain
    )
    most = 0.5 * proportional_gain / integral_gain * horizon * target
    check_positive(place, "choose horizon, target and gains of usual size", integral_limit=most)

    def init() -> IntegralState:
        return IntegralState(jnp.float32(beta), jnp.float32(0))

    def update(state: IntegralState, kl: Scalar, samples: Scalar) -> IntegralState:
        del samples
        error = jnp.asarray(kl, jnp.float32) - target
        outward = ((state.beta >= ceiling) & (error > 0)) | ((state.beta <= floor) & (error < 0))
        integral = jnp.clip(state.integral + jnp.where(outward, 0, error), -most, most)
        factor = 1 + proportional_gain * error / target + integral_gain * integral / (horizon * target)
        known = jnp.isfinite(kl)
        return IntegralState(
            jnp.where(known, jnp.clip(state.beta * factor, floor, ceiling), state.beta),
            jnp.where(known, integral, state.integral),
        )

    def start_from(state: IntegralState, beta: Float[Array, ""]) -> IntegralState:
        return IntegralState(jnp.clip(beta, floor, ceiling), jnp.zeros_like(state.integral))

    description = (
        f"proportional-integral, gains {proportional_gain:g} and {integral_gain:g}, horizon {horizon:g} updates, "
        f"to a KL of {target:g} {_unit(statistic)}, from beta {beta:g}, within [{floor:g}, {ceiling:g}]"
    )
    return Controller(init, _current, update, statistic, description, adaptive=True, start_from=start_from)


def _multiplicative(
    factor: Callable,
    beta: float | int,
    bounds: tuple[float | int, float | int],
    statistic: KLStatistic,
    description: str,
) -> Controller:
    """A controller that multiplies beta by ``factor(kl, samples)`` and keeps it within bounds."""

    def init() -> AdaptiveState:
        return AdaptiveState(jnp.float32(beta))

    def update(state: AdaptiveState, kl: Scalar, samples: Scalar) -> AdaptiveState:
        kl, samples = jnp.asarray(kl, jnp.float32), jnp.asarray(samples, jnp.float32)
        new = jnp.clip(state.beta * factor(kl, samples), *bounds)
        return AdaptiveState(jnp.where(jnp.isfinite(kl), new, state.beta))

    def start_from(state: AdaptiveState, beta: Float[Array, ""]) -> AdaptiveState:
        return state._replace(beta=jnp.clip(beta, *bounds))

    description = f"{description}, within [{bounds[0]:g}, {bounds[1]:g}]"
    return Controller(init, _current, update, statistic, description, adaptive=True, start_from=start_from)


def _check(
    place: str, beta: float | int, target: float | int, floor: float | int, ceiling: float | int, statistic: str
) -> None:
    """Raises ValueError unless the arguments that all adaptive controllers share are within their ranges."""
    check_positive(place, "for a run without KL use constant(0)", beta=beta)
    check_positive(place, "it is the KL aimed at, in nats; 0.05 per token is usual", target=target)
    check_positive(place, "a beta of 0 would stay 0; 1e-6 and 10 are usual", floor=floor, ceiling=ceiling)
    check_statistic(place, statistic)
    if not floor <= ceiling:
        raise ValueError(f"{place}: floor={floor} exceeds ceiling={ceiling}; exchange them")
    if not floor <= beta <= ceiling:
        raise ValueError(f"{place}: beta={beta} is outside [{floor}, {ceiling}]; move it or the bounds")


def _current(state: AdaptiveState | IntegralState) -> Float[Array, ""]:
    return state.beta


def _unit(statistic: KLStatistic) -> str:
    return statistic.replace("_", " ")
