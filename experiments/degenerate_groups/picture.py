"""Training under each rule, and what groups of equal rewards are worth meanwhile."""

from typing import Any

from matplotlib.figure import Figure

from experiments.degenerate_groups.cases import ADVANTAGES, BETA, FUSED, RESAMPLE, RULES, SMALL
from experiments.small_scale.campaign import Rows
from experiments.small_scale.pictures import over_updates, sheet

PANELS = {
    "accuracy_sums": ("in-domain accuracy", "accuracy"),
    "reverse_kl": ("KL to the start", "nats per completion"),
    "degenerate_groups": ("groups of equal rewards", "share of all groups"),
    "gradient_share": ("their gradient", "its norm / norm of the whole gradient"),
}
_RULES = (*RULES, RESAMPLE, FUSED)


def draw(rows: Rows) -> Figure:
    """Draws each measure over the updates, with 95 % intervals: RLOO above and GRPO below."""
    title = f"Rules for groups of equal rewards, in training at beta {BETA:g}, {SMALL:g} and 0"
    figure = sheet(rows, title, (19, 9))
    panels = figure.subplots(len(ADVANTAGES), len(PANELS), sharex="col", sharey="col")
    for line, advantage in zip(panels, ADVANTAGES, strict=True):
        for axes, (measure, (title, unit)) in zip(line, PANELS.items(), strict=True):
            for (owner, rule, beta), row in rows.items():
                if owner == advantage:
                    over_updates(axes, row, measure, band=0.08, linewidth=1.3, **_style(rule, beta))
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
