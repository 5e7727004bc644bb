"""Traces of chosen steps by JAX's profiler, to be read in XProf or Perfetto."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax


class Steps(NamedTuple):
    """Steps to trace, both included.

    Attributes:
        first: the first one, from 1.
        last: the last one.
    """

    first: int
    last: int


def steps_to_profile(text: str) -> Steps:
    """Reads what ``--profile-steps`` says: "10:12", or "10" for one step.

    Raises:
        ValueError: it is not of this form, or empty.
    """
    first, colon, last = text.partition(":")
    try:
        found = Steps(int(first), int(last if colon else first))
    except ValueError:
        raise ValueError(f"--profile-steps {text}: give the first and the last step, as 10:12") from None
    if not 1 <= found.first <= found.last:
        raise ValueError(f"--profile-steps {text}: give a first step of at least 1 and a last one not before it")
    return found


def profiler(steps: Steps | None, folder: str | Path, start: int, end: int) -> Callable[[int], None]:
    """Builds what a training loop calls at the beginning of every step, and once after the last.

    Args:
        steps: which steps to trace; None: none, and the calls do nothing.
        folder: where traces go, those of each process under the name of its machine.
        start: steps that the run has done before.
        end: steps of the run.

    Returns:
        ``step -> None``.

    Raises:
        ValueError: the run does not take all of these steps.
    """
    if steps is None:
        return lambda step: None
    if steps.first <= start or steps.last > end:
        raise ValueError(
            f"--profile-steps {steps.first}:{steps.last}: this run takes the steps {start + 1} to {end}; give some of "
            "these"
        )

    def at(step: int) -> None:
        if step == steps.first:
            jax.profiler.start_trace(str(folder))
        elif step == steps.last + 1:
            jax.profiler.stop_trace()

    return at
