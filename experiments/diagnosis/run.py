"""Provokes each fault that the diagnosis knows, in a real run, and says whether it is recognised. See README.md."""

import contextlib
import functools
import io
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import tyro

from experiments.diagnosis.faults import FAULTS, Fault
from experiments.diagnosis.figure import save_figure
from experiments.small_scale.seeds import share_interval
from grpo_jax.config import Config
from grpo_jax.diagnosis import diagnose
from grpo_jax.metrics import read_rows
from grpo_jax.program import Program, compile_program
from grpo_jax.train import train

HERE = Path(__file__).parent
QUICK = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
"""Compiling takes longer than so small a run."""
_TWINS = (False, True)


def provoked(fault: Fault, seed: int, twin: bool = False, steps: int | None = None) -> dict[str, Any]:
    """Trains a run with a fault, or its healthy twin, and returns what it said of itself.

    Returns:
        The fault, the seed, whether it is the twin; the names found while the run trained; whether that is right; the
        finding in words; the last update of its evidence; and the measure that the fault shows in, at each update.

    Raises:
        AssertionError: `diagnose` finds something else afterwards than the run did itself.
    """
    config = fault.config(seed, twin)
    config = config if steps is None else replace(config, steps=steps)
    broken = (lambda program: program) if twin else fault.program
    # A broken sampler is no configuration, so it has to be built into the run.
    built = mock.patch("grpo_jax.train.compile_program", lambda config, objective: broken(_compiled(config)))
    with tempfile.TemporaryDirectory() as folder, built, contextlib.redirect_stdout(io.StringIO()):
        train(config, Path(folder) / "run")
        lines = (Path(folder) / "run" / "diagnosis.jsonl").read_text(encoding="utf-8").splitlines()
        rows = read_rows(Path(folder) / "run" / "metrics.jsonl")
    found = [json.loads(line) for line in lines]
    afterwards = [finding._asdict() for finding in diagnose(rows, config)]
    assert afterwards == found, f"{fault.title}, seed {seed}: told {found}, found afterwards {afterwards}"
    shown = next((finding for finding in found if finding["name"] == fault.name), None)
    return {
        "fault": fault.title,
        "seed": seed,
        "twin": twin,
        "found": [finding["name"] for finding in found],
        "right": not found if twin else shown is not None,
        "evidence": None if shown is None else shown["evidence"],
        "cause": None if shown is None else shown["cause"],
        "last": None if shown is None else shown["last"],
        "values": [float(f"{row[fault.measure]:.4g}") for row in rows if row.get(fault.measure) is not None],
    }


def _compiled(config: Config) -> Program:
    """Returns the program, which is the same for every seed."""
    return _program(replace(config, seed=0))


@functools.cache
def _program(config: Config) -> Program:
    return compile_program(config)


def table(rows: list[dict[str, Any]]) -> str:
    """Returns a line for each fault: how many runs were recognised and what else was said of them; silent twins.

    Shares have exact 95 % intervals.
    """
    lines = ["| fault | finding | recognised | at update | also found | silent twins |", "|---|---|---|---|---|---|"]
    for fault in FAULTS:
        runs, twins = ([row for row in rows if (row["fault"], row["twin"]) == (fault.title, twin)] for twin in _TWINS)
        also = sorted({name for row in runs for name in row["found"]} - {fault.name})
        told = sorted(row["last"] for row in runs if row["last"] is not None)
        updates = f"{told[0]} to {told[-1]}" if told else ""
        cells = [fault.title, f"`{fault.name}`", _share(runs), updates, ", ".join(also), _share(twins)]
        lines.append("| " + " | ".join(cells) + " |")
    faulty, twins = ([row for row in rows if row["twin"] == twin] for twin in _TWINS)
    lines.append(f"| together | | {_share(faulty)} | | | {_share(twins)} |")
    return "\n".join(lines)


def _share(runs: list[dict[str, Any]]) -> str:
    if not runs:
        return ""
    right = sum(row["right"] for row in runs)
    interval = share_interval(right, len(runs))
    return f"{right} of {len(runs)} ({interval.low:.2f} to {interval.high:.2f})"


def main(seeds: int = 5, results: Path = HERE / "results.jsonl", smoke: bool = False) -> None:
    """Runs every fault and its twin with several seeds; those that the results have are not run again.

    Args:
        seeds: runs of each, with seeds 0, 1, ...
        results: the file that a line is appended to for each run; figure.png is drawn beside it.
        smoke: one fault alone, ten updates, nothing kept.
    """
    os.environ.setdefault("XLA_FLAGS", QUICK)
    if smoke:
        row = provoked(FAULTS[0], 0, steps=10)
        print(table([row]))
        assert row["right"], row
        return
    rows = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    done = {(row["fault"], row["seed"], row["twin"]) for row in rows}
    for fault in FAULTS:
        for twin in _TWINS:
            for seed in range(seeds):
                if (fault.title, seed, twin) in done:
                    continue
                rows.append(provoked(fault, seed, twin))
                print(fault.title, seed, "twin" if twin else "", rows[-1]["found"], flush=True)
                with results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
        _program.cache_clear()
    print(table(rows))
    save_figure(rows, results.parent / "figure.png")


if __name__ == "__main__":
    tyro.cli(main)
