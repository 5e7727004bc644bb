"""What the pictures of several experiments have in common: the heading, curves with bands, ends with bars."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.small_scale.campaign import Rows
from experiments.small_scale.records import curve
from experiments.small_scale.seeds import Interval, mean_interval
from experiments.small_scale.setting import Setting


def sheet(rows: Rows, title: str, size: tuple[float, float], more: str = "") -> Figure:
    """Returns an empty figure that says what is shown, and of how many seeds."""
    figure = Figure(figsize=size, layout="constrained")
    seeds = next(iter(rows.values()))["seeds"]
    figure.suptitle(f"{title}\nmean and 95 % interval over {seeds} seeds{more}")
    return figure


def over_updates(axes: Axes, row: dict[str, Any], measure: str, *, band: float = 0.12, **style: Any) -> None:
    """Draws a recorded measure over the updates, with its interval; see ``with_band``."""
    values = curve(row, measure)
    with_band(axes, Setting(*row["setting"]).every * np.arange(values.shape[1]), values, band=band, **style)


def with_band(axes: Axes, across: np.ndarray, values: np.ndarray, *, band: float = 0.12, **style: Any) -> None:
    """Draws the mean over seeds of values ``[S, N]`` at N places, with the 95 % interval in the colour of the line.

    Args:
        axes: to draw on.
        across: the places ``[N]``.
        values: by seed and place.
        band: opacity of the interval; 0: none.
        style: of the line; with a color.
    """
    found = [mean_interval(column) for column in values.T]
    axes.plot(across, [each.mean for each in found], **style)
    if band:
        low, high = [each.low for each in found], [each.high for each in found]
        axes.fill_between(across, low, high, alpha=band, color=style["color"], linewidth=0)


def with_bars(axes: Axes, across: Sequence[float] | np.ndarray, found: Sequence[Interval], **style: Any) -> None:
    """Draws intervals as bars about their means, joined by a line."""
    bars = [[each.mean - each.low for each in found], [each.high - each.mean for each in found]]
    axes.errorbar(across, [each.mean for each in found], bars, **{"marker": "o", "markersize": 4, "capsize": 2} | style)
