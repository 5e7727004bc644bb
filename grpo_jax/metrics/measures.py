"""Statistics become the numbers that are written down."""

import math
from collections.abc import Mapping
from typing import Any

import jax

from grpo_jax.statistics import Maximum, Mean, Moments, Statistic


def finalise(statistics: Mapping[str, Statistic | jax.Array | float | int]) -> dict[str, float]:
    """Returns the numbers of merged statistics, in one transfer from the device.

    A ``Mean`` is written under its own name, ``Moments`` as ``name_mean`` and ``name_std``, a ``Maximum`` as
    ``name_max`` (a suffix that stands already is not doubled), a bare scalar as it is.

    Args:
        statistics: name -> statistic over everything that one row describes, or a scalar.

    Returns:
        name -> value. A statistic over nothing is left out: a missing number is not 0, nor NaN. A value that was
        measured and is not finite stays, for it is news.
    """
    numbers: dict[str, float] = {}
    for name, statistic in jax.device_get(dict(statistics)).items():
        numbers |= _numbers(name, statistic)
    return numbers


def _numbers(name: str, statistic: Any) -> dict[str, float]:
    """Returns the one or two numbers of a statistic that is on the host; none if it is over nothing."""
    match statistic:
        case Mean(total, count):
            return {name: float(total) / float(count)} if count > 0 else {}
        case Moments(count, mean, squares):
            if not count > 0:
                return {}
            deviation = math.sqrt(float(squares) / float(count))
            return {_suffixed(name, "mean"): float(mean), _suffixed(name, "std"): deviation}
        case Maximum(value):
            return {} if value == -math.inf else {_suffixed(name, "max"): float(value)}
        case _:
            return {name: float(statistic)}


def _suffixed(name: str, suffix: str) -> str:
    return name if name.endswith(f"_{suffix}") else f"{name}_{suffix}"


def is_timing(name: str) -> bool:
    """Returns whether two equal runs may differ in a measure.

    Those are ``seconds``, ``seconds_*``, ``*_per_second``, ``slowest_host``, and ``queued``: how far a sampler has run
    ahead.
    """
    return name in ("queued", "seconds", "slowest_host") or name.startswith("seconds_") or name.endswith("_per_second")
