"""What the runs say, as a table, sentences and a picture."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.path_planning.evaluation import AGENT_KL
from experiments.small_scale.seeds import in_cell, in_words, mean_interval
from experiments.small_scale.tables import markdown

Rows = dict[tuple, dict[str, Any]]
"""Results by seed and beta."""
MEASURES = {
    "success": "success",
    "of planner": "of the planner's",
    "success_likeliest": "success, likeliest actions",
    "collided": "collided",
    "unfinished": "unfinished",
    "extra_steps": "extra steps",
}
ENOUGH = 0.9
"""The share of the planner's success that a trained policy has to reach."""


def betas(rows: Rows) -> list[float]:
    """Returns every beta of the results, the smallest first."""
    return sorted({beta for _, beta in rows})


def curves(rows: Rows, beta: float, measure: str) -> np.ndarray:
    """Returns a measure of every seed with one beta ``[S, evaluations]``, the first before training."""
    if measure == "of planner":
        return np.array([np.array(row["success"]) / row["planner"] for (_, at), row in rows.items() if at == beta])
    return np.array([row[measure] for (_, at), row in rows.items() if at == beta], float)


def agents_of(rows: Rows) -> list[str]:
    """Returns the names of all agents' KL."""
    first = next(iter(rows.values()))
    return [name for name in (AGENT_KL.format(agent) for agent in range(1, 100)) if name in first]


def table(rows: Rows) -> str:
    """Returns the ends of all runs as a Markdown table: mean over seeds ± half of the 95 % interval.

    Extra steps are beyond the planner's, of successful episodes; KL is each agent's KL(pi||p), nats per episode.
    """
    measures = MEASURES | {name: f"KL of agent {number}" for number, name in enumerate(agents_of(rows), start=1)}
    lines = []
    starts = [(None, betas(rows)[0], 0)] + [(beta, beta, -1) for beta in betas(rows)]
    for shown, beta, at in starts:
        cells = [in_cell(curves(rows, beta, name)[:, at]) for name in measures]
        lines.append(["warm start" if shown is None else f"{shown:g}", *cells])
    return markdown(["beta", *measures.values()], lines)


def verdicts(rows: Rows) -> str:
    """Returns a line for each beta: whether it reaches the planner's share, what training and beta changed."""
    lines, base = [], betas(rows)[0]
    for beta in betas(rows):
        share, success = (curves(rows, beta, name) for name in ("of planner", "success"))
        interval = mean_interval(share[:, -1])
        reached = "reached" if interval.low > ENOUGH else "missed" if interval.high < ENOUGH else "undecided"
        line = f"beta {beta:g}: {interval} of the planner's success, {ENOUGH:.0%} {reached}; training added "
        line += in_words(success[:, -1] - success[:, 0])
        if beta != base:
            line += f"; against beta {base:g} {in_words(success[:, -1] - curves(rows, base, 'success')[:, -1])}"
        lines.append(line)
    return "\n".join(lines)


def draw(rows: Rows) -> Figure:
    """Draws success and the KL of each agent over training, a panel a beta, with 95 % intervals."""
    first, shown = next(iter(rows.values())), betas(rows)
    figure = Figure(figsize=(max(9.5, 3.6 * len(shown)), 7), layout="constrained")
    seeds = len({seed for seed, _ in rows})
    figure.suptitle(
        f"Three agents on grids of 8 x 8: what training makes of agents who ignore each other, {seeds} seeds\n"
        "mean and 95 % interval over seeds (Student's); held-out grids"
    )
    panels = figure.subplots(2, len(shown), sharey="row", sharex=True, squeeze=False)
    updates = np.array(first["update"])
    outcomes = {"success": "all home", "collided": "collision", "unfinished": "out of time"}
    for column, beta in enumerate(shown):
        above, below = panels[:, column]
        for number, (name, words) in enumerate(outcomes.items()):
            _band(above, updates, curves(rows, beta, name), words, f"C{(2, 3, 7)[number]}")
        above.axhline(first["planner"], color="black", linestyle="--", linewidth=1, label="exact planner")
        above.axhline(ENOUGH * first["planner"], color="black", linestyle=":", linewidth=1, label="90 % of it")
        for number, name in enumerate(agents_of(rows)):
            _band(below, updates, curves(rows, beta, name), f"agent {number + 1}", f"C{(0, 1, 4)[number]}")
        above.set_title(f"beta {beta:g}")
        below.set_xlabel("updates")
    panels[0, 0].set_ylabel("share of episodes")
    panels[1, 0].set_ylabel("KL(pi||p) of an agent, nats per episode")
    panels[0, 0].set_ylim(-0.02, 1.04)
    panels[1, 0].set_ylim(bottom=0)
    for axes in panels.flat:
        axes.grid(alpha=0.3)
    for line, words in zip(panels, ("success", "KL"), strict=True):
        line[-1].legend(fontsize="small", title=words, title_fontsize="small", loc="center right")
    return figure


def _band(axes, updates: np.ndarray, values: np.ndarray, label: str, colour: str) -> None:
    each = [mean_interval(values[:, place]) for place in range(values.shape[1])]
    axes.plot(updates, [one.mean for one in each], color=colour, label=label, linewidth=1.4)
    axes.fill_between(updates, [one.low for one in each], [one.high for one in each], color=colour, alpha=0.2)
