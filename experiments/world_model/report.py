"""What the runs say, as a table, sentences and a picture."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.small_scale.seeds import in_cell, in_words, mean_interval
from experiments.small_scale.tables import markdown
from experiments.world_model.training import PENALTIES
from experiments.world_model.world import ROWS, STARTS, best

MEASURES = {
    "true_return": "return in the world",
    "model_return": "return in the model",
    "overestimated": "overestimated by",
    "model_kl": "KL of the model",
    "policy_kl": "KL of the policy",
}


SHOWN = (("none", 0.0), ("model to truth", 1.0), ("policy to reference", 0.1))
"""Penalty and strength of the runs whose moves are drawn prompt by prompt."""


def values(row: dict[str, Any], measure: str) -> np.ndarray:
    """Returns a measure of every seed ``[S]``."""
    if measure == "overestimated":
        return np.array(row["model_return"]) - np.array(row["true_return"])
    return np.array(row[measure])


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Returns all runs as a Markdown table: mean over seeds ± half of the 95 % interval; KL in nats per episode."""
    lines = []
    for row in rows:
        cells = [in_cell(values(row, measure)) for measure in MEASURES]
        lines.append([row["penalty"], f"{row['strength']:g}", *cells])
    return markdown(["penalty", "strength", *MEASURES.values()], lines)


def verdicts(rows: Sequence[dict[str, Any]]) -> str:
    """Returns a line for each penalty and strength: the return in the true world against none, paired by seed."""
    base, lines = rows[0], []
    for row in rows[1:]:
        difference = values(row, "true_return") - values(base, "true_return")
        lines.append(f"{row['penalty']} {row['strength']:g} against none: return in the world {in_words(difference)}")
    return "\n".join(lines)


def draw(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draws both returns over the strength of each penalty, and how far each prompt was moved at each token."""
    figure = Figure(figsize=(13, 7), layout="constrained")
    figure.suptitle(
        f"A policy trained in a model that knows of no ice, {rows[0]['seeds']} seeds\n"
        "above: mean and 95 % interval over seeds (Student's); below: mean over seeds"
    )
    panels = figure.subplots(2, len(PENALTIES))
    for axes, penalty in zip(panels[0], PENALTIES, strict=True):
        shown = [rows[0], *(row for row in rows if row["penalty"] == penalty)]
        for number, measure in enumerate(("model_return", "true_return")):
            each = [mean_interval(values(row, measure)) for row in shown]
            bars = [[one.mean - one.low for one in each], [one.high - one.mean for one in each]]
            means = [one.mean for one in each]
            axes.errorbar(
                range(len(shown)), means, bars, marker="o", capsize=3, label=MEASURES[measure], color=f"C{number}"
            )
        axes.axhline(best(), color="black", linestyle="--", linewidth=1, label="best possible in the world")
        axes.set_xticks(range(len(shown)), [f"{row['strength']:g}" for row in shown])
        axes.set_xlabel("strength (gain per nat)")
        axes.set_title(f"KL of the {penalty}" if penalty != "model to model" else "KL of a model to another")
        axes.grid(alpha=0.3)
    panels[0, 0].set_ylabel("expected gain of an episode")
    panels[0, -1].legend(fontsize="small")
    for axes, (name, strength) in zip(panels[1], SHOWN, strict=True):
        row = next(row for row in rows if (row["penalty"], row["strength"]) == (name, strength))
        image = axes.imshow(np.array(row["moved"]), vmin=0, vmax=np.max(rows[0]["moved"]), aspect="auto")
        axes.set_title(f"each token's move: {name} {strength:g}", fontsize="medium")
        axes.set_xlabel("token (step of the episode)")
        axes.set_yticks(range(len(STARTS)), [str(start // len(ROWS) + 1) for start in STARTS])
    panels[1, 0].set_ylabel("prompt (row of the start)")
    figure.colorbar(image, ax=panels[1], label="KL(pi||p), nats per token")
    return figure
