"""What a run left in its folder, read back."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from grpo_jax.config import Config, load
from grpo_jax.diagnosis import Finding, diagnose
from grpo_jax.metrics import Row, read_json, read_rows

_SHOWN = 20_000
"""Characters of samples that a page shows of each file."""


class RecordedRun(NamedTuple):
    """A run as its folder has it.

    Attributes:
        name: what it is called; no two runs of a page have the same.
        folder: where it lies.
        config: its configuration.
        rows: its measures, oldest first; none where it has just begun.
        findings: what the rules find in them.
        samples_before: completions before training, as text; "" where there are none.
        samples_after: completions after it.
        summary: what it wrote at its end; empty where it has not ended.
    """

    name: str
    folder: Path
    config: Config
    rows: list[Row]
    findings: list[Finding]
    samples_before: str
    samples_after: str
    summary: dict[str, Any]

    @property
    def step(self) -> int:
        """The last update that it wrote down."""
        return int(self.rows[-1]["step"] or 0) if self.rows else 0


def read_runs(folders: Sequence[Path]) -> list[RecordedRun]:
    """Reads runs from their folders.

    Args:
        folders: one a run; a run is called as its folder, with as many folders above it as tell it from the others.

    Raises:
        FileNotFoundError: a folder that is not there, or that is no run's.
        ValueError: no folder, one that is given twice, or a file in it that is broken.
    """
    if not folders:
        raise ValueError("no runs: name at least one run's folder")
    resolved = [folder.resolve() for folder in folders]
    for number, folder in enumerate(resolved):
        if folder in resolved[:number]:
            raise ValueError(f"{folders[number]} is given twice; name each run once")
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no folder {folders[number]}; name a run's folder")
        if not (folder / "config.json").is_file():
            raise FileNotFoundError(f"{folders[number]} is not a run's folder: it has no config.json")
    return [_read(name, folder) for name, folder in zip(_names(resolved), folders, strict=True)]


def _names(folders: Sequence[Path]) -> list[str]:
    """Returns the shortest ends of the paths that differ from each other."""

    def alone(folder: Path, size: int) -> bool:
        return sum(other.parts[-size:] == folder.parts[-size:] for other in folders) == 1

    longest = max(len(folder.parts) for folder in folders)
    sizes = [next(size for size in range(1, longest + 1) if alone(folder, size)) for folder in folders]
    return ["/".join(folder.parts[-size:]) for folder, size in zip(folders, sizes, strict=True)]


def _read(name: str, folder: Path) -> RecordedRun:
    config, rows = load(folder / "config.json"), read_rows(folder / "metrics.jsonl")
    summary = folder / "summary.json"
    return RecordedRun(
        name=name,
        folder=folder,
        config=config,
        rows=rows,
        findings=diagnose(rows, config),
        samples_before=_text(folder / "samples_before.txt"),
        samples_after=_text(folder / "samples_after.txt"),
        summary=read_json(summary) if summary.is_file() else {},
    )


def _text(path: Path) -> str:
    if not path.is_file():
        return ""
    text = path.read_text(encoding="utf-8", errors="replace")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}\n... ({len(text) - _SHOWN:,} more characters in {path})"
