"""One picture: the article's smooth weight beside ours, and how far each KL term is from the gradient it stands for."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from experiments.claims.claim import EXACT
from experiments.claims.degenerate_groups import article_weight, our_weight
from experiments.claims.instances import built, distances

SHOWN = (
    "k1 loss",
    "k3 reward",
    "full reward",
    "k3 both, beta/2",
    "k3 loss",
    "k3 loss, sequence",
    "k2 loss",
    "full loss",
    "k2 loss, sequence",
    "k1 reward",
    "k1 to go",
    "k3 both",
    "full both",
)
COLOURS = {"reverse": "tab:green", "another KL, or a part of it": "tab:orange", "no pull, or no KL": "tab:red"}
FLOOR = 1e-17


def draw(seeds: tuple[int, ...]) -> Figure:
    """Draws both panels."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
    weights(left)
    bars(right, seeds)
    return figure


def weights(axes: Any) -> None:
    """The weight of a group against the std of its rewards; two rewards of the same size either side of the mean."""
    stds = np.concatenate([[0], np.geomspace(1e-6, 1, 200)])
    theirs, ours = article_weight(stds), our_weight(stds[:, None] * np.array([[-1.0, 1.0]]))
    axes.plot(stds, theirs, color="tab:red", label="article: sigmoid((std - 1e-6) * 1000)")
    axes.plot(stds, ours, color="tab:green", label="ours: tanh(std / .001)")
    axes.plot([0, 0], [theirs[0], float(ours[0])], "k.", clip_on=False)
    axes.annotate(f"{theirs[0]:.5f}", (0, theirs[0]), (6, 8), textcoords="offset points")
    axes.annotate("exactly 0", (0, 0), (6, 6), textcoords="offset points")
    axes.set_xscale("symlog", linthresh=1e-5)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.05)
    axes.set_xticks([0, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1], ["0", "1e-5", "1e-4", "1e-3", ".01", ".1", "1"])
    axes.set_xlabel("standard deviation of the group's rewards (units of the reward)")
    axes.set_ylabel("weight of the group (no unit)")
    axes.set_title("Smooth weight where rewards are nearly equal")
    axes.legend(loc="lower right", fontsize="small")


def bars(axes: Any, seeds: tuple[int, ...]) -> None:
    """Relative distance of each term to grad KL(pi, p), the largest of all seeds, on a logarithmic axis."""
    far = [max(distances(name, "reverse", seeds).max(), FLOOR) for name in SHOWN]
    axes.barh(SHOWN, far, left=0, color=[COLOURS[kind(name, each)] for name, each in zip(SHOWN, far, strict=True)])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(FLOOR, 100)
    axes.axvline(EXACT, color="grey", linestyle=":", linewidth=1)
    axes.set_xlabel("distance to grad KL(pi, p), relative to its norm (no unit); dotted: 1e-12")
    axes.set_title("Expected gradient of each KL term, on-policy, exact")
    handles = [Patch(color=colour, label=label) for label, colour in COLOURS.items()]
    axes.legend(handles=handles, title="follows", loc="lower right", fontsize="small")


def kind(name: str, distance: float) -> str:
    """What a term follows, as found where that is the reverse KL, else as it declares."""
    if distance < EXACT:
        return "reverse"
    target = built(name).target
    single = len(target.coefficients) == 1 and not target.none
    return "another KL, or a part of it" if single and target.slope > 0 else "no pull, or no KL"
