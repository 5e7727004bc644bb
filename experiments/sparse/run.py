"""A reward at the end of a long answer, with and without the dense signal of a KL term. See README.md."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from experiments.small_scale.campaign import campaign
from experiments.small_scale.records import CACHE, curve, last
from experiments.small_scale.setting import SMOKE
from experiments.small_scale.tables import Page, table_of
from experiments.sparse.cases import BETAS, NAMES, NONE, OWN, SETTING, cases, imitated, teacher
from experiments.sparse.picture import draw
from experiments.sparse.strings import KIND, world

HERE = Path(__file__).parent
LABELS = ("KL to", "k1", "beta")
ACCURACY = f"accuracy_{KIND}"


def area(row: Mapping[str, Any]) -> np.ndarray:
    """Returns each seed's accuracy, averaged over the evaluations after the start ``[S]``: how soon it is learnt."""
    return np.mean(curve(row, ACCURACY)[:, 1:], axis=1)


COLUMNS = {
    "accuracy": lambda row: last(row, ACCURACY),
    "mean over training": area,
    "groups without signal": lambda row: curve(row, "degenerate")[:, 1],
    "gradient norm": lambda row: curve(row, "gradient_norm")[:, 1],
    "KL to start": lambda row: last(row, "reverse_kl"),
    "entropy": lambda row: last(row, "entropy"),
}
"""Signal and gradient norm are means up to the first evaluation; KL and entropy are in nats per completion."""


def pairs() -> list[tuple[tuple, tuple]]:
    """Returns which case is compared with which."""
    return [(name, NONE) for name in NAMES[1:]] + [((OWN, "reward", beta), (OWN, "to go", beta)) for beta in BETAS]


PAGE = Page(LABELS, COLUMNS, ("accuracy", "entropy"), ("accuracy", "mean over training", "gradient norm"), pairs())


def main(seeds: int = 6, out: Path = HERE, smoke: bool = False) -> list[dict[str, Any]]:
    """Trains with and without a KL term, prints what came of it, and writes results.jsonl and figure.png.

    Args:
        seeds: of each run, each with a warm start of its own.
        out: the folder that is written to; runs that are recorded there are not repeated.
        smoke: one tiny run, nothing written: seconds.
    """
    if smoke:
        small = SMOKE._replace(slips=1.0)
        rows = campaign(cases(teacher(small, None))[-1:], small, 2, None, None, imitated, world)
        print(table_of(rows, LABELS, COLUMNS))
        return list(rows.values())
    rows = campaign(cases(teacher(SETTING, CACHE)), SETTING, seeds, out / "results.jsonl", None, imitated, world)
    print(*PAGE.parts(rows), sep="\n")
    draw(rows).savefig(out / "figure.png", dpi=110)
    return list(rows.values())


if __name__ == "__main__":
    tyro.cli(main)
