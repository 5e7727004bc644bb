"""Tables of whatever an experiment measures, and differences that are paired by seed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.small_scale.campaign import Rows
from experiments.small_scale.seeds import detectable, mean_interval

Columns = Mapping[str, Callable[[Mapping[str, Any]], np.ndarray]]
"""By the name of a measure: from a row to its value in every seed ``[S]``."""


def table_of(rows: Rows, labels: Sequence[str], columns: Columns) -> str:
    """Returns a Markdown table: of each row its labels, and mean over seeds ± half the width of the 95 % interval."""
    lines = ["| " + " | ".join([*labels, *columns]) + " |", "|---" * (len(labels) + len(columns)) + "|"]
    for row in rows.values():
        found = [mean_interval(of(row)) for of in columns.values()]
        cells = [f"{each.mean:.3g} ±{each.high - each.mean:.2g}" for each in found]
        lines.append("| " + " | ".join([*(f"{row[label]}" for label in labels), *cells]) + " |")
    return "\n".join(lines)


def differences(rows: Rows, pairs: Sequence[tuple[tuple, tuple]], columns: Columns) -> str:
    """Returns a line for each pair of rows: the first minus the second in every measure, paired by seed.

    With 95 % intervals, and the difference that would have been seen with a probability of 80 %.
    """
    lines = []
    for name, other in pairs:
        said = []
        for measure, of in columns.items():
            values = of(rows[name]) - of(rows[other])
            found = mean_interval(values)
            said.append(
                f"{measure} {found.mean:+.3f} ({found.low:+.3f} to {found.high:+.3f}; "
                f"{detectable(values):.3f} seen with 80 %)"
            )
        lines.append(f"{_words(name)} against {_words(other)}: " + "; ".join(said))
    return "\n".join(lines)


def _words(name: tuple) -> str:
    return ", ".join(map(str, name))


def at_start(rows: Rows, columns: Columns) -> str:
    """Returns a line about where all rows begin: every measure before the first update, with its 95 % interval."""
    row = next(iter(rows.values()))
    curves = {name: [seed[:1] for seed in values] for name, values in row.items() if _is_curve(values)}
    return "before training: " + "; ".join(f"{name} {mean_interval(of(curves))}" for name, of in columns.items())


def _is_curve(values: Any) -> bool:
    return isinstance(values, list) and isinstance(values[0], list)
