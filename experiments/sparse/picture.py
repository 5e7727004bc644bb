"""Accuracy over training for each KL term, and how many groups of completions have anything to learn from."""

from matplotlib.figure import Figure

from experiments.small_scale.campaign import Rows
from experiments.small_scale.pictures import over_updates, sheet
from experiments.sparse.cases import BETTER, NONE, OWN
from experiments.sparse.strings import KIND, LENGTH

SHOWN = {
    f"accuracy_{KIND}": "held-out accuracy",
    "degenerate": "share of groups whose rewards are all equal",
    "reverse_kl": "KL to the start, nats per completion",
}
COLOURS = {NONE[:2]: "black", (OWN, "to go"): "C0", (OWN, "reward"): "C1", (BETTER, "to go"): "C2"}
WORDS = {
    (OWN, "to go"): "KL to the start, to go",
    (OWN, "reward"): "KL to the start, whole",
    (BETTER, "to go"): "teacher",
}


def draw(rows: Rows) -> Figure:
    """Draws three measures over the updates, with 95 % intervals."""
    figure = sheet(rows, f"One reward at the end of {LENGTH + 1} tokens, with and without a KL term", (15, 5.6))
    panels = figure.subplots(1, 3)
    for axes, (measure, words) in zip(panels, SHOWN.items(), strict=True):
        for name, row in rows.items():
            label = "no KL term" if name == NONE else f"{WORDS[name[:2]]}, beta {name[2]:g}"
            style = {"color": COLOURS[name[:2]], "linestyle": "--" if name[2] == 0.01 else "-", "label": label}
            over_updates(axes, row, measure, band=0.1, linewidth=1.3, **style)
        axes.set(title=words, xlabel="update", ylabel=words)
        axes.grid(alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure
