"""Betas that depend on time alone, and their succession by another controller."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from grpo_jax.arguments import check_built
from grpo_jax.kl.controllers.controller import (
    Controller,
    Scalar,
    State,
    check_not_negative,
    check_positive,
    check_steps,
)


class ScheduleState(NamedTuple):
    """Updates seen so far, ``[]`` int32."""

    step: Int[Array, ""]


class SuccessionState(NamedTuple):
    """State of ``then``: updates seen so far ``[]``, and the states of both controllers."""

    step: Int[Array, ""]
    first: State
    second: State


def constant(beta: float | int) -> Controller:
    """Builds a beta that never changes; 0 means no KL term, and no reference policy is stored.

    Args:
        beta: not negative.

    Raises:
        ValueError: beta is negative, not finite, or so small that float32 makes it 0 (0 is to be meant, not met).
    """
    check_not_negative("constant", "0 switches the KL term off, .01 to .05 suits language models", beta=beta)
    return _schedule(lambda step: jnp.float32(beta), f"beta {beta:g} throughout")._replace(always_zero=beta == 0)


def linear_warmup(target: float | int, start: float | int = 0.001, steps: int = 100) -> Controller:
    """Builds a beta that rises linearly and then stays: ``start + (target - start) * min(step / steps, 1)``.

    Args:
        target: the last beta, reached exactly after ``steps`` updates, positive.
        start: the first beta, in [0, target].
        steps: updates of the rise, at least 1.

    Raises:
        ValueError: an argument is outside its range.
    """
    check_positive("linear_warmup", "it is the beta to end with; for none use constant(0)", target=target)
    check_not_negative("linear_warmup", "0.001 is usual", start=start)
    check_steps("linear_warmup", steps)
    if start > target:
        raise ValueError(f"linear_warmup: start={start} exceeds target={target}; to fall use tight_then_loose")
    return _schedule(_line(start, target, steps), f"beta {start:g} to {target:g} over {steps} updates")


def tight_then_loose(start: float | int = 0.1, end: float | int = 0.01, steps: int = 500) -> Controller:
    """Builds a beta that falls linearly and then stays; ``then`` makes it adaptive after that.

    The article says from .1 to .01 over 500 steps and does not say along which curve; this one is a straight line.

    Args:
        start: the first beta, at least ``end``.
        end: the last beta, reached exactly after ``steps`` updates, positive.
        steps: updates of the fall, at least 1.

    Raises:
        ValueError: an argument is outside its range.
    """
    check_positive("tight_then_loose", "0.1 to 0.01 is usual", start=start, end=end)
    check_steps("tight_then_loose", steps)
    if start < end:
        raise ValueError(f"tight_then_loose: start={start} is below end={end}; to rise use linear_warmup")
    return _schedule(_line(start, end, steps), f"beta {start:g} to {end:g} over {steps} updates")


def then(schedule: Controller, steps: int, adaptive: Controller) -> Controller:
    """Builds a succession: the first controller for ``steps`` updates, then the second, from where the first ended.

    An adaptive second controller starts with the beta that the first has after ``steps`` updates (within its own
    bounds) and with nothing accumulated; a schedule starts at its own beginning.

    Args:
        schedule: decides beta before and during the first ``steps`` updates.
        steps: how many updates it is in charge, at least 1.
        adaptive: decides beta afterwards. It names the KL statistic that is fed.

    Raises:
        ValueError: steps is less than 1; both are adaptive and name different KL statistics.
        TypeError: a controller that is its own factory, uncalled.
    """
    check_built("then", Controller, schedule=schedule, adaptive=adaptive)
    check_steps("then", steps)
    if schedule.adaptive and adaptive.adaptive and schedule.statistic != adaptive.statistic:
        raise ValueError(
            f"then: one controller is fed {schedule.statistic} and the other {adaptive.statistic}; state both targets "
            "in one unit and pass statistic= to both"
        )

    def hand_over(state: SuccessionState) -> SuccessionState:
        return state._replace(second=adaptive.start_from(adaptive.init(), schedule.beta(state.first)))

    def init() -> SuccessionState:
        return hand_over(SuccessionState(jnp.int32(0), schedule.init(), adaptive.init()))

    def beta(state: SuccessionState) -> Float[Array, ""]:
        return jnp.where(state.step < steps, schedule.beta(state.first), adaptive.beta(state.second))

    def update(state: SuccessionState, kl: Scalar, samples: Scalar) -> SuccessionState:
        step = _next(state.step)
        during = hand_over(SuccessionState(step, schedule.update(state.first, kl, samples), state.second))
        after = SuccessionState(step, state.first, adaptive.update(state.second, kl, samples))
        return jax.tree.map(lambda a, b: jnp.where(state.step < steps, a, b), during, after)

    def start_from(state: SuccessionState, beta: Float[Array, ""]) -> SuccessionState:
        return hand_over(state._replace(first=schedule.start_from(state.first, beta)))

    return Controller(
        init,
        beta,
        update,
        adaptive.statistic if adaptive.adaptive else schedule.statistic,
        f"{schedule.description}; after {steps} updates {adaptive.description}",
        always_zero=schedule.always_zero and adaptive.always_zero,
        adaptive=schedule.adaptive or adaptive.adaptive,
        start_from=start_from,
    )


def _schedule(beta_at: Callable, description: str) -> Controller:
    """A controller whose beta is a function of the number of updates seen."""

    def init() -> ScheduleState:
        return ScheduleState(jnp.int32(0))

    def beta(state: ScheduleState) -> Float[Array, ""]:
        return beta_at(state.step)

    def update(state: ScheduleState, kl: Scalar, samples: Scalar) -> ScheduleState:
        del kl, samples
        return ScheduleState(_next(state.step))

    return Controller(init, beta, update, "nats_per_token", description)


def _line(start: float | int, end: float | int, steps: int) -> Callable:
    """Straight from start to end, exact at both, then flat."""

    def beta_at(step: Int[Array, ""]) -> Float[Array, ""]:
        between = start + (end - start) * (step.astype(jnp.float32) / steps)
        # The compiler divides by multiplying with a rounded reciprocal, so the last step needs saying.
        return jnp.where(step < steps, between, jnp.float32(end))

    return beta_at


def _next(step: Int[Array, ""]) -> Int[Array, ""]:
    """One more, without wrapping round to negative numbers."""
    return jnp.minimum(step, 2**31 - 2) + 1
