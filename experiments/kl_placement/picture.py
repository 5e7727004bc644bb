"""Ends of training against beta, a panel a measure."""

import numpy as np
from matplotlib.figure import Figure

from experiments.kl_placement.grid import BETAS, NONE, TERMS
from experiments.small_scale.campaign import Rows
from experiments.small_scale.pictures import with_bars
from experiments.small_scale.verdict import MEASURES, ends

LOGARITHMIC = ("reverse_kl", "forward_kl", "gradient_norm")


def draw(rows: Rows) -> Figure:
    """Draws every measure at the end of training against beta, with 95 % intervals.

    Args:
        rows: by configuration and beta.
    """
    first = next(iter(rows.values()))
    seeds = first["seeds"]
    figure = Figure(figsize=(14, 10.5), layout="constrained")
    figure.suptitle(
        f"RLOO on two-digit sums with the KL term in different places: the end of training, {seeds} seeds\n"
        "mean and 95 % interval over seeds (Student's; of the collapse rate Clopper and Pearson's)"
    )
    panels = figure.subplots(3, 3)
    shown, of = [*MEASURES.items(), ("collapsed", "share of seeds that collapsed")], ends(MEASURES)
    for axes, (measure, words) in zip(panels.flat, shown, strict=True):
        for number, name in enumerate(TERMS):
            betas = [beta for beta in (0.0, *BETAS) if (name, beta) in rows]
            found = [of[measure](rows[name, beta]) for beta in betas]
            places = np.array([(0.0, *BETAS).index(beta) for beta in betas]) + 0.06 * (number - len(TERMS) / 2)
            style = {"color": "black", "marker": "s"} if name == NONE else {"color": f"C{number}"}
            with_bars(axes, places, found, label=name, linewidth=1.2, **style)
        axes.set_title(words, fontsize="medium")
        axes.set_xticks(range(1 + len(BETAS)), ["0", *(f"{beta:g}" for beta in BETAS)])
        axes.set_xlabel("beta (reward per nat of a completion)")
        axes.grid(alpha=0.3)
        if measure in LOGARITHMIC:
            axes.set_yscale("log")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=8)
    return figure
