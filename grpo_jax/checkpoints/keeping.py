"""Which checkpoints stay when a new one is there."""

import math
from collections.abc import Mapping
from typing import NamedTuple


class Keep(NamedTuple):
    """Which checkpoints stay: each that one of these asks for.

    Attributes:
        last: so many of the newest, at least 1.
        best: so many of those with the highest score.
        every: each whose step is a multiple of it, the start apart; 0: none for that.
    """

    last: int = 3
    best: int = 0
    every: int = 0


def kept(scores: Mapping[int, float | None], keep: Keep) -> set[int]:
    """Returns the steps whose checkpoints stay.

    Of equal scores the older counts as better, so that no checkpoint gives way to one that is no better.

    Args:
        scores: step -> score of every checkpoint there is; None or NaN: it has none, and is never among the best.
        keep: the rule.

    Raises:
        ValueError: the rule keeps nothing, or has a negative number.
    """
    if keep.last < 1:
        raise ValueError(
            f"keep={keep.last} in checkpoints: at least 1 checkpoint has to stay, or nothing can be resumed"
        )
    if keep.best < 0 or keep.every < 0:
        raise ValueError(f"best={keep.best}, every={keep.every} in checkpoints.Keep: give 0 or more")
    scored = {step: score for step, score in scores.items() if score is not None and not math.isnan(score)}
    best = sorted(scored, key=lambda step: (-scored[step], step))[: keep.best]
    periodic = [step for step in scores if keep.every and step and step % keep.every == 0]
    return {*sorted(scores)[-keep.last :], *best, *periodic}
