"""How a run shows that it moves: a bar on a terminal, plain lines elsewhere."""

import io
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

Stream = TextIO | io.TextIOBase
"""Where text goes."""


class Progress(NamedTuple):
    """Shows where a loop stands.

    Attributes:
        update: ``(step, values) -> None``; ``step`` steps are done, ``values`` (name -> number) is worth showing.
        note: ``(text) -> None``; a line that stays.
    """

    update: Callable[[int, Mapping[str, float | int]], None]
    note: Callable[[str], None]


@contextmanager
def progress(title: str, total: int, *, start: int = 0, stream: Stream | None = None) -> Iterator[Progress]:
    """Shows the progress of a loop until the ``with`` block is left.

    Args:
        title: what is going on, a word or two.
        total: steps in all.
        start: steps done before, in a run that is resumed.
        stream: where to; None: standard output. A terminal gets a bar, anything else about 20 plain lines.

    Yields:
        What the loop calls.
    """
    out = sys.stdout if stream is None else stream
    shown = (_bar if out.isatty() else _lines)(title, total, start, out)
    with shown as it:
        yield it


def _text(values: Mapping[str, float | int]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items())


@contextmanager
def _bar(title: str, total: int, start: int, stream: Stream) -> Iterator[Progress]:
    columns = [
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[values]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    ]
    console = Console(file=cast(TextIO, stream), force_terminal=True)
    with Bar(*columns, console=console, expand=True) as bar:
        task = bar.add_task(title, total=total, completed=start, values="")

        def update(step: int, values: Mapping[str, float | int]) -> None:
            bar.update(task, completed=step, values=_text(values))

        def note(text: str) -> None:
            console.print(text, markup=False, highlight=False)

        yield Progress(update, note)


@contextmanager
def _lines(title: str, total: int, start: int, stream: Stream) -> Iterator[Progress]:
    every = max(1, (total - start) // 20)
    began = time.monotonic()
    due = start + every

    def update(step: int, values: Mapping[str, float | int]) -> None:
        nonlocal due
        if step < due and step != total:
            return
        due = step - (step - start) % every + every
        seconds = (time.monotonic() - began) / max(1, step - start)
        left = f"{seconds * (total - step):.0f} s left"
        print(f"{title} {step}/{total}  {_text(values)}  {seconds:.2f} s/step  {left}", file=stream, flush=True)

    def note(text: str) -> None:
        print(text, file=stream, flush=True)

    yield Progress(update, note)
