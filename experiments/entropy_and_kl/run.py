"""An entropy bonus beside a KL term: what it does to KL, entropy and what is learnt. See README.md."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from experiments.entropy_and_kl import exact
from experiments.entropy_and_kl.cases import BETAS, BONUSES, cases
from experiments.entropy_and_kl.picture import draw
from experiments.small_scale.campaign import Rows, campaign
from experiments.small_scale.records import last
from experiments.small_scale.seeds import in_cell, in_words, mean_interval
from experiments.small_scale.setting import SMOKE, Setting
from experiments.small_scale.tables import markdown
from experiments.small_scale.verdict import MEASURES, table

HERE = Path(__file__).parent
SHOWN = ("reverse_kl", "entropy", "accuracy_sums", "accuracy_operators")
"""Measures whose change by the bonus is told."""
PROBLEMS, STEPS = 12, 2000


def changes(rows: Rows) -> str:
    """Returns a line for each bonus above 0: how much it changed each measure at the same beta, paired by seed."""
    lines = []
    for beta in BETAS:
        for bonus in BONUSES[1:]:
            row, without = rows[bonus, beta], rows[0.0, beta]
            said = [f"{MEASURES[each]} {in_words(last(row, each) - last(without, each))}" for each in SHOWN]
            lines.append(f"beta {beta:g}, bonus {bonus:g} against none: " + "; ".join(said))
    return "\n".join(lines)


def exact_table(rows: list[dict[str, Any]]) -> str:
    """Returns the ends without sampling as a Markdown table: mean over problems ± half the 95 % interval."""
    measures = ("kl", "best_kl", "entropy", "best_entropy", "reward", "to_optimum")
    lines = []
    for bonus in sorted({row["bonus"] for row in rows}):
        cells = [in_cell(np.array([row[measure] for row in rows if row["bonus"] == bonus])) for measure in measures]
        lines.append([f"{bonus:g}", *cells])
    return markdown(["bonus", *measures], lines)


def exact_changes(rows: list[dict[str, Any]]) -> str:
    """Returns a line for each bonus above 0: how much it changed the exact KL, paired by problem."""
    lines = []
    without = {row["seed"]: row for row in rows if row["bonus"] == 0}
    for bonus in sorted({row["bonus"] for row in rows} - {0.0}):
        said = []
        for measure, words in (("kl", "as trained"), ("best_kl", "with the entropy of completions")):
            pairs = [row[measure] - without[row["seed"]][measure] for row in rows if row["bonus"] == bonus]
            said.append(f"KL {words} {mean_interval(np.array(pairs))}")
        lines.append(f"exact, bonus {bonus:g} against none: " + "; ".join(said))
    return "\n".join(lines)


def main(seeds: int = 6, out: Path = HERE, smoke: bool = False) -> list[dict[str, Any]]:
    """Trains every bonus with every beta, prints what came of it, and writes two result files and figure.png.

    Args:
        seeds: of each run, each with a warm start of its own.
        out: the folder that is written to; runs that are recorded there are not repeated.
        smoke: one tiny run and two exact ones, nothing written: seconds.
    """
    if smoke:
        rows = campaign(cases()[-1:], SMOKE, 2, None)
        print(table(rows, ("bonus", "beta")))
        print(exact_table([row for seed in range(2) for row in exact.ends(seed, 20, (0.1,))]))
        return list(rows.values())
    listed = [row for seed in range(PROBLEMS) for row in exact.ends(seed, STEPS)]
    (out / "exact.jsonl").write_text("".join(json.dumps(row) + "\n" for row in listed), encoding="utf-8")
    print(exact_table(listed))
    print(exact_changes(listed))
    rows = campaign(cases(), Setting(), seeds, out / "results.jsonl")
    print(table(rows, ("bonus", "beta")))
    print(changes(rows))
    draw(rows, listed).savefig(out / "figure.png", dpi=110)
    return list(rows.values())


if __name__ == "__main__":
    tyro.cli(main)
