"""What a run does when it is told to end: it finishes the step under way, saves, and exits as schedulers expect."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from grpo_jax import hosts

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupted(SystemExit):
    """A signal ended the run, and nothing it had done is lost.

    A SystemExit, so that a script which does not expect it ends with the status that tells a scheduler to start it
    again: 143 for SIGTERM (preemption), 130 for SIGINT.

    Attributes:
        status: the exit status, 128 + the signal's number.
        message: which signal, what was saved, and how to go on.
    """

    def __init__(self, number: int, message: str) -> None:
        self.status = 128 + number
        super().__init__(self.status)
        self.message = f"{signal.Signals(number).name}: {message}"

    def __str__(self) -> str:
        return self.message


@contextmanager
def interruption() -> Iterator[Callable[[], int]]:
    """Watches for SIGTERM and SIGINT until the ``with`` block is left.

    The first signal only says so on standard error and is remembered; the handlers from before are then back, so that a
    second one ends the process at once. What was ignored before stays ignored. Outside of the main thread, where Python
    knows no handlers, nothing is watched.

    Yields:
        ``() -> int``: the number of the signal that came to this process, 0 while there is none; see ``agreed``.
    """
    received: list[int] = []
    before: dict[int, Any] = {}

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    def receive(number: int, frame: Any) -> None:
        received.append(number)
        restore()
        # Not print: the signal may have come in the middle of one.
        name = signal.Signals(number).name
        os.write(2, f"\n{name}: finishing the step under way, then saving; once more ends at once\n".encode())

    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if handler != signal.SIG_IGN:
                signal.signal(number, receive)
                before[number] = signal.SIG_DFL if handler is None else handler  # None: not from Python
    try:
        yield lambda: received[0] if received else 0
    finally:
        restore()


def agreed(asked: Callable[[], int]) -> int:
    """Returns the signal that came to any process of the run, 0: none; the same in all, which all have to call it."""
    return int(hosts.gathered(np.array(asked()), "signal").max())
