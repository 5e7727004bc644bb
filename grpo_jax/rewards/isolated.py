"""A reward function in processes of its own: a row that hangs or brings its process down costs that row alone."""

import contextlib
import math
import multiprocessing
import os
import pickle
import signal
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from grpo_jax.rewards.calls import RewardFunction, call, name_of

_MOST_WORKERS = 8


class _Row(NamedTuple):
    """What a worker scores at a time."""

    prompt: Any
    completion: Any
    columns: dict[str, Any]


class _Worker(NamedTuple):
    """A process and the way to talk to it."""

    process: Any
    connection: Connection


class IsolatedReward:
    """A reward function whose rows are scored one by one in worker processes, each under a time limit.

    A row that takes too long, whose process dies, or for which the function raises has no reward (NaN); the first is
    reported as a warning, all are counted in the measure ``unscorable``, and the worker is replaced. Workers start at
    the first call and end with this object.

    Attributes:
        failed: rows without a reward for one of these reasons so far.
    """

    def __init__(self, function: RewardFunction, timeout: float, workers: int) -> None:
        self.__name__ = name_of(function)
        self.failed = 0
        self._function = function
        self._timeout = timeout
        self._size = workers
        self._workers: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _end_all, self._workers)

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Sequence[Any]) -> list[float]:
        """Returns a reward for every row, NaN where it failed.

        Raises:
            ValueError: the function cannot be sent to another process.
            RuntimeError: a worker cannot start.
        """
        rows = [
            _Row(prompt, completion, {name: values[number] for name, values in columns.items()})
            for number, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
        ]
        try:
            return self._scored(rows)
        except BaseException:
            self.close()  # a worker may be in the midst of a row that nobody waits for any more
            raise

    def close(self) -> None:
        """Ends the workers; a later call starts new ones."""
        _end_all(self._workers)

    def _scored(self, rows: Sequence[_Row]) -> list[float]:
        rewards, waiting = [math.nan] * len(rows), list(reversed(range(len(rows))))
        self._start(min(self._size, len(rows)))
        idle = list(self._workers)
        busy: dict[_Worker, tuple[int, float]] = {}
        while waiting or busy:
            while idle and waiting:
                worker, number = idle.pop(), waiting.pop()
                busy[worker] = number, time.monotonic() + self._timeout
                with contextlib.suppress(OSError):  # it is dead, which shows below
                    worker.connection.send(rows[number])
            for worker, outcome in self._outcomes(busy):
                number, _ = busy.pop(worker)
                if isinstance(outcome, str):
                    self._fail(number, rows[number], outcome)
                else:
                    rewards[number] = outcome
                if worker in self._workers:
                    idle.append(worker)
                elif waiting:
                    self._start(len(self._workers) + 1)
                    idle.append(self._workers[-1])
        return rewards

    def _outcomes(self, busy: Mapping[_Worker, tuple[int, float]]) -> list[tuple[_Worker, float | str]]:
        """Waits for the next worker to answer, to die or to run out of time; returns rewards, or what went wrong."""
        deadline = min(limit for _, limit in busy.values())
        ready = wait([worker.connection for worker in busy], max(0.0, deadline - time.monotonic()))
        found: list[tuple[_Worker, float | str]] = []
        for worker, (_, limit) in busy.items():
            if worker.connection in ready:
                try:
                    found.append((worker, worker.connection.recv()))
                except (EOFError, OSError):
                    self._drop(worker)
                    found.append((worker, f"its process died (exit code {worker.process.exitcode})"))
            elif time.monotonic() >= limit:
                self._drop(worker)
                found.append((worker, f"it took longer than {self._timeout:g} s"))
        return found

    def _fail(self, number: int, row: _Row, reason: str) -> None:
        self.failed += 1
        if self.failed == 1:
            warnings.warn(
                f"reward function {self.__name__!r} failed on row {number}: {reason}. The row has no reward; all like "
                f"it are counted in the measure unscorable. The completion: {str(row.completion)[:500]!r}",
                stacklevel=4,
            )

    def _start(self, size: int) -> None:
        """Starts workers until there are so many, all at once, and waits until they have imported the function."""
        fresh = [self._started() for _ in range(size - len(self._workers))]
        for worker in fresh:
            try:
                worker.connection.recv()
            except (EOFError, OSError):
                self._drop(worker)
                raise RuntimeError(
                    f"reward function {self.__name__!r}: its worker process died at the start (exit code "
                    f"{worker.process.exitcode}); can {_module_of(self._function)} be imported by itself?"
                ) from None

    def _started(self) -> _Worker:
        # A server that has imported this module forks workers in no time; each imports the function by itself.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["__main__", __name__])
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, self._function), daemon=True)
        try:
            process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"reward function {self.__name__!r} cannot be sent to another process ({error}): define it at the top "
                "of a module, or set no time limit"
            ) from error
        theirs.close()
        worker = _Worker(process, ours)
        self._workers.append(worker)
        return worker

    def _drop(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        _end_all([worker])


def isolated(function: RewardFunction, timeout: float, workers: int | None = None) -> IsolatedReward:
    """Builds a reward function that scores every row in a worker process, under a time limit.

    Args:
        function: one that scores a row without the others; it must be at the top of a module, since the workers import
            it.
        timeout: seconds for one row, > 0.
        workers: processes. None: one per core, at most 8.

    Returns:
        The function; a row that hangs, raises or brings its process down has no reward.

    Raises:
        ValueError: a limit that is not positive and finite, or no worker.
    """
    if not 0 < timeout < math.inf:
        raise ValueError(f"isolated: timeout is {timeout}; give a positive number of seconds")
    count = min(os.cpu_count() or 1, _MOST_WORKERS) if workers is None else workers
    if count < 1:
        raise ValueError(f"isolated: workers is {workers}; give at least 1")
    return IsolatedReward(function, timeout, count)


def _work(connection: Connection, function: RewardFunction) -> None:
    """Scores rows until nobody sends any more."""
    for number in (signal.SIGINT, signal.SIGTERM):  # both go to all of a run's processes, and are the parent's business
        signal.signal(number, signal.SIG_IGN)
    connection.send(None)
    while True:
        try:
            row = connection.recv()
        except (EOFError, OSError):
            return
        try:
            columns = {name: [value] for name, value in row.columns.items()}
            outcome = float(call(function, [row.prompt], [row.completion], columns)[0])
        except Exception as error:
            outcome = str(error)
        connection.send(outcome)


def _end_all(workers: list[_Worker]) -> None:
    while workers:
        worker = workers.pop()
        worker.process.kill()
        worker.process.join()
        worker.connection.close()


def _module_of(function: RewardFunction) -> str:
    return getattr(function, "__module__", None) or type(function).__module__
