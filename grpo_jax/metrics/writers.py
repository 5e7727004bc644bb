"""Where a row of measures goes: a file of JSON lines, TensorBoard, or several places."""

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
from tensorboardX.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

from grpo_jax import hosts

Row = dict[str, float | int | None]
"""The measures of one step by name, "step" among them; None where a value was not finite."""


class Writer(NamedTuple):
    """Takes rows of measures, in the order of their steps.

    Attributes:
        write: ``(step, row) -> None``; ``row`` is name -> value. On disk when it returns.
        close: ``() -> None``; after it nothing can be written.
    """

    write: Callable[[int, Mapping[str, float | int]], None]
    close: Callable[[], object]


_SILENT = Writer(lambda step, row: None, lambda: None)
"""Of several processes of a run those that do not write have this one."""


def json_lines(path: str | Path, resume_at: int | None = None) -> Writer:
    """Builds the writer of metrics.jsonl: one JSON object per row, ``{"step": 3, "reward_mean": 0.5, ...}``.

    A value that is not finite is written as null, since JSON has no NaN. Rows of two equal runs differ in nothing but
    the measures that ``is_timing`` names.

    Args:
        path: the file; its folder exists.
        resume_at: None starts an empty file; a step keeps the rows up to it, and drops those after it and a last line
            that a killed process left unfinished.

    Raises:
        ValueError: a line that is kept is not a row.
    """
    if not hosts.is_writer():
        return _SILENT
    kept = [] if resume_at is None else [row for row in read_rows(path) if (row["step"] or 0) <= resume_at]
    temporary = Path(f"{path}.tmp")
    temporary.write_text("".join(_line(row) for row in kept), encoding="utf-8")
    os.replace(temporary, path)
    file = open(path, "a", encoding="utf-8")

    def write(step: int, row: Mapping[str, float | int]) -> None:
        file.write(_line({"step": step, **row}))
        file.flush()

    return Writer(write, file.close)


def _line(row: Mapping[str, float | int | None]) -> str:
    finite = {name: value if value is None or math.isfinite(value) else None for name, value in row.items()}
    return json.dumps(finite, allow_nan=False) + "\n"


def read_rows(path: str | Path) -> list[Row]:
    """Returns the rows of a metrics.jsonl, oldest first; no file has no rows.

    Raises:
        ValueError: a line is not a row. A last line without its newline is a row still being written and is left out.
    """
    if not Path(path).exists():
        return []
    *lines, _unfinished = Path(path).read_text(encoding="utf-8").split("\n")
    return [_row(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]


def _row(line: str, place: str) -> Row:
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        row = None
    if not isinstance(row, dict) or not isinstance(row.get("step"), int):
        raise ValueError(f"{place}: expected a JSON object with an integer step, got {line[:80]!r}; remove that line")
    return row


def tensorboard(folder: str | Path, resume_at: int | None = None) -> Writer:
    """Builds the writer of TensorBoard events; a value that is not finite is left out.

    Args:
        folder: where the event files go; created if need be.
        resume_at: a step whose later rows TensorBoard shall hide, since they are written again. None: a new run.
    """
    if not hosts.is_writer():
        return _SILENT
    Path(folder).mkdir(parents=True, exist_ok=True)
    # Not SummaryWriter: its flush returns while events still wait in the queue of a thread.
    events = EventsWriter(str(Path(folder) / "events"), f".{time.time_ns()}")

    def add(**content: Any) -> None:
        events.write_event(Event(wall_time=time.time(), **content))
        events.flush()

    def write(step: int, row: Mapping[str, float | int]) -> None:
        finite = {name: value for name, value in row.items() if math.isfinite(value)}
        add(step=step, summary=Summary(value=[Summary.Value(tag=n, simple_value=v) for n, v in finite.items()]))

    if resume_at is not None:
        add(step=resume_at + 1, session_log=SessionLog(status=SessionLog.START))
    return Writer(write, events.close)


def several(*writers: Writer) -> Writer:
    """Builds a writer that hands each row to all the given ones, in their order."""

    def write(step: int, row: Mapping[str, float | int]) -> None:
        for writer in writers:
            writer.write(step, row)

    def close() -> None:
        for writer in writers:
            writer.close()

    return Writer(write, close)
