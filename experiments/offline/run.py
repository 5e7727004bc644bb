"""Learning from a behaviour policy's fixed data, with exact evaluation: importance forms over beta. See README.md."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from experiments.offline import mdp
from experiments.offline.forms import FORMS, objective_of
from experiments.offline.picture import draw
from experiments.offline.training import MEASURES, SMOKE, Plan, material, trained
from experiments.small_scale.records import append, last, recorded, row_of
from experiments.small_scale.seeds import in_cell, in_words, mean_interval
from experiments.small_scale.tables import markdown

HERE = Path(__file__).parent
BETAS = (0.0, 0.1, 0.2, 0.5)
TABULATED = (0.0, 0.2)
Rows = dict[tuple, dict[str, Any]]
"""Results by form, number of trajectories and beta."""


def rows_of(plan: Plan, forms: Sequence[str], results: Path | None) -> Rows:
    """Trains what is not recorded yet.

    Raises:
        ValueError: the file holds rows of another plan.
    """
    labels = ("form", "trajectories", "beta")
    done = {} if results is None else recorded(results, labels)
    described = [plan.seeds, plan.updates, plan.every, plan.learning_rate]
    if any(row["plan"] != described for row in done.values()):
        raise ValueError(f"{results} holds rows of another plan; move it away")
    for groups in plan.sizes:
        known, data = material(plan, groups)
        for form in forms:
            names = [(form, groups * mdp.GROUP, beta) for beta in BETAS]
            if all(name in done for name in names):
                continue
            began = time.monotonic()
            curves = trained(objective_of(form), plan, known, data, BETAS)
            print(f"{names[0][:2]}: {time.monotonic() - began:.1f} s", flush=True)
            for place, name in enumerate(names):
                made: dict[str, Any] = dict(zip(labels, name, strict=True))
                made |= {"follows": objective_of(form).off_policy_target.name, "plan": described}
                done[name] = row_of(made, {measure: curves[measure][place] for measure in MEASURES})
                if results is not None:
                    append(results, done[name])
    return done


def table(rows: Rows, shown: Sequence[float]) -> str:
    """Returns the ends of training as a Markdown table: mean over seeds ± half the 95 % interval."""
    lines = []
    for (form, count, beta), row in sorted(rows.items(), key=lambda item: (item[0][1], item[0][2])):
        if beta in shown:
            lines.append([f"{count}", f"{beta:g}", form, *(in_cell(last(row, measure)) for measure in MEASURES)])
    return markdown(["trajectories", "beta", "form", *MEASURES], lines)


def against_none(rows: Rows) -> str:
    """Returns a line for each form, size and beta above 0: what it changes against beta 0, paired by seed."""
    lines = []
    for form, count, beta in sorted(rows, key=lambda name: name[1]):
        if beta == BETAS[0]:
            continue
        row, free = rows[form, count, beta], rows[form, count, 0.0]
        gain = last(row, "gain") - last(free, "gain")
        error = [np.abs(last(each, "promised") - last(each, "gain")) for each in (row, free)]
        smaller = np.log(error[0]) - np.log(error[1])
        factor = mean_interval(smaller)
        lines.append(
            f"{count} trajectories, {form}, beta {beta:g} against 0: gain {in_words(gain)}, |promised - gain| times "
            f"{np.exp(factor.mean):.2g} ({np.exp(factor.low):.2g} to {np.exp(factor.high):.2g})"
        )
    return "\n".join(lines)


def main(out: Path = HERE, smoke: bool = False) -> list[dict[str, Any]]:
    """Trains every form at every beta and size of data, prints the ends, writes results.jsonl and figure.png.

    Args:
        out: the folder that is written to; what is recorded there is not repeated.
        smoke: one form on little data, nothing written: seconds.
    """
    plan, forms = (SMOKE, ["sequence"]) if smoke else (Plan(), list(FORMS))
    rows = rows_of(plan, forms, None if smoke else out / "results.jsonl")
    print(table(rows, TABULATED))
    print(against_none(rows))
    if not smoke:
        draw(rows, plan.seeds).savefig(out / "figure.png", dpi=110)
    return list(rows.values())


if __name__ == "__main__":
    tyro.cli(main)
