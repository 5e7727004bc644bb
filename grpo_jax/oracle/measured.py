"""Numbers with intervals as people and files take them: words, rows of measures, pictures."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grpo_jax.oracle.jackknife import Findings, Interval
from grpo_jax.oracle.picture import picture


@dataclass(frozen=True)
class Measured:
    """A number with its 95 % interval; None where the samples do not determine it.

    Attributes:
        value: the estimate.
        low: lower end.
        high: upper end.
    """

    value: float | None
    low: float | None
    high: float | None

    @property
    def words(self) -> str:
        """The number and its interval, as in "0.12 [0.05, 0.19]"."""
        return f"{digits(self.value)} [{digits(self.low)}, {digits(self.high)}]"


@dataclass(frozen=True)
class Projection:
    """An expected gradient on one random unit vector.

    Attributes:
        gradient: of the objective's KL term.
        difference: of what it is minus what it should be.
    """

    gradient: Measured
    difference: Measured


def as_row(found: Findings) -> dict[str, float]:
    """Returns the measures that a training run writes down, by name; what the samples do not determine is left out.

    Args:
        found: the findings, on the host.
    """
    row = {"certificate_variance": float(found.variance.value)}
    for name, interval in (("cosine", found.cosine), ("relative_bias", found.relative_bias)):
        row |= {f"certificate_{name}": interval.value} | {
            f"certificate_{name}_{end}": getattr(interval, end) for end in ("low", "high")
        }
    return {name: float(value) for name, value in row.items() if math.isfinite(value)}


def measured(interval: Interval) -> Measured:
    """Returns one interval that is on the host."""
    return Measured(*map(number, interval))


def each_measured(interval: Interval) -> list[Measured]:
    """Returns every interval of an array of them."""
    return [Measured(*map(number, ends)) for ends in zip(*interval, strict=True)]


def number(value: Any) -> float | None:
    """Returns a number, or None where it is not finite."""
    return float(value) if math.isfinite(value) else None


def digits(value: float | None) -> str:
    """Returns a number for reading."""
    return "?" if value is None else f"{value:.3g}"


def plot(
    title: str,
    named: Mapping[str, Measured],
    projections: Sequence[Projection],
    path: str | Path | None = None,
) -> Any:
    """Returns a Figure of numbers and projections with their intervals.

    Args:
        title: stands above.
        named: the numbers.
        projections: the gradient on random unit vectors.
        path: where to save the picture; its suffix decides the format.
    """
    figure = picture(10, 4)
    left, right = figure.subplots(1, 2, width_ratios=(2, 3))
    _bars(left, np.arange(len(named)), list(named.values()), "tab:blue")
    left.set_xticks(range(len(named)), list(named))
    left.set_xlim(-0.5, len(named) - 0.5)
    left.set_ylabel("estimate and 95 % interval")
    where = np.arange(len(projections))
    _bars(right, where - 0.12, [each.gradient for each in projections], "tab:blue", "KL term's gradient")
    _bars(right, where + 0.12, [each.difference for each in projections], "tab:red", "minus what it should be")
    right.set_xticks(where)
    right.set_xlabel("random unit vector")
    right.set_ylabel("expected gradient, nats per unit length")
    right.legend(fontsize="small")
    for axes in (left, right):
        axes.axhline(0, color="grey", linewidth=0.8)
    figure.suptitle(title, fontsize="medium")
    if path is not None:
        figure.savefig(path)
    return figure


def _bars(axes: Any, where: Any, measured: list[Measured], colour: str, label: str = "") -> None:
    """Draws each number that is known with its interval."""
    known = [
        (x, each) for x, each in zip(where, measured, strict=True) if None not in (each.value, each.low, each.high)
    ]
    values = np.array([[each.value, each.low, each.high] for _, each in known], float).reshape(-1, 3)
    sides = np.abs(values[:, 1:].T - values[:, 0])
    axes.errorbar([x for x, _ in known], values[:, 0], sides, fmt="o", color=colour, capsize=3, label=label)
