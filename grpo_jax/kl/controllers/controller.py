"""What a controller of beta is, and the checks its factories share."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, ArrayLike, Float, Num

Scalar = Num[ArrayLike, ""]
"""A traced or concrete scalar."""

State = Any
"""A pytree of float32 and int32 arrays, part of the training state."""

KLStatistic = Literal["nats_per_token", "nats_per_sequence"]
"""The KL of the policy to the reference: the mean over tokens, or the mean over sequences of the sum over tokens."""

SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
"""The range of positive numbers that float32 arithmetic on an accelerator keeps."""


@runtime_checkable
class Update(Protocol):
    """The reaction to one measured KL."""

    def __call__(self, state: State, kl: Scalar, samples: Scalar) -> State:
        """Returns the next state, of the same shapes and dtypes.

        Args:
            state: from ``init`` or the last ``update``.
            kl: the statistic that the controller names, in nats, ``[]``; a sampled estimate may be negative. Not
                finite: beta and all that depends on KL stay as they are; steps are counted nevertheless.
            samples: completions since the last update, ``[]``, positive.
        """
        ...


@runtime_checkable
class StartFrom(Protocol):
    """Hands a beta over from another controller."""

    def __call__(self, state: State, beta: Float[Array, ""]) -> State:
        """Returns the state with its beta replaced; a schedule, whose beta is a function of time, returns it as is."""
        ...


def _keeps_its_own(state: State, beta: Float[Array, ""]) -> State:
    del beta
    return state


class Controller(NamedTuple):
    """A rule for beta, the weight of the KL term, as pure functions; every number in it may be traced.

    Attributes:
        init: ``() -> state``.
        beta: ``(state) -> []``, the current beta, never negative, float32.
        update: ``(state, kl, samples) -> state``, once per update of the policy.
        statistic: which KL ``update`` must be fed, with its unit. The wrong one fails silently: a mean per token of
            .01 against a target of .1 per sequence lowers beta although the sequences are at .4.
        description: the rule in words, for the run's log.
        always_zero: beta is 0 for ever, so no reference policy is needed.
        adaptive: whether beta depends on the KL that is fed; where it does not, ``statistic`` is idle.
        start_from: ``(state, beta) -> state``, which lets ``then`` hand over without a jump.
    """

    init: Callable[[], State]
    beta: Callable[[State], Float[Array, ""]]
    update: Update
    statistic: KLStatistic
    description: str
    always_zero: bool = False
    adaptive: bool = False
    start_from: StartFrom = _keeps_its_own


def check_positive(place: str, remedy: str, **values: float | int) -> None:
    """Raises ValueError, naming place, value and remedy, unless each value is a positive float32."""
    for name, value in values.items():
        if not SMALLEST <= value <= LARGEST:
            raise ValueError(f"{place}: {name}={value} must be positive and finite in float32; {remedy}")


def check_not_negative(place: str, remedy: str, **values: float | int) -> None:
    """Raises ValueError, naming place, value and remedy, unless each value is 0 or a positive float32."""
    for name, value in values.items():
        if not (value == 0 or SMALLEST <= value <= LARGEST):
            raise ValueError(f"{place}: {name}={value} must be 0, or positive and finite in float32; {remedy}")


def check_steps(place: str, steps: int) -> None:
    """Raises ValueError unless steps is a whole number of at least 1 that an int32 counter reaches."""
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps < 2**31 - 1:
        raise ValueError(f"{place}: steps={steps} must be a whole number of updates, 1 or more; for none use constant")


def check_statistic(place: str, statistic: str) -> None:
    """Raises ValueError unless the statistic is one of the two that a training loop measures."""
    if statistic not in ("nats_per_token", "nats_per_sequence"):
        raise ValueError(f"{place}: statistic={statistic!r} is not measured; use nats_per_token or nats_per_sequence")
