"""A certificate: what an objective follows on-policy and off-policy, to print, save and draw."""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.table import Table

from grpo_jax.oracle.judgement import TOLERANCE, Record
from grpo_jax.oracle.picture import picture


@dataclass(frozen=True, repr=False)
class Certificate:
    """Which gradient an objective follows, exactly, on one instance.

    Print it, or end a notebook's cell with it.

    Attributes:
        name: what was certified.
        on: where the current policy samples.
        off: where another policy samples.
        notes: what else the objective declares, a sentence each.
    """

    name: str
    on: Record
    off: Record
    notes: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether both findings are what the objective declares."""
        return self.on.agrees and self.off.agrees

    @property
    def verdict(self) -> str:
        """The findings in two sentences."""
        return f"On-policy: {self.on.sentence} Off-policy: {self.off.sentence}"

    def to_json(self, path: str | Path | None = None) -> str:
        """Returns both records as a JSON list; writes it where a path is given."""
        return to_json((self.on, self.off), path)

    def plot(self, path: str | Path | None = None) -> Any:
        """Returns a Figure of the relative distances to every target; saves it where a path is given."""
        return plot((self.on, self.off), self.name, path)

    def __rich__(self) -> Group:
        notes = [f"[dim]{note}[/dim]" for note in self.notes]
        return Group(f"[bold]{self.name}[/bold]", table((self.on, self.off)), self.verdict, *notes)

    def __repr__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=120, color_system=None, force_jupyter=False).print(self)
        return text.getvalue().rstrip()


def to_json(records: Sequence[Record], path: str | Path | None = None) -> str:
    """Returns records as a JSON list of objects, one a line; writes it where a path is given."""
    lines = ",\n".join(json.dumps(record._asdict(), allow_nan=False) for record in records)
    text = f"[\n{lines}\n]\n"
    if path is not None:
        Path(path).write_text(text)
    return text


def table(records: Sequence[Record]) -> Table:
    """Returns the findings, one column a record, the distances to all targets below each other."""
    rows = Table()
    rows.add_column("")
    for record in records:
        rows.add_column(f"{record.behaviour}-policy", justify="right")

    def add(heading: str, cell: Callable[[Record], str]) -> None:
        rows.add_row(heading, *(cell(record) for record in records))

    add("declared", lambda record: record.declared)
    add("as declared", lambda record: "yes" if record.agrees else "[bold red]NO[/bold red]")
    for name in records[0].distances:
        add(f"distance to {name}", lambda record, name=name: distance_in_words(record.distances[name]))
    add("variance, one group", lambda record: f"{record.variance:.3g}")
    add("effective sample size", lambda record: f"{record.effective_sample_size:.2f}")
    return rows


def plot(records: Sequence[Record], title: str, path: str | Path | None = None) -> Any:
    """Returns a Figure with bars of the relative distances to every target, one colour a record, on a logarithmic axis.

    Args:
        records: a few records with the same targets.
        title: stands above.
        path: where to save the picture; its suffix decides the format.
    """
    figure = picture(9, 4)
    axes = figure.subplots()
    names = list(records[0].distances)
    width = 0.8 / len(records)
    for number, record in enumerate(records):
        heights = [max(record.distances[name] or 0.0, 1e-17) for name in names]
        places = [index + (number - (len(records) - 1) / 2) * width for index in range(len(names))]
        axes.bar(places, heights, width, label=f"{record.behaviour}-policy: declares {record.declared}")
    axes.axhline(TOLERANCE, color="grey", linestyle=":", linewidth=1)
    axes.set_yscale("log")
    axes.set_ylim(bottom=1e-17)
    axes.set_xticks(range(len(names)), [name.replace("_", "\n") for name in names])
    axes.set_ylabel("relative distance")
    axes.set_title(title.replace("; ", "\n"), fontsize="medium")
    figure.legend(fontsize="small", loc="outside lower center", ncols=len(records))
    if path is not None:
        figure.savefig(path)
    return figure


def distance_in_words(distance: float | None) -> str:
    """Returns a relative distance for a table, green where it is none; "-" where the target itself is 0."""
    if distance is None:
        return "-"
    text = f"{distance:.1e}" if distance < 1e-3 or distance >= 1e3 else f"{distance:.3f}"
    return f"[bold green]{text}[/bold green]" if distance < TOLERANCE else text
