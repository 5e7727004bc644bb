"""Ends of training against the entropy bonus, in the small decoder and without sampling."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.entropy_and_kl.cases import BETAS, BONUSES
from experiments.small_scale.campaign import Rows
from experiments.small_scale.pictures import sheet, with_bars
from experiments.small_scale.records import curve, last
from experiments.small_scale.seeds import mean_interval

SHOWN = {
    "reverse_kl": "KL(pi||p), nats per completion",
    "entropy": "entropy, nats per completion",
    "accuracy_sums": "in-domain accuracy",
    "accuracy_operators": "other operator, accuracy",
    "forward_kl": "KL(p||pi), nats per completion",
}


def draw(rows: Rows, exact: list[dict[str, Any]]) -> Figure:
    """Draws five measures of the decoder with 95 % intervals, and the exact KL beside that of the optimum."""
    first = next(iter(rows.values()))
    title = "An entropy bonus beside a KL term: the end of training"
    figure = sheet(rows, title, (14, 8), ", cut below a tenth of the mean")
    panels = list(figure.subplots(2, 3).flat)
    for axes, (measure, words) in zip(panels, SHOWN.items(), strict=False):
        for number, beta in enumerate(BETAS):
            found = [mean_interval(last(rows[bonus, beta], measure)) for bonus in BONUSES]
            # A mean of KLs is not negative, though Student's interval may be.
            cut = [each._replace(low=max(each.low, 0.1 * each.mean)) for each in found]
            with_bars(axes, np.arange(len(BONUSES)) + 0.06 * (number - 1), cut, label=f"beta {beta:g}")
        before = curve(first, measure)[:, 0]
        if np.mean(before) > 0:
            axes.axhline(float(np.mean(before)), color="0.5", linestyle=":", label="before training")
        axes.set_title(words)
        axes.set_xticks(range(len(BONUSES)), [f"{bonus:g}" for bonus in BONUSES])
        axes.set_xlabel("entropy bonus (reward per nat)")
        axes.grid(alpha=0.3)
    for axes in panels[:2]:
        axes.set_yscale("log")
    panels[1].legend()
    _draw_exact(panels[-1], exact)
    return figure


def _draw_exact(axes: Any, rows: list[dict[str, Any]]) -> None:
    bonuses = sorted({row["bonus"] for row in rows})
    seeds = sorted({row["seed"] for row in rows})
    trained = ("kl", "library's bonus", {})
    for measure, words, style in (trained, ("best_kl", "entropy of completions", {"marker": "s", "linestyle": "--"})):
        found = [mean_interval(np.array([r[measure] for r in rows if r["bonus"] == bonus])) for bonus in bonuses]
        with_bars(axes, range(len(bonuses)), found, **style, markersize=6, label=words)
    axes.set_title(f"without sampling: KL(pi||p), beta {rows[0]['beta']:g}, {len(seeds)} problems", fontsize=10)
    axes.set_xticks(range(len(bonuses)), [f"{bonus:g}" for bonus in bonuses])
    axes.set_xlabel("entropy bonus (reward per nat)")
    axes.grid(alpha=0.3)
    axes.legend()
