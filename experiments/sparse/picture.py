"""Accuracy over training for each KL term, and how many groups of completions have anything to learn from."""

import numpy as np
from matplotlib.figure import Figure

from experiments.small_scale.campaign import Rows
from experiments.small_scale.records import curve
from experiments.small_scale.seeds import mean_interval
from experiments.small_scale.setting import Setting
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
    first = next(iter(rows.values()))
    every = Setting(*first["setting"]).every
    figure = Figure(figsize=(15, 5.6), layout="constrained")
    figure.suptitle(
        f"One reward at the end of {LENGTH + 1} tokens, with and without a KL term\n"
        f"mean and 95 % interval over {first['seeds']} seeds"
    )
    panels = figure.subplots(1, 3)
    for axes, (measure, words) in zip(panels, SHOWN.items(), strict=True):
        for name, row in rows.items():
            found = [mean_interval(column) for column in curve(row, measure).T]
            updates, colour = np.arange(len(found)) * every, COLOURS[name[:2]]
            label = "no KL term" if name == NONE else f"{WORDS[name[:2]]}, beta {name[2]:g}"
            style = "--" if name[2] == 0.01 else "-"
            axes.plot(updates, [each.mean for each in found], style, color=colour, linewidth=1.3, label=label)
            low, high = [each.low for each in found], [each.high for each in found]
            axes.fill_between(updates, low, high, alpha=0.1, color=colour, linewidth=0)
        axes.set(title=words, xlabel="update", ylabel=words)
        axes.grid(alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure
