"""What processes tell each other beside their arrays, by the key-value store of JAX's coordination service.

Not by collectives on the devices: those wait for whatever was sent to the devices before, hang without a word where a
process has gone, and must be called by all in one order, also where threads call them.
"""

import contextlib
import io
import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np
from jax._src import distributed  # the store has no public name; every use of it stands in this file

T = TypeVar("T")

_LOOK_EVERY = 2_000
"""Milliseconds between two looks at whether a host that is waited for has said that it failed."""
_FAILED = "grpo_jax/failed"
_sent: dict[str, "itertools.count[int]"] = {}
_waited = [0.0]


class HostFailed(RuntimeError):
    """A process of the run failed; every other one raises this with the same message."""


def count() -> int:
    """Returns how many processes the run has."""
    return distributed.global_state.num_processes


def index() -> int:
    """Returns the number of this process, from 0."""
    return distributed.global_state.process_id


def is_writer() -> bool:
    """Returns whether this process writes what all have computed: the first does, alone."""
    return index() == 0


def waited() -> float:
    """Returns for how many seconds this process has waited for others in `exchange` so far."""
    return _waited[0]


def exchange(payload: bytes, channel: str = "loop") -> list[bytes]:
    """Sends something to every process and returns what all of them sent, in their order.

    Every process has to call it, equally often in each channel; threads use channels of their own.

    Args:
        payload: what this process has to say; small, since all of it passes through process 0.
        channel: who talks.

    Raises:
        HostFailed: another process has announced that it failed, or is gone.
    """
    if count() == 1:
        return [payload]
    turn = next(_sent.setdefault(channel, itertools.count()))
    client: Any = distributed.global_state.client
    client.key_value_set_bytes(_key(channel, turn, index()), payload)
    began = time.monotonic()
    found = [payload if host == index() else _received(_key(channel, turn, host)) for host in range(count())]
    _waited[0] += time.monotonic() - began
    if turn > 0:  # whoever has answered this time has read all of the last time
        client.key_value_delete(_key(channel, turn - 1, index()))
    return found


def gathered(values: np.ndarray, channel: str = "loop") -> np.ndarray:
    """Returns arrays of one shape and dtype, one of each process, stacked ``[hosts, ...]``."""
    values = np.ascontiguousarray(values)
    parts = [np.frombuffer(part, values.dtype) for part in exchange(values.tobytes(), channel)]
    return np.stack([part.reshape(values.shape) for part in parts])


@contextlib.contextmanager
def together(channel: str = "loop") -> Iterator[None]:
    """Lets every process leave a ``with`` block by the same way: where one fails in it, all raise the same message.

    Every process has to come by. Nothing in the block may wait for another process.

    Args:
        channel: as in `exchange`.

    Yields:
        Nothing.

    Raises:
        HostFailed: the block failed in one of several processes. In a single one its own error goes through.
    """
    if count() == 1:
        yield
        return
    error = None
    try:
        yield
    except Exception as caught:
        error = caught
    texts = [part.decode() for part in exchange(b"" if error is None else _described(error).encode(), channel)]
    for host, text in enumerate(texts):
        if text:
            raise HostFailed(f"host {host} of {count()} failed: {text}") from error


def from_writer(make: Callable[[], T], channel: str = "loop") -> T:
    """Returns everywhere what the writer makes.

    Args:
        make: called in the writing process alone; returns what JSON can hold.
        channel: as in `exchange`.

    Raises:
        HostFailed: the writer failed.
    """
    if count() == 1:
        return make()
    made: Any = None
    with together(channel):
        made = json.dumps(make()) if is_writer() else ""
    return json.loads(exchange(made.encode(), channel)[0])


def on_writer(effect: Callable[..., Any]) -> Callable[..., None]:
    """Returns a function that does in the writing process what the given one does, and nothing in others."""

    def alone(*arguments: Any, **named: Any) -> None:
        if is_writer():
            effect(*arguments, **named)

    return alone


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Lets only the writing process print to standard output, until the ``with`` block is left."""
    if is_writer():
        yield
        return
    with contextlib.redirect_stdout(io.StringIO()) as unread:
        unread.write = len  # pyright: ignore[reportAttributeAccessIssue]  (kept, it would fill the memory)
        yield


def announce(error: BaseException) -> None:
    """Tells all processes that this one fails, so that those that wait for it in `exchange` stop with its message."""
    client = distributed.global_state.client
    if client is None or isinstance(error, HostFailed):
        return
    with contextlib.suppress(Exception):  # the store may be gone with the process that kept it, or have a message
        client.key_value_set(_FAILED, f"host {index()} of {count()} failed: {_described(error)}")


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _key(channel: str, turn: int, host: int) -> str:
    return f"grpo_jax/{channel}/{turn}/{host}"


def _received(key: str) -> bytes:
    """Waits for what another process sends."""
    client: Any = distributed.global_state.client
    while True:
        try:
            return client.blocking_key_value_get_bytes(key, _LOOK_EVERY)
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise HostFailed(f"the other processes of the run are out of reach: {error}") from None
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            raise HostFailed(client.key_value_try_get(_FAILED))
