"""From the command line to a run of several processes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import jax

from grpo_jax.hosts.exchange import announce, count, index
from grpo_jax.hosts.meeting import meet


@dataclass(frozen=True)
class Hosts:
    """One run as several processes: each is started with the same options, but for its index.

    Attributes:
        coordinator: address of process 0 as the others reach it, 10.0.0.1:1234. None: the run is this process.
        count: how many processes there are.
        index: number of this one, from 0.
        detect: read all that from the machine instead: TPU pods, GKE, SLURM, Open MPI.
        timeout: seconds to wait for the others at the start.
        heartbeat: seconds without a sign of life after which a process counts as dead and all end.
    """

    coordinator: str | None = None
    count: int | None = None
    index: int | None = None
    detect: bool = False
    timeout: int = 300
    heartbeat: int = 100


@contextmanager
def started(hosts: Hosts) -> Iterator[None]:
    """Makes this process one of the run's until the ``with`` block is left; see `start`.

    Where the block fails, the others are told, so that they stop too.

    Args:
        hosts: which one of how many.

    Yields:
        Nothing.
    """
    start(hosts)
    try:
        yield
    except BaseException as error:
        announce(error)
        raise
    finally:
        stop()


def start(hosts: Hosts) -> None:
    """Makes this process one of the run's; before anything asks for a device.

    Args:
        hosts: which one of how many.

    Raises:
        ValueError: the options do not fit each other, or those of other processes.
        OSError: TimeoutError where processes are missing or nobody answers; no port to listen at.
    """
    _check(hosts)
    named: dict = {}
    if hosts.coordinator is not None:
        assert hosts.count is not None
        assert hosts.index is not None
        meet(hosts.coordinator, hosts.index, hosts.count, hosts.timeout)
        named = {
            "coordinator_address": hosts.coordinator,
            "num_processes": hosts.count,
            "process_id": hosts.index,
            "cluster_detection_method": "deactivate",
        }
    elif not hosts.detect:
        return
    jax.distributed.initialize(
        **named,
        initialization_timeout=hosts.timeout,
        heartbeat_timeout_seconds=hosts.heartbeat,
        # At the end all are there within seconds; after a failure nobody should wait for those that have gone.
        shutdown_timeout_seconds=20,
    )
    if hosts.count is not None and (count(), index()) != (hosts.count, hosts.index):
        raise ValueError(f"this is host {index()} of {count()} to JAX, not {hosts.index} of {hosts.count}")


def stop() -> None:
    """Ends what `start` began; nothing where it began nothing."""
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()


def _check(hosts: Hosts) -> None:
    given = {name: getattr(hosts, name) for name in ("coordinator", "count", "index")}
    missing = [name for name, value in given.items() if value is None]
    if hosts.detect and len(missing) < len(given):
        raise ValueError("--hosts.detect finds coordinator, count and index by itself: leave those out, or it")
    if missing and len(missing) < len(given):
        raise ValueError(f"--hosts.{' and --hosts.'.join(missing)} is missing: give coordinator, count and index")
    for name in ("timeout", "heartbeat"):
        if getattr(hosts, name) < 1:
            raise ValueError(f"--hosts.{name} {getattr(hosts, name)}: give at least 1 second")
    if hosts.coordinator is None:
        return
    host, _, port = hosts.coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"--hosts.coordinator {hosts.coordinator}: give an address and a port, as 10.0.0.1:1234")
    assert hosts.count is not None
    assert hosts.index is not None
    if hosts.count < 1:
        raise ValueError(f"--hosts.count {hosts.count}: give at least 1")
    if not 0 <= hosts.index < hosts.count:
        raise ValueError(f"--hosts.index {hosts.index} of --hosts.count {hosts.count}: give 0 to {hosts.count - 1}")
