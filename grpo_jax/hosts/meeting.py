"""Processes of a run meet before JAX knows of them, so that one that is missing or wrong is a message and no abort."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

_PAUSE = 0.1


def meet(address: str, index: int, count: int, seconds: float | int) -> None:
    """Waits until every process of the run is there; process 0 listens where the coordinator will.

    Args:
        address: of process 0, ``host:port``.
        index: number of this process, from 0.
        count: how many there are.
        seconds: how long to wait.

    Raises:
        TimeoutError: some did not come, or nobody answers at the address.
        OSError: process 0 cannot listen there.
        ValueError: processes disagree on how many they are, or two have one number.
    """
    deadline = time.monotonic() + seconds
    if index == 0:
        _receive(address, count, deadline, seconds)
    else:
        _visit(address, index, count, deadline, seconds)


def _receive(address: str, count: int, deadline: float, seconds: float | int) -> None:
    present: dict[int, socket.socket] = {}
    port = int(address.rsplit(":", 1)[1])
    try:
        listener = socket.create_server(("", port), backlog=count)
    except OSError as error:
        raise OSError(f"host 0 cannot listen at port {port} ({error.strerror}): free it, or name another") from None
    with closing(listener):
        try:
            while len(present) < count - 1:
                _admit(listener, present, count, deadline)
            problem = None
        except TimeoutError:
            missing = ", ".join(str(host) for host in range(1, count) if host not in present)
            problem = f"of {count} hosts, {missing} did not come to {address} within {seconds:g} s: were they started?"
            raise TimeoutError(problem) from None
        except ValueError as error:
            problem = str(error)
            raise
        finally:
            for visitor in present.values():
                with suppress(OSError), closing(visitor):
                    visitor.sendall(json.dumps({"problem": problem}).encode() + b"\n")


def _admit(listener: socket.socket, present: dict[int, socket.socket], count: int, deadline: float) -> None:
    """Takes in one visitor, or a stranger, who is sent away; raises ValueError where the visitor does not fit."""
    listener.settimeout(max(deadline - time.monotonic(), 0.001))
    visitor, _ = listener.accept()
    visitor.settimeout(5.0)
    try:
        said = _line(visitor)
        host, its = int(said["host"]), int(said["count"])
    except (OSError, ValueError, KeyError, TypeError):
        visitor.close()
        return
    known, present[host if host not in present else -1 - host] = host in present, visitor
    if its != count:
        raise ValueError(f"host {host} was told of {its} hosts, host 0 of {count}: give all the same --hosts.count")
    if known:
        raise ValueError(f"two processes are host {host} of {count}: give each another --hosts.index")


def _visit(address: str, index: int, count: int, deadline: float, seconds: float | int) -> None:
    with _connected(address, deadline, seconds) as visit:
        visit.sendall(json.dumps({"host": index, "count": count}).encode() + b"\n")
        visit.settimeout(max(deadline - time.monotonic(), 0.001) + 5.0)
        try:
            problem = _line(visit)["problem"]
        except (OSError, ValueError, KeyError, TypeError):
            raise TimeoutError(
                f"host 0 at {address} did not say within {seconds:g} s that all {count} hosts are there: did it stop?"
            ) from None
    if problem is not None:
        raise ValueError(problem)


@contextmanager
def _connected(address: str, deadline: float, seconds: float | int) -> Iterator[socket.socket]:
    host, port = address.rsplit(":", 1)
    while True:
        try:
            visit = socket.create_connection((host.strip("[]"), int(port)), max(deadline - time.monotonic(), 0.001))
            break
        except OSError as error:
            if time.monotonic() + _PAUSE >= deadline:
                raise TimeoutError(
                    f"nobody answers at {address} within {seconds:g} s ({error.strerror or error}): is host 0 running, "
                    "and is this its address as seen from here?"
                ) from None
        time.sleep(_PAUSE)
    with closing(visit):
        yield visit


def _line(stream: socket.socket) -> dict[str, Any]:
    """Reads one line of JSON, as long as such lines are."""
    text = b""
    while not text.endswith(b"\n") and len(text) < 4096:
        more = stream.recv(4096)
        if not more:
            break
        text += more
    return json.loads(text)
