"""Pass@k: the chance that at least one of k completions of a problem is right, with an interval."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

_Z95 = 1.959963984540054
"""Two-sided 95 % quantile of the standard normal distribution."""


class Proportion(NamedTuple):
    """A mean over problems of a number in [0, 1].

    Attributes:
        mean: the estimate.
        low: lower end of its 95 % interval, >= 0.
        high: upper end, <= 1.
        problems: how many there were.
    """

    mean: float
    low: float
    high: float
    problems: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} (95 %: {self.low:.3f} to {self.high:.3f})"


def pass_at_k(right: Int[np.ndarray, " P"], samples: int, k: int) -> Float[np.ndarray, " P"]:
    r"""Returns each problem's unbiased estimate of the chance that one of k completions is right.

    .. math:: 1 - \binom{n - c}{k} \Big/ \binom{n}{k}

    Args:
        right: right completions of each problem, c, in 0..n ``[P]``.
        samples: completions of each problem, n.
        k: how many tries count, in 1..n.

    Raises:
        ValueError: k or a count out of range.

    References: Chen et al. 2021, arXiv 2107.03374, equation 1.
    """
    if not 1 <= k <= samples:
        raise ValueError(
            f"pass@{k} from {samples} completions a problem: sample at least {k}, and give k of at least 1"
        )
    if np.any((right < 0) | (right > samples)):
        raise ValueError(f"pass_at_k: right has values from {right.min()} to {right.max()}, outside 0..{samples}")
    every = math.comb(samples, k)
    by_count = np.array([1 - math.comb(samples - count, k) / every for count in range(samples + 1)])
    return by_count[right]


def proportion(values: Float[np.ndarray, " P"]) -> Proportion:
    r"""Returns the mean over problems with Wilson's 95 % interval.

    For values that are not just 0 and 1 it takes the number of independent 0/1 values that would vary as much,
    :math:`m (1 - m) / (s^2 / P)`, so that it is neither too wide nor empty where all problems agree.

    Args:
        values: one number in [0, 1] a problem ``[P]``, at least one.

    Raises:
        ValueError: no value, or one outside [0, 1].

    References: Wilson 1927, JASA 22, 209.
    """
    if not values.size or not np.all((values >= 0) & (values <= 1)):
        raise ValueError(f"proportion: {values} must be at least one number, each in [0, 1]")
    count, mean = values.size, float(np.mean(values))
    spread = float(np.var(values, ddof=1)) if count > 1 else 0.0
    # Never fewer than the problems: of all variables in [0, 1] with this mean, 0/1 ones vary most.
    size = max(count, mean * (1 - mean) / (spread / count)) if spread > 0 else count
    square = _Z95**2 / size
    centre = (mean + square / 2) / (1 + square)
    half = _Z95 / (1 + square) * math.sqrt(mean * (1 - mean) / size + square / (4 * size))
    return Proportion(mean, max(0.0, centre - half), min(1.0, centre + half), count)
