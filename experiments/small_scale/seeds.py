"""What a handful of seeds says: intervals, shares, and the smallest difference that would have been seen."""

import math
from typing import NamedTuple

import numpy as np

from grpo_jax.oracle.student import t_quantile


class Interval(NamedTuple):
    """A mean over seeds, or a share of them, with the ends of its 95 % interval."""

    mean: float
    low: float
    high: float

    def apart_from(self, other: "Interval") -> bool:
        """Whether the two intervals have nothing in common."""
        return self.low > other.high or self.high < other.low

    def __str__(self) -> str:
        return f"{self.mean:.3g} ({self.low:.3g} to {self.high:.3g})"


def mean_interval(values: np.ndarray) -> Interval:
    """Returns the mean of a number a seed ``[S]`` with Student's 95 % interval; NaN where a value is not finite."""
    mean = float(np.mean(values))
    half = t_quantile(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def share_interval(hits: int, count: int) -> Interval:
    """Returns a share of seeds with its exact 95 % interval (Clopper and Pearson 1934), by bisection."""
    low = 0.0 if hits == 0 else _root(lambda p: _at_least(hits, count, p) - 0.025)
    high = 1.0 if hits == count else _root(lambda p: _at_least(hits + 1, count, p) - 0.975)
    return Interval(hits / count, low, high)


def detectable(differences: np.ndarray) -> float:
    """Returns the mean difference that a paired t-test at 5 % finds with a probability of about 80 %.

    ``(t_.975 + t_.8) s / sqrt(S)`` with s the standard deviation of the differences, one a seed ``[S]``.
    """
    freedom = len(differences) - 1
    quantiles = t_quantile(freedom) + t_quantile(freedom, 0.6)
    return quantiles * float(np.std(differences, ddof=1)) / math.sqrt(len(differences))


def in_cell(values: np.ndarray) -> str:
    """Returns the mean of a number a seed ``[S]`` ± half the width of its 95 % interval."""
    found = mean_interval(values)
    return f"{found.mean:.3g} ±{found.high - found.mean:.2g}"


def in_words(differences: np.ndarray) -> str:
    """Returns the mean of a difference a seed ``[S]``, its 95 % interval, and which one would have been seen."""
    found = mean_interval(differences)
    return f"{found.mean:+.3f} ({found.low:+.3f} to {found.high:+.3f}; {detectable(differences):.3f} seen with 80 %)"


def _at_least(hits: int, count: int, p: float) -> float:
    return sum(math.comb(count, k) * p**k * (1 - p) ** (count - k) for k in range(hits, count + 1))


def _root(rising) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2
