"""The two pictures: where training goes, and one bump fitted to two modes."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from experiments.fixed_points import modes
from experiments.fixed_points.estimators import ESTIMATORS
from experiments.fixed_points.training import Run, divergence

COLOURS = {
    "reverse": "C0",
    "forward": "C1",
    "local_reverse": "C2",
    "local_forward": "C3",
    "zero": "black",
    "reverse - local_forward": "C4",
}
"""By what is followed: estimators of one target differ in dashes alone, where they differ at all."""
DASHES = ("-", "--", ":", "-.", (0, (1, 4)), (0, (6, 4)))
FLOOR = 1e-20


def draw_training(
    runs: Mapping[str, Run], points: Mapping[str, np.ndarray | None], optimum: np.ndarray, beta: float
) -> Figure:
    """Draws KL to the optimum and to each estimator's predicted point against the step.

    Args:
        runs: by estimator.
        points: log-probabilities of the predicted point; None where nothing is predicted.
        optimum: log-probabilities of pi*.
        beta: strength of the KL term.
    """
    figure = Figure(figsize=(14, 6.5), layout="constrained")
    figure.suptitle(f"Training with exact expected gradients, from the reference, beta = {beta:g}; 15 completions")
    left, right = figure.subplots(1, 2)
    seen: dict[str, int] = {}
    for name, run in runs.items():
        follows = ESTIMATORS[name].target.name
        seen[follows] = seen.get(follows, -1) + 1
        style = {"color": COLOURS[follows], "linestyle": DASHES[seen[follows]], "linewidth": 1.6}
        steps = np.arange(len(run.log_probs))
        left.plot(steps, distance(run, optimum), label=f"{name}: {follows}", **style)
        point = points[name]
        if point is not None:
            right.plot(steps, distance(run, point), **style)
    left.set_title("To the optimum pi*, proportional to p exp(R / beta)")
    right.set_title("To the point predicted from what each follows (same colours)")
    left.set_ylabel("KL(pi || pi*), nats")
    right.set_ylabel("KL(pi || predicted), nats")
    right.axhline(1e-6, color="grey", linewidth=0.8)
    right.text(0, 1.3e-6, "1e-6", color="grey", fontsize="small")
    for axes in (left, right):
        axes.set_yscale("log")
        axes.set_xlabel("step of Adam")
        axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=4, fontsize="small")
    return figure


def distance(run: Run, point: np.ndarray) -> np.ndarray:
    return np.maximum(divergence(run.log_probs, point), FLOOR)


def draw_modes(paths: Mapping[tuple[str, float], np.ndarray]) -> Figure:
    """Draws what the bump became, and the paths of its centre.

    Args:
        paths: centre and width before each step and after the last ``[steps + 1, 2]``, by estimator and start.
    """
    names = list(dict.fromkeys(name for name, _ in paths))
    figure = Figure(figsize=(3.4 * len(names), 7), layout="constrained")
    figure.suptitle("One bump fitted to a reference with two modes by the KL term alone, from three starts")
    grid = figure.subplots(2, len(names), sharey="row", squeeze=False)
    for column, name in enumerate(names):
        above, below = grid[:, column]
        above.bar(modes.ACTIONS, np.exp(modes.reference()), width=1, color="lightgrey", label="reference")
        for number, start in enumerate(dict.fromkeys(centre for _, centre in paths)):
            path = paths[name, start]
            style = {"color": f"C{number}", "linestyle": ("-", "--", ":")[number], "linewidth": 2}
            above.plot(modes.ACTIONS, np.exp(modes.log_bump(*path[-1])), label=f"from {start:g}", **style)
            below.plot(path[:, 0], **style)
        above.set_title(f"{name}\n({ESTIMATORS[name].target.name})", fontsize="medium")
        above.set_xlabel("action")
        below.set_xlabel("step of Adam")
    grid[0, 0].set_ylim(0, 0.32)
    grid[0, 0].set_ylabel("probability")
    grid[1, 0].set_ylabel("centre of the bump (action)")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure
