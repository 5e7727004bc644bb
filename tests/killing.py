"""Kills programs at random moments and looks at what a resumed run makes of it."""

import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from grpo_jax import checkpoints
from tests.runs import rows_of

Begin = Callable[[Path, bool], list[subprocess.Popen]]
"""``(folder, resume) -> processes`` of one run, of which standard error can be read."""


class Left(NamedTuple):
    """What a run left, without what depends on the clock."""

    rows: list
    steps: list[int]
    state: object


def left(folder, shapes):
    """Everything that two equal runs have in common; the newest checkpoint as arrays on the host."""
    places = folder / "checkpoints"
    state = checkpoints.restore(places, shapes)
    return Left(
        rows_of(folder), checkpoints.steps(places), jax.device_get(state._replace(key=jax.random.key_data(state.key)))
    )


def assert_same(found: Left, expected: Left) -> None:
    """The same rows, checkpoints and state, bit for bit."""
    assert found.rows == expected.rows
    assert found.steps == expected.steps
    jax.tree.map(np.testing.assert_array_equal, found.state, expected.state)


class Moment(NamedTuple):
    """When to kill a run: so many seconds after its metrics have so many rows (0: after it has a configuration)."""

    rows: int
    seconds: float


def moments(count, rows, first, each, seed):
    """Moments at random, as many after each number of rows as after any other.

    Args:
        count: how many.
        rows: of a whole run.
        first: seconds until the first row.
        each: seconds that a row takes.
        seed: of the draws.
    """
    draws = random.Random(seed)
    found = [number % (rows + 1) for number in range(count)]
    return [Moment(row, draws.uniform(0, each if row else first)) for row in found]


def seconds_of(begin: Begin, folder: Path) -> float:
    """Lets a run end by itself; returns how long it took from when its folder had a configuration."""
    processes = begin(folder, False)
    _wait_for(folder, 0, processes)
    began = time.monotonic()
    ended(processes)
    return time.monotonic() - began


def killed(begin: Begin, folder: Path, moment: Moment, *, resume: bool = False, victim: int = 0) -> bool:
    """Begins a run and kills one of its processes.

    Returns whether it was in time; the other processes, if any, are killed when they have had time to notice.
    """
    processes = begin(folder, resume)
    _wait_for(folder, moment.rows, processes)
    time.sleep(moment.seconds)
    processes[victim].send_signal(signal.SIGKILL)
    for process in processes:
        try:
            process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
    return processes[victim].returncode == -signal.SIGKILL


def ended(processes: Sequence[subprocess.Popen], seconds: float = 600) -> list[str]:
    """Waits until all have ended well; returns what each wrote to standard error."""
    said = [process.communicate(timeout=seconds) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), said
    return [error for _, error in said]


def _wait_for(folder: Path, rows: int, processes: Sequence[subprocess.Popen]) -> None:
    while not _has(folder, rows) and all(process.poll() is None for process in processes):
        time.sleep(0.01)


def _has(folder: Path, rows: int) -> bool:
    metrics = folder / "metrics.jsonl"
    if rows == 0 or not metrics.exists():
        return rows == 0 and (folder / "config.json").exists()
    return metrics.read_bytes().count(b"\n") >= rows
