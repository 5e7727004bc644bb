"""The picture of the experiment: of each fault the measure that shows it, with the update it was told at."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments.diagnosis.faults import FAULTS

UNITS = {
    "kl_mean": "mean KL, nats per completion",
    "kl_std": "std of the KL, nats",
    "kl_max": "largest KL, nats",
    "ratio_max": "largest ratio",
    "reward_mean": "reward",
}
LOGARITHMIC = {
    "KL at zero, reward flat": 1e-9,
    "KL variance jumps": 1e-2,
    "single completions explode": 1e-3,
    "ratio above 2": 1.0,
}
"""Smallest value that is shown of those that range over decades."""


def save_figure(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws a plot for each fault with a line for each seed; a dot marks the last update of the finding's evidence."""
    figure = Figure(figsize=(16, 7), layout="constrained")
    FigureCanvasAgg(figure)
    seeds = 1 + max(row["seed"] for row in rows)
    figure.suptitle(
        f"Faults provoked on purpose (colours) beside healthy twins (grey), {seeds} seeds each; a dot: recognised"
    )
    axes = list(figure.subplots(2, 4).flat)
    for axis, fault in zip(axes, FAULTS, strict=True):
        axis.set_title(f"{fault.title}\n{fault.name}", fontsize=10)
        axis.set_xlabel("update")
        axis.set_ylabel(UNITS[fault.measure])
        axis.grid(alpha=0.3)
        for row in sorted((row for row in rows if row["fault"] == fault.title), key=lambda row: not row["twin"]):
            _draw(axis, row, LOGARITHMIC.get(fault.title, 0.0))
        if fault.title in LOGARITHMIC:
            axis.set_yscale("log")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=1 + seeds)
    figure.savefig(path, dpi=100)


def _draw(axis: Any, row: dict[str, Any], least: float) -> None:
    values, first = [max(value, least) for value in row["values"]], row["seed"] == 0
    steps = range(1, len(values) + 1)
    if row["twin"]:
        axis.plot(steps, values, lw=1, color="0.7", label="twins" if first else None)
        return
    colour = f"C{row['seed']}"
    axis.plot(steps, values, lw=1.2, color=colour, label=f"seed {row['seed']}")
    if row["last"] is not None:
        axis.plot(row["last"], values[row["last"] - 1], "o", color=colour)
