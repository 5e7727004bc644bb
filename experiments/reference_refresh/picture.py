"""Reward and drift over training, and against each other."""

import numpy as np
from matplotlib.figure import Figure

from experiments.reference_refresh.cases import BETA, NOISES, REFERENCES
from experiments.small_scale.campaign import Rows
from experiments.small_scale.pictures import over_updates, sheet
from experiments.small_scale.records import curve


def draw(rows: Rows) -> Figure:
    """Draws accuracy and KL to the start over the updates, with 95 % intervals, and one against the other."""
    figure = sheet(rows, f"What the KL is measured against, at beta {BETA:g}", (14, 8.5))
    panels = figure.subplots(2, 3, sharex="col", sharey="col")
    for line, noise in zip(panels, NOISES, strict=True):
        what = "clean reward" if noise == 0 else f"reward with normal noise of {noise:g}"
        for number, name in enumerate(REFERENCES):
            row, style = rows[name, noise], {"color": "black" if number == 0 else f"C{number - 1}", "label": name}
            for axes, measure in zip(line, ("accuracy_sums", "reverse_kl"), strict=False):
                over_updates(axes, row, measure, linewidth=1.2, **style)
            drift, accuracy = (np.mean(curve(row, measure), axis=0) for measure in ("reverse_kl", "accuracy_sums"))
            line[2].plot(drift, accuracy, "o-", markersize=3, linewidth=1.2, **style)
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
