"""Curves of several runs as the numbers of a drawing; the page's template draws them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from grpo_jax.diagnosis.series import Series, series
from grpo_jax.metrics import Row

WIDTH, HEIGHT = 360, 216
"""Size of a drawing, in its own units."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 10, 34
_MOST_POINTS = 600
"""Points of a line, beyond which it shows the lowest and highest value of stretches of steps."""


class Panel(NamedTuple):
    """One plot: a measure of every run.

    Attributes:
        title: what it shows.
        unit: of its vertical axis.
        measure: its name in metrics.jsonl.
        limits: lowest and highest value of the axis; None: as the data ask for.
        logarithmic: whether the vertical axis is; values up to 0 are then left out.
    """

    title: str
    unit: str
    measure: str
    limits: tuple[float, float] | None = None
    logarithmic: bool = False


PANELS = (
    Panel("Reward", "mean of a batch", "reward_mean"),
    Panel("Accuracy on held-out problems", "share right", "accuracy_validation", (0.0, 1.0)),
    Panel("KL to the reference", "nats per completion", "kl_mean"),
    Panel("Largest KL of a completion", "nats", "kl_max", logarithmic=True),
    Panel("Strength of the KL term", "beta", "beta"),
    Panel("Entropy", "nats per token", "entropy"),
    Panel("Norm of the gradient", "before clipping", "gradient_norm", logarithmic=True),
    Panel("Degenerate groups", "share of groups", "degenerate", (0.0, 1.0)),
    Panel("Length of completions", "tokens", "length"),
    Panel("Largest probability ratio", "ratio", "ratio_max"),
)
"""The plots of a report, in reading order."""


class Tick(NamedTuple):
    """A mark on an axis: where, and its label."""

    at: float
    label: str


class Line(NamedTuple):
    """A run in a plot.

    Attributes:
        run: its number, from 0.
        path: every update, as an SVG path; "" where there is but one.
        smooth: the mean over neighbouring updates, as an SVG path; "" where there are too few to average.
        dots: points of their own, where there are few.
    """

    run: int
    path: str
    smooth: str
    dots: list[tuple[float, float]]


class Chart(NamedTuple):
    """A plot, ready to draw.

    Attributes:
        panel: what it is of.
        lines: a run each; none where no run has the measure.
        x_ticks: marks on the horizontal axis, in updates.
        y_ticks: marks on the vertical axis.
        text: the last values in words, for those who do not see the drawing.
    """

    panel: Panel
    lines: list[Line]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    text: str


def charts(runs: Sequence[tuple[str, Sequence[Row]]], panels: Sequence[Panel] = PANELS) -> list[Chart]:
    """Returns the plots of some runs, those alone that any run has measures for.

    Args:
        runs: name and rows of each.
        panels: what to plot.
    """
    drawn = [_chart(panel, runs) for panel in panels]
    return [chart for chart in drawn if chart.lines]


def _chart(panel: Panel, runs: Sequence[tuple[str, Sequence[Row]]]) -> Chart:
    found = [_drawable(series(rows, panel.measure), panel) for _, rows in runs]
    known = [each for each in found if len(each)]
    if not known:
        return Chart(panel, [], [], [], "")
    steps = np.concatenate([each.steps for each in known])
    values = np.concatenate([each.values for each in known])
    first, last = int(steps.min()), max(int(steps.max()), int(steps.min()) + 1)
    low, high = _limits(values, panel)

    def place(points: Series) -> list[tuple[float, float]]:
        x = _LEFT + (points.steps - first) / (last - first) * (WIDTH - _LEFT - _RIGHT)
        y = HEIGHT - _BOTTOM - (points.values - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)
        return [(round(float(a), 1), round(float(b), 1)) for a, b in zip(x, y, strict=True)]

    lines = [_line(number, each, place) for number, each in enumerate(found) if len(each)]
    x_ticks = [
        Tick(place(Series(np.array([at]), np.array([low])))[0][0], f"{at:g}")
        for at in _nice(float(first), float(last), 5)
    ]
    marks = _decades(low, high) if panel.logarithmic else _nice(low, high, 5)
    y_ticks = [Tick(place(Series(np.array([first]), np.array([at])))[0][1], _shown(at, panel)) for at in marks]
    ends = [f"{runs[line.run][0]} {_shown(found[line.run].values[-1], panel)}" for line in lines]
    return Chart(panel, lines, x_ticks, y_ticks, f"{panel.title}, last values: {', '.join(ends)}")


def _drawable(found: Series, panel: Panel) -> Series:
    if not panel.logarithmic:
        return found
    kept = found.values > 0
    return Series(found.steps[kept], np.log10(found.values[kept]))


def _limits(values: Float[np.ndarray, " N"], panel: Panel) -> tuple[float, float]:
    if panel.limits is not None:
        return panel.limits
    low, high = float(values.min()), float(values.max())
    margin = 0.05 * (high - low) or 0.5 * abs(high) or 0.5
    # An axis that begins at 0 where the values are not negative, unless they are far from it.
    at_zero = not panel.logarithmic and 0 <= low < 0.5 * high
    return (0.0 if at_zero else low - margin), high + margin


def _line(number: int, found: Series, place) -> Line:
    count = len(found)
    if count < 15:
        points = place(found)
        return Line(number, _path(points), "", points)
    window = max(1, count // 20)
    smooth = "" if window < 3 else _path(place(_thinned(_averaged(found, window))))
    return Line(number, _path(place(_thinned(found))), smooth, [])


def _averaged(found: Series, window: int) -> Series:
    """Returns the mean over as many neighbours on either side as there are, up to half a window."""
    sums = np.concatenate([[0.0], np.cumsum(found.values)])
    centre = np.arange(len(found))
    low, high = np.maximum(0, centre - window // 2), np.minimum(len(found), centre + window // 2 + 1)
    return Series(found.steps, (sums[high] - sums[low]) / (high - low))


def _thinned(found: Series) -> Series:
    if len(found) <= _MOST_POINTS:
        return found
    kept: list[int] = []
    for part in np.array_split(np.arange(len(found)), _MOST_POINTS // 2):
        kept += sorted({int(part[np.argmin(found.values[part])]), int(part[np.argmax(found.values[part])])})
    return Series(found.steps[kept], found.values[kept])


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points) if len(points) > 1 else ""


def _nice(low: float, high: float, most: int) -> list[float]:
    """Returns up to ``most + 1`` round numbers between two."""
    rough = (high - low) / most
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(each * size for each in (1, 2, 5, 10) if each * size >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _decades(low: float, high: float) -> list[float]:
    """Returns powers of ten as logarithms, up to seven; 2 and 5 times them, too, where there are fewer than three."""
    first, last = math.ceil(low), math.floor(high)
    if last - first >= 2:
        return [float(number) for number in range(first, last + 1, math.ceil((last - first) / 6))]
    marks = [number + math.log10(times) for number in range(first - 1, last + 1) for times in (1, 2, 5)]
    return [mark for mark in marks if low <= mark <= high]


def _shown(value: float, panel: Panel) -> str:
    return f"{10**value if panel.logarithmic else value:.4g}"
