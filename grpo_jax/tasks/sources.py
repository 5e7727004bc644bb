"""Rows of JSONL and parquet files, or of anything that yields mappings, each with the place it came from."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

Source = str | Path | Iterable[Mapping[str, Any]]
"""A .jsonl or .parquet file, or rows in memory: a list of dicts, a `datasets.Dataset`."""


class Row(NamedTuple):
    """One row.

    Attributes:
        values: its columns.
        place: where it stands, for messages: "train.jsonl, line 3".
    """

    values: Mapping[str, Any]
    place: str


def read_rows(source: Source) -> list[Row]:
    """Reads all rows of a source.

    Args:
        source: a file, or rows in memory.

    Returns:
        The rows, at least one, all with the same columns. Empty lines of a JSONL file are passed over.

    Raises:
        FileNotFoundError: no such file.
        ImportError: a parquet file, and pyarrow is not installed.
        ValueError: another kind of file, a line that is no JSON object, rows that differ in their columns, no row; with
            the place.
    """
    rows = list(_rows(source))
    name = name_of_source(source)
    if not rows:
        raise ValueError(f"{name} has no rows: give at least one problem")
    first = rows[0]
    for row in rows:
        if row.values.keys() != first.values.keys():
            missing = [column for column in first.values if column not in row.values]
            further = [column for column in row.values if column not in first.values]
            raise ValueError(
                f"{row.place} has other columns than {first.place}: without {missing}, with {further}; give every row "
                "the same (null where one does not apply)"
            )
    return rows


def name_of_source(source: Source) -> str:
    """Returns what a source is called in messages."""
    return str(source) if isinstance(source, str | Path) else "rows in memory"


def _rows(source: Source) -> Iterator[Row]:
    if not isinstance(source, str | Path):
        for number, values in enumerate(source):
            if not isinstance(values, Mapping):
                raise ValueError(f"row {number} is {type(values).__name__}: give a mapping from columns to values")
            yield Row(values, f"row {number}")
        return
    path = Path(source)
    readers = {".jsonl": _json_lines, ".parquet": _parquet}
    if path.suffix not in readers:
        raise ValueError(f"{path}: files end in {' or '.join(readers)}; convert it to one of them")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    yield from readers[path.suffix](path)


def _json_lines(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            place = f"{path}, line {number}"
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except ValueError as error:  # not JSON, or not even text
                raise ValueError(f"{place} is not JSON: {error}") from None
            if not isinstance(values, dict):
                raise ValueError(f"{place} is no JSON object but {type(values).__name__}: give one per line")
            yield Row(values, place)


def _parquet(path: Path) -> Iterator[Row]:
    try:
        from pyarrow.parquet import read_table
    except ImportError as error:
        raise ImportError(f"{path}: parquet files need pyarrow: pip install 'grpo-jax[parquet]'") from error
    for number, values in enumerate(read_table(path).to_pylist()):
        yield Row(values, f"{path}, row {number}")
