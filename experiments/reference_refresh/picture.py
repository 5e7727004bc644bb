"""Reward and drift over training, and against each other."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.reference_refresh.cases import BETA, NOISES, REFERENCES
from experiments.small_scale.campaign import Rows
from experiments.small_scale.records import curve
from experiments.small_scale.seeds import mean_interval
from experiments.small_scale.setting import Setting


def draw(rows: Rows) -> Figure:
    """Draws accuracy and KL to the start over the updates, with 95 % intervals, and one against the other."""
    first = next(iter(rows.values()))
    every = Setting(*first["setting"]).every
    figure = Figure(figsize=(14, 8.5), layout="constrained")
    figure.suptitle(
        f"What the KL is measured against, at beta {BETA:g}\nmean and 95 % interval over {first['seeds']} seeds"
    )
    panels = figure.subplots(2, 3, sharex="col", sharey="col")
    for line, noise in zip(panels, NOISES, strict=True):
        what = "clean reward" if noise == 0 else f"reward with normal noise of {noise:g}"
        for number, name in enumerate(REFERENCES):
            row, style = rows[name, noise], {"color": "black" if number == 0 else f"C{number - 1}", "label": name}
            accuracy, drift = (curve(row, measure) for measure in ("accuracy_sums", "reverse_kl"))
            updates = np.arange(accuracy.shape[1]) * every
            for axes, values in zip(line[:2], (accuracy, drift), strict=True):
                _line(axes, updates, values, style)
            line[2].plot(np.mean(drift, axis=0), np.mean(accuracy, axis=0), "o-", markersize=3, linewidth=1.2, **style)
        for axes, title in zip(line, ("in-domain accuracy", "KL to the start", "accuracy against KL"), strict=True):
            axes.set_title(f"{title}, {what}", fontsize="medium")
            axes.grid(alpha=0.3)
        for axes, (across, up) in zip(line, _AXES, strict=True):
            axes.set_xlabel(across)
            axes.set_ylabel(up)
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


_AXES = (
    ("update", "accuracy"),
    ("update", "nats per completion"),
    ("KL to the start, nats per completion", "accuracy"),
)


def _line(axes: Any, updates: np.ndarray, values: np.ndarray, style: dict[str, str]) -> None:
    found = [mean_interval(column) for column in values.T]
    axes.plot(updates, [each.mean for each in found], linewidth=1.2, **style)
    low, high = [each.low for each in found], [each.high for each in found]
    axes.fill_between(updates, low, high, alpha=0.12, color=style["color"], linewidth=0)
