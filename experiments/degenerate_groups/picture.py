"""Training under each rule, and what groups of equal rewards are worth meanwhile."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.degenerate_groups.cases import ADVANTAGES, BETA, FUSED, RESAMPLE, RULES, SMALL
from experiments.small_scale.campaign import Rows
from experiments.small_scale.records import curve
from experiments.small_scale.seeds import mean_interval
from experiments.small_scale.setting import Setting

PANELS = {
    "accuracy_sums": ("in-domain accuracy", "accuracy"),
    "reverse_kl": ("KL to the start", "nats per completion"),
    "degenerate_groups": ("groups of equal rewards", "share of all groups"),
    "gradient_share": ("their gradient", "its norm / norm of the whole gradient"),
}
_RULES = (*RULES, RESAMPLE, FUSED)


def draw(rows: Rows) -> Figure:
    """Draws each measure over the updates, with 95 % intervals: RLOO above and GRPO below."""
    first = next(iter(rows.values()))
    every = Setting(*first["setting"]).every
    figure = Figure(figsize=(19, 9), layout="constrained")
    figure.suptitle(
        f"Rules for groups of equal rewards, in training at beta {BETA:g}, {SMALL:g} and 0\n"
        f"mean and 95 % interval over {first['seeds']} seeds"
    )
    panels = figure.subplots(len(ADVANTAGES), len(PANELS), sharex="col", sharey="col")
    for line, advantage in zip(panels, ADVANTAGES, strict=True):
        for axes, (measure, (title, unit)) in zip(line, PANELS.items(), strict=True):
            for (owner, rule, beta), row in rows.items():
                if owner == advantage:
                    _line(axes, curve(row, measure), every, _style(rule, beta))
            axes.set_title(f"{advantage}: {title}", fontsize="medium")
            axes.set_xlabel("update")
            axes.set_ylabel(unit)
            axes.grid(alpha=0.3)
    figure.legend(*panels[-1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


def _style(rule: str, beta: float) -> dict[str, Any]:
    """One colour a rule; dashed at the small beta, dotted without a KL term."""
    dashes = {BETA: "-", SMALL: "--", 0.0: ":"}[beta]
    return {"color": f"C{_RULES.index(rule)}", "linestyle": dashes, "label": f"{rule}, beta {beta:g}"}


def _line(axes: Any, values: np.ndarray, every: int, style: dict[str, Any]) -> None:
    updates, found = every * np.arange(values.shape[1]), [mean_interval(column) for column in values.T]
    axes.plot(updates, [each.mean for each in found], linewidth=1.3, **style)
    low, high = [each.low for each in found], [each.high for each in found]
    axes.fill_between(updates, low, high, alpha=0.08, color=style["color"], linewidth=0)
