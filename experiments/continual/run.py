"""A second task after a first one: what a KL term, its placement, and replay keep of the first. See README.md."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from experiments.continual.cases import (
    BETAS,
    BIASED,
    LABELS,
    NONE,
    SECOND,
    SETTING,
    SHARES,
    SILENT,
    cases,
    learnt_first,
)
from experiments.continual.picture import draw
from experiments.small_scale.campaign import campaign
from experiments.small_scale.evaluation import kl_on
from experiments.small_scale.records import curve, last
from experiments.small_scale.setting import SMOKE
from experiments.small_scale.tables import Page, table_of

HERE = Path(__file__).parent


def _change(measure: str) -> Callable[[Mapping[str, Any]], np.ndarray]:
    return lambda row: last(row, measure) - curve(row, measure)[:, 0]


COLUMNS = {
    "A": lambda row: last(row, "accuracy_sums"),
    "B": lambda row: last(row, "accuracy_operators"),
    "forgotten of A": lambda row: -_change("accuracy_sums")(row),
    "gained on B": _change("accuracy_operators"),
    "both": lambda row: (last(row, "accuracy_sums") + last(row, "accuracy_operators")) / 2,
    "KL on A": lambda row: last(row, "reverse_kl"),
    "KL on B": lambda row: last(row, "reverse_kl_operators"),
    "other format": lambda row: last(row, "accuracy_format"),
}
"""Held-out accuracies, their changes since the second task began, and KL(pi||p) in nats per completion."""


def pairs() -> list[tuple[tuple, tuple]]:
    """Returns which case is compared with which."""
    held = [("to go", beta, "none", 0.0) for beta in BETAS]
    again = [("none", 0.0, "rewarded", share) for share in SHARES]
    silent = ("to go", SILENT, "KL alone", SHARES[1])
    found = [(name, NONE) for name in (*held, ("loss", BIASED, "none", 0.0), *again)]
    return [*found, *((again[1], name) for name in held), (silent, ("to go", SILENT, "none", 0.0)), (again[1], silent)]


PAGE = Page(LABELS, COLUMNS, ("A", "B", "other format"), ("A", "B", "both", "KL on A", "KL on B"), pairs())


def main(seeds: int = 6, out: Path = HERE, smoke: bool = False) -> list[dict[str, Any]]:
    """Trains the second task in every way, prints what came of it, and writes results.jsonl and figure.png.

    Args:
        seeds: of each run, each with a first task of its own.
        out: the folder that is written to; runs that are recorded there are not repeated.
        smoke: one tiny run, nothing written: seconds.
    """
    also = kl_on(SECOND)
    if smoke:
        rows = campaign(cases(SMOKE)[-1:], SMOKE, 2, None, also, learnt_first)
        print(table_of(rows, LABELS, COLUMNS))
        return list(rows.values())
    rows = campaign(cases(), SETTING, seeds, out / "results.jsonl", also, learnt_first)
    print(*PAGE.parts(rows), sep="\n")
    draw(rows).savefig(out / "figure.png", dpi=110)
    return list(rows.values())


if __name__ == "__main__":
    tyro.cli(main)
