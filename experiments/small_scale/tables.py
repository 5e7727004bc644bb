"""Tables of whatever an experiment measures, and differences that are paired by seed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.small_scale.campaign import Rows
from experiments.small_scale.seeds import in_cell, in_words, mean_interval

Columns = Mapping[str, Callable[[Mapping[str, Any]], np.ndarray]]
"""By the name of a measure: from a row to its value in every seed ``[S]``."""


class Page(NamedTuple):
    """What an experiment's page says of its rows.

    Attributes:
        labels: what tells the rows from each other.
        columns: measures of the table.
        first: those of them that are told of where all rows begin.
        compared: those of them whose differences are told.
        pairs: which row is compared with which.
    """

    labels: Sequence[str]
    columns: Columns
    first: Sequence[str]
    compared: Sequence[str]
    pairs: Sequence[tuple[tuple, tuple]]

    def parts(self, rows: Rows) -> tuple[str, str, str]:
        """Returns where the rows begin, their table, and the differences of its pairs."""
        first, compared = ({name: self.columns[name] for name in names} for names in (self.first, self.compared))
        table = table_of(rows, self.labels, self.columns)
        return at_start(rows, first), table, differences(rows, self.pairs, compared)


def table_of(rows: Rows, labels: Sequence[str], columns: Columns) -> str:
    """Returns a Markdown table: of each row its labels, and mean over seeds ± half the width of the 95 % interval."""
    lines = [
        [*(f"{row[label]}" for label in labels), *(in_cell(of(row)) for of in columns.values())]
        for row in rows.values()
    ]
    return markdown([*labels, *columns], lines)


def markdown(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table of cells, as many in each line as there are heads."""
    first, *rest = ("| " + " | ".join(cells) + " |" for cells in (heads, *lines))
    return "\n".join([first, "|---" * len(heads) + "|", *rest])


def differences(rows: Rows, pairs: Sequence[tuple[tuple, tuple]], columns: Columns) -> str:
    """Returns a line for each pair of rows: the first minus the second in every measure, paired by seed.

    With 95 % intervals, and the difference that would have been seen with a probability of 80 %.
    """
    lines = []
    for name, other in pairs:
        said = [f"{measure} {in_words(of(rows[name]) - of(rows[other]))}" for measure, of in columns.items()]
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
