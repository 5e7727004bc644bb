"""The grid at one group size, and what each way of tuning reaches."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.tuning_order.grid import Grid
from experiments.tuning_order.orders import ARTICLE, MEASURES, above, everywhere, scores, ways


def draw(rows: dict[tuple, dict[str, Any]], grid: Grid) -> Figure:
    """Draws for each measure the mean over seeds at every rate and beta, and each way of tuning with its interval."""
    figure = Figure(figsize=(13, 8.5), layout="constrained")
    seeds = next(iter(rows.values()))["seeds"]
    figure.suptitle(f"Tuning one number after the other: {seeds} seeds, tuned on half of them, judged by the others")
    middle = len(grid.groups) // 2
    panels = figure.subplots(2, 2, width_ratios=(1, 1.3))
    for line, measure in zip(panels, MEASURES, strict=True):
        values = scores(rows, grid, measure)
        _cells(line[0], values[:, :, middle].mean(axis=-1), grid)
        line[0].set_title(f"{measure} after training, group size {grid.groups[middle]}", fontsize="medium")
        _ways(line[1], values)
        line[1].set_title(f"{measure} reached, against the article's order", fontsize="medium")
        line[1].set_xlabel(f"difference of {measure.replace('KL', 'KL in nats')}, 95 % interval")
    figure.legend(*panels[0, 1].get_legend_handles_labels(), loc="outside lower right")
    return figure


def _cells(axes: Any, means: np.ndarray, grid: Grid) -> None:
    # What is below 0 has collapsed: as one colour it leaves the others to be told apart.
    shown = axes.imshow(means, origin="lower", aspect="auto", cmap="viridis", vmin=0)
    for (row, column), value in np.ndenumerate(means):
        dark = value < means.max() / 2
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", color="white" if dark else "black")
    axes.set_xticks(range(len(grid.betas)), [f"{beta:g}" for beta in grid.betas])
    axes.set_yticks(range(len(grid.rates)), [f"{rate:g}" for rate in grid.rates])
    axes.set_xlabel("beta, per nat of a completion")
    axes.set_ylabel("learning rate")
    axes.figure.colorbar(shown, ax=axes, label="mean over seeds", extend="min")


def _ways(axes: Any, values: np.ndarray) -> None:
    found = ways(values.shape[:-1], everywhere(values.shape[:-1]))
    others = [(name, above(values, way, found[ARTICLE][0])[0]) for name, (way, _) in found.items() if name != ARTICLE]
    shown = [(name, each) for name, each in reversed(others) if name != "not tuned"]
    for place, (_, each) in enumerate(shown):
        axes.errorbar(each.mean, place, xerr=[[each.mean - each.low], [each.high - each.mean]], fmt="o", color="C0")
    axes.axvline(0, color="black", linewidth=0.8, label=f"the article's: {ARTICLE}")
    axes.set_yticks(range(len(shown)), [name for name, _ in shown])
    axes.grid(alpha=0.3, axis="x")
