"""The second task over training, and what is left of the first against what was gained."""

from typing import Any

from matplotlib.figure import Figure

from experiments.small_scale.campaign import Rows
from experiments.small_scale.pictures import over_updates, sheet
from experiments.small_scale.records import last
from experiments.small_scale.seeds import mean_interval

CURVES = {"accuracy_sums": "A, two-digit sums", "accuracy_operators": "B, two-digit differences"}


def draw(rows: Rows) -> Figure:
    """Draws accuracy on both tasks over the updates and against each other at the end, with 95 % intervals."""
    figure = sheet(rows, "Learning B after A, the reference being the policy that knows A", (15, 5.8))
    panels = figure.subplots(1, 3)
    for name, row in rows.items():
        style = _style(name)
        for axes, (measure, title) in zip(panels[:2], CURVES.items(), strict=True):
            banded = row["share"] == 0 and row["beta"] in (0.0, 1.0)  # all bands would hide each other
            over_updates(axes, row, measure, band=0.12 if banded else 0, linewidth=1.3, **style)
            axes.set(title=title, xlabel="update of B", ylabel="held-out accuracy")
        b, a = (mean_interval(last(row, measure)) for measure in ("accuracy_operators", "accuracy_sums"))
        panels[2].errorbar(
            [b.mean], [a.mean], [[a.mean - a.low], [a.high - a.mean]], [[b.mean - b.low], [b.high - b.mean]],
            marker=style["marker"], color=style["color"], markersize=6, elinewidth=0.5, linestyle="",
        )  # fmt: skip
    panels[2].set(title="at the end", xlabel="accuracy on B", ylabel="accuracy on A")
    for axes in panels:
        axes.grid(alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=9)
    return figure


def _style(name: tuple) -> dict[str, Any]:
    placement, beta, replay, share = name
    if replay != "none":
        words = f"A in {share:g} of the prompts" + (", KL alone" if replay == "KL alone" else "")
        number = 4 if replay == "KL alone" else {0.1: 6, 0.3: 3}[share]
        line, marker = ("-.", "D") if replay == "KL alone" else ("--", "s")
        words += f", beta {beta:g}" if beta else ", no KL term"
        return {"color": f"C{number}", "linestyle": line, "marker": marker, "markevery": 2, "label": words}
    if placement == "none":
        return {"color": "black", "linestyle": "-", "marker": "o", "markevery": 2, "label": "no KL term"}
    if placement == "loss":
        return {
            "color": "0.5",
            "linestyle": ":",
            "marker": "x",
            "markevery": 2,
            "label": f"k1 in the loss, beta {beta:g}",
        }
    number = {0.1: 0, 0.3: 1, 1.0: 2}[beta]
    return {"color": f"C{number}", "linestyle": "-", "marker": "o", "markevery": 2, "label": f"k1 to go, beta {beta:g}"}
