"""Quantiles of Student's distribution, which decide how wide an interval from a few blocks is."""

import functools
import math

LEVEL = 0.95
"""Probability with which an interval is to contain what it estimates."""


@functools.cache
def t_quantile(freedom: int, level: float = LEVEL) -> float:
    """Returns the t within which Student's distribution has a probability; exact, by bisection of its finite series.

    Args:
        freedom: degrees of freedom, a whole number >= 1.
        level: probability of [-t, t], in (0, 1).

    References: Abramowitz and Stegun (1964), 26.7.3 and 26.7.4.
    """
    low, high = 0.0, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < level else (low, middle)
    return (low + high) / 2


def _within(t: float, freedom: int) -> float:
    angle = math.atan2(t, math.sqrt(freedom))
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom, 2):
        term *= (k - 1) / k * math.cos(angle) ** 2
        total += term
    series = math.sin(angle) * total
    return 2 / math.pi * (angle + series) if odd else series
