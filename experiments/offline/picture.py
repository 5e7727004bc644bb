"""What the data promises, what the policy is worth, and how far it went, against beta."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.offline.forms import FORMS
from experiments.small_scale.records import last
from experiments.small_scale.seeds import mean_interval

SHOWN = {
    "gain": "true gain over the behaviour policy",
    "promised": "gain that the weighted data promises",
    "kl": "KL(pi||behaviour), nats per trajectory",
}


def draw(rows: dict[tuple, dict[str, Any]], seeds: int) -> Figure:
    """Draws three measures at the end of training, a column for each size of the data, with 95 % intervals."""
    sizes, betas = (sorted({name[place] for name in rows}) for place in (1, 2))
    figure = Figure(figsize=(4.6 * len(sizes), 11), layout="constrained")
    figure.suptitle(
        "Learning from fixed data with exact evaluation: importance forms over beta\n"
        f"mean and 95 % interval over {seeds} random worlds; gains in standard deviations of the behaviour's return"
    )
    panels = figure.subplots(len(SHOWN), len(sizes), sharey="row")
    for line, (measure, words) in zip(panels, SHOWN.items(), strict=True):
        for axes, count in zip(line, sizes, strict=True):
            for number, form in enumerate(FORMS):
                found = [mean_interval(last(rows[form, count, beta], measure)) for beta in betas]
                bars = np.array([[each.mean - each.low, each.high - each.mean] for each in found]).T
                places = np.arange(len(betas)) + 0.07 * (number - len(FORMS) / 2)
                means = [each.mean for each in found]
                axes.errorbar(places, means, bars, marker="o", markersize=4, capsize=2, linewidth=1.2, label=form)
            axes.set_title(f"{count} trajectories", fontsize="medium")
            axes.set_xticks(range(len(betas)), [f"{beta:g}" for beta in betas])
            axes.set_xlabel("beta (per nat of a trajectory)")
            axes.grid(alpha=0.3)
        line[0].set_ylabel(words)
    for axes in panels[1]:
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylim(-1, 100)
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure
