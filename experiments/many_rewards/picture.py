"""Each reward and the KL at the end of training against beta, and right answers against KL."""

import numpy as np
from matplotlib.figure import Figure

from experiments.many_rewards.cases import BETAS, EACH, SUM, WHOLE
from experiments.small_scale.campaign import Rows
from experiments.small_scale.pictures import sheet, with_bars
from experiments.small_scale.records import curve, last
from experiments.small_scale.seeds import mean_interval

SHOWN = {
    "accuracy_sums": "right answer",
    "reward_form": "form",
    "reward_brevity": "brevity (share of budget left)",
    "reverse_kl": "KL(pi||p), nats per completion",
}


def draw(rows: Rows) -> Figure:
    """Draws the four measures against beta with 95 % intervals, and what right answers cost in KL and in brevity."""
    first = next(iter(rows.values()))
    title = "Three rewards of equal weight with one KL term: the end of training"
    figure = sheet(rows, title, (14, 8), "; dotted in grey: before training")
    panels = list(figure.subplots(2, 3).flat)
    for axes, (measure, words) in zip(panels, SHOWN.items(), strict=False):
        for number, way in enumerate((SUM, WHOLE, EACH)):
            found = [mean_interval(last(rows[way, beta], measure)) for beta in BETAS]
            with_bars(axes, np.arange(len(BETAS)) + 0.06 * (number - 1), found, color=f"C{number}")
        axes.axhline(float(np.mean(curve(first, measure)[:, 0])), color="0.5", linestyle=":")
        axes.set_title(words)
        axes.set_xticks(range(len(BETAS)), [f"{beta:g}" for beta in BETAS])
        axes.set_xlabel("beta (reward per nat)")
    for axes, (across, words) in zip(panels[4:], (("reverse_kl", "KL"), ("reward_brevity", "brevity")), strict=True):
        for number, way in enumerate((SUM, WHOLE, EACH)):
            for beta, style in zip(BETAS, ("-", "--", ":"), strict=True):
                row = rows[way, beta]
                x, y = (np.mean(curve(row, measure), axis=0) for measure in (across, "accuracy_sums"))
                axes.plot(x, y, style, marker=".", color=f"C{number}", label=f"{way}, beta {beta:g}")
        axes.set_title(f"right answers against {words}, over training")
        axes.set_xlabel(SHOWN[across])
        axes.set_ylabel("right answer")
    for axes in panels:
        axes.grid(alpha=0.3)
    figure.legend(*panels[4].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9)
    return figure
