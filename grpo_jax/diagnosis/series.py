"""Measures over steps, as arrays, and the few statistics that tell a change from noise."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from grpo_jax.diagnosis.finding import Finding
from grpo_jax.metrics import Row


class Series(NamedTuple):
    """A measure where it was finite.

    Attributes:
        steps: of the rows ``[N]``.
        values: at these steps ``[N]``.
    """

    steps: np.ndarray
    values: Float[np.ndarray, " N"]

    def __len__(self) -> int:
        """Returns how many values there are."""
        return len(self.values)

    def part(self, start: int | None = None, stop: int | None = None) -> "Series":
        """Returns a slice, as of a list."""
        return Series(self.steps[start:stop], self.values[start:stop])


def series(rows: Sequence[Row], name: str) -> Series:
    """Returns a measure over the rows that have a finite value of it."""
    found = [(row["step"], row.get(name)) for row in rows]
    kept = [(step, value) for step, value in found if value is not None and math.isfinite(value)]
    return Series(np.array([step for step, _ in kept]), np.array([value for _, value in kept], float))


def second_half(found: Series) -> Series:
    """Returns the later half of the steps, which the beginning of a run no longer shapes."""
    last = found.steps[-1] if len(found) else 0
    return found.part(int(np.searchsorted(found.steps, last / 2, side="right")))


def block_medians(values: Float[np.ndarray, " N"], count: int = 10) -> Float[np.ndarray, " B"]:
    """Returns the medians of equal parts in their order, which single rows far out do not move."""
    return np.array([np.median(part) for part in np.array_split(values, min(count, len(values)))])


def kendall(values: Float[np.ndarray, " N"]) -> float:
    """Returns Kendall's rank correlation with time: 1 always rising, -1 always falling, near 0 where neither.

    References: Kendall 1938, Biometrika 30, 81.
    """
    earlier, later = np.triu_indices(len(values), 1)
    return float(np.mean(np.sign(values[later] - values[earlier]))) if len(values) > 1 else 0.0


def trend(values: Float[np.ndarray, " N"], blocks: float = 0.77, errors: float = 4.0) -> int:
    """Returns 1 for values that rise, -1 for values that fall, 0 where noise might do it.

    Args:
        values: in their order.
        blocks: rank correlation of the medians of ten parts; this much comes by chance once in 2,000 times.
        errors: that of the values themselves, in its standard errors under no trend.
    """
    count = len(values)
    error = np.sqrt(2 * (2 * count + 5) / (9 * count * (count - 1))) if count > 1 else np.inf
    both = min(kendall(block_medians(values)) / blocks, kendall(values) / (errors * error), key=abs)
    return int(np.sign(both)) if abs(both) >= 1 else 0


def noise(values: Float[np.ndarray, " N"]) -> float:
    """Returns the standard deviation from row to row, from successive differences, so that a trend does not count."""
    return float(np.sqrt(np.mean(np.diff(values) ** 2) / 2)) if len(values) > 1 else 0.0


def change(before: Float[np.ndarray, " N"], after: Float[np.ndarray, " M"]) -> tuple[float, float]:
    """Returns how far the mean moved, and that in standard errors, by the noise from row to row.

    Returns:
        The difference, and the difference divided by its standard error; infinite where nothing is noisy.
    """
    moved = float(np.mean(after) - np.mean(before))
    spread = float(np.sqrt(noise(before) ** 2 / len(before) + noise(after) ** 2 / len(after)))
    return moved, moved / spread if spread > 0 else math.copysign(math.inf, moved) if moved else 0.0


def learned(rewards: Series) -> bool:
    """Returns whether the reward rose, over the run or over its later half, by more than noise explains (three errors).

    A run whose reward has risen is doing its work, and what else its numbers show matters less.
    """
    return _rose(rewards.values) or _rose(second_half(rewards).values)


def _rose(values: Float[np.ndarray, " N"]) -> bool:
    third = len(values) // 3
    return third >= 3 and change(values[:third], values[-third:])[1] > 3


def finding(name: str, over: Series, measure: str, value: float, evidence: str, cause: str, remedy: str) -> Finding:
    """Returns a finding about the steps of a series."""
    return Finding(name, int(over.steps[0]), int(over.steps[-1]), measure, float(value), evidence, cause, remedy)
