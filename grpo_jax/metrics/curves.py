"""The picture of a run: what rose, what fell, and how far the policy went from its reference."""

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


class Panel(NamedTuple):
    """One plot.

    Attributes:
        title: what it shows.
        unit: label of its vertical axis.
        names: patterns (as in a shell) of the measures it draws, each a line.
        limits: lowest and highest value of the axis; None: as the data ask for.
    """

    title: str
    unit: str
    names: tuple[str, ...]
    limits: tuple[float, float] | None = None


PANELS = (
    Panel("Reward", "reward per completion", ("reward_mean",)),
    Panel("Accuracy", "share correct", ("accuracy*",), (-0.02, 1.02)),
    Panel("KL to the reference, mean", "nats per completion", ("kl_mean",)),
    Panel("KL to the reference, largest", "nats", ("kl_max", "kl_token_max")),
    Panel("Strength of the KL term", "beta", ("beta",)),
    Panel("Entropy", "nats per token", ("entropy",)),
    Panel("Completion length", "tokens", ("length*",)),
    Panel("Degenerate groups", "share of groups, of gradient", ("degenerate*",), (-0.02, 1.02)),
)
"""The plots of curves.png, in reading order."""


def save_curves(
    rows: Sequence[Mapping[str, float | int | None]], path: str | Path, panels: Sequence[Panel] = PANELS
) -> None:
    """Draws the measures of a run against its updates, as a PNG.

    An update is one batch of completions, which may be several optimizer steps.

    Args:
        rows: what was written, as ``read_rows`` returns it; a measure may be missing from any row, or from all.
        path: the picture.
        panels: what to draw; a plot without data says so.
    """
    columns = 4
    height = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(4 * columns, 3 * height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(height, columns, squeeze=False).flat
    for axis, panel in zip(axes, panels, strict=False):
        _draw(axis, panel, rows)
    for axis in list(axes)[len(panels) :]:
        axis.set_axis_off()
    temporary = Path(f"{path}.tmp")
    figure.savefig(temporary, format="png", dpi=100)
    temporary.replace(path)


def _draw(axis: Axes, panel: Panel, rows: Sequence[Mapping[str, float | int | None]]) -> None:
    axis.set_title(panel.title, fontsize=11)
    axis.set_xlabel("update")
    axis.set_ylabel(panel.unit)
    axis.grid(alpha=0.3)
    known = dict.fromkeys(name for row in rows for name in row)
    drawn = [name for name in known if any(fnmatch(name, pattern) for pattern in panel.names)]
    lines = {name: _series(name, rows) for name in drawn}
    lines = {name: points for name, points in lines.items() if points}
    for name, points in lines.items():
        few = len(points) < 50
        axis.plot(*zip(*points, strict=True), label=name, linewidth=1.4, marker="." if few else "", markersize=4)
    if panel.limits is not None:
        axis.set_ylim(*panel.limits)
    if lines:
        axis.legend(fontsize=8)
    else:
        axis.text(0.5, 0.5, "not recorded", ha="center", va="center", transform=axis.transAxes, color="grey")


def _series(name: str, rows: Sequence[Mapping[str, float | int | None]]) -> list[tuple[float | int, float | int]]:
    """Returns the (step, value) pairs of a measure where it has a finite value."""
    pairs = [(row["step"], row.get(name)) for row in rows]
    return [(step, value) for step, value in pairs if step is not None and value is not None and math.isfinite(value)]
