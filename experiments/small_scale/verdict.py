"""What the runs say: a table of ends, which intervals lie apart, and what could have been seen."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.small_scale.campaign import Rows
from experiments.small_scale.records import curve, last
from experiments.small_scale.seeds import Interval, in_cell, in_words, mean_interval, share_interval
from experiments.small_scale.tables import markdown

MEASURES = {
    "accuracy_sums": "in-domain accuracy",
    "accuracy_longer": "longer numbers",
    "accuracy_operators": "other operator",
    "accuracy_format": "other format",
    "reverse_kl": "KL(pi||p), nats per completion",
    "forward_kl": "KL(p||pi), nats per completion",
    "entropy": "entropy, nats per completion",
    "gradient_norm": "gradient norm before the clip",
}
"""What every run is looked at for, in words and units."""
OUTSIDE = ("accuracy_longer", "accuracy_operators", "accuracy_format")
FAR = 10.0
"""Nats per completion: beyond this the policy has left its reference behind."""


def collapsed(row: Mapping[str, Any]) -> np.ndarray:
    """Returns which seeds collapsed ``[S]``, as defined before the runs.

    At the last evaluation the in-domain accuracy is below half of the warm start's, or KL(pi||p) is above ``FAR``;
    or an update was rejected because it was not finite.
    """
    accuracy = curve(row, "accuracy_sums")
    lost = accuracy[:, -1] < accuracy[:, 0] / 2
    return lost | (last(row, "reverse_kl") > FAR) | (np.nansum(curve(row, "rejected"), axis=1) > 0)


def regularised(row: Mapping[str, Any]) -> np.ndarray:
    """Returns what is trained for, in-domain accuracy - beta KL(pi||p), of each seed at the end ``[S]``."""
    return last(row, "accuracy_sums") - row["beta"] * last(row, "reverse_kl")


def ends(measures: Iterable[str]) -> dict[str, Callable[[Mapping[str, Any]], Interval]]:
    """Returns how to get the 95 % interval of each measure at the end of a run, by the measure's name.

    Args:
        measures: recorded curves; ``accuracy - beta KL`` and ``collapsed`` are added.
    """

    def of(measure: str) -> Callable[[Mapping[str, Any]], Interval]:
        return lambda row: mean_interval(last(row, measure))

    found = {measure: of(measure) for measure in measures}
    found["accuracy - beta KL"] = lambda row: mean_interval(regularised(row))
    return found | {"collapsed": lambda row: share_interval(int(collapsed(row).sum()), row["seeds"])}


def table(rows: Rows, labels: Sequence[str], measures: Iterable[str] = MEASURES) -> str:
    """Returns the ends of all runs as a Markdown table: mean over seeds, and half the width of the 95 % interval.

    Args:
        rows: results.
        labels: what tells the rows from each other.
        measures: recorded curves.
    """
    columns = ends(measures)
    first = next(iter(rows.values()))
    before = {name: curve(first, name)[:, 0] for name in columns if name in first}
    cells = ["" if name not in before or np.isnan(before[name]).any() else in_cell(before[name]) for name in columns]
    lines = [["warm start", *[""] * (len(labels) - 1), *cells]]
    for row in rows.values():
        values = [last(row, name) if name in row else regularised(row) for name in columns if name != "collapsed"]
        cells = [f"{row[label]}" for label in labels] + [in_cell(value) for value in values]
        lines.append([*cells, f"{int(collapsed(row).sum())}/{row['seeds']}"])
    return markdown([*labels, *columns], lines)


def compared(rows: Rows, pairs: Sequence[tuple[tuple, tuple]], measures: Iterable[str] = MEASURES) -> str:
    """Returns a line for each pair of runs: what lies apart, and which differences in accuracy could have been seen.

    In domain, and out of domain (mean over the other kinds of problem); differences are paired by seed.

    Args:
        rows: results.
        pairs: names of runs, the second the one to compare with.
        measures: recorded curves.
    """
    lines = []
    for name, other in pairs:
        row, base = rows[name], rows[other]
        apart = [measure for measure, of in ends(measures).items() if of(row).apart_from(of(base))]
        inside = last(row, "accuracy_sums") - last(base, "accuracy_sums")
        outside = np.mean([last(row, kind) - last(base, kind) for kind in OUTSIDE], axis=0)
        lines.append(
            f"{_words(name)} against {_words(other)}: intervals apart in {', '.join(apart) or 'nothing'}; "
            f"accuracy {in_words(inside)} in domain, {in_words(outside)} out of domain"
        )
    return "\n".join(lines)


def _words(name: tuple) -> str:
    return " ".join(map(str, name))
