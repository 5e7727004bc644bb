"""Signs of life of every process of a run, and which of them keeps the others waiting."""

import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from grpo_jax import hosts


class Beat(NamedTuple):
    """What the processes of a run know of each other after a step.

    Attributes:
        stop: whether any of them wants the run to stop; the same in all.
        measures: in several processes the seconds that the slowest and the fastest of them worked, as
            "seconds_slowest_host" and "seconds_fastest_host", and the number of the slowest, "slowest_host".
    """

    stop: bool
    measures: dict[str, float]


def heartbeat(folder: str | Path) -> Callable[[int, float, bool], Beat]:
    """Builds what every process calls after each step.

    A process keeps a file of its own, ``folder/INDEX.json``, with the step, the time (seconds since 1970), its number
    as a process and its machine: one that grows old belongs to a process that hangs or is gone.

    Args:
        folder: of these files; created if need be.

    Returns:
        ``(step, seconds, stop) -> Beat``: the step just done, how long it took, and whether this process wants to stop.
        A process has worked for as long as it has not waited for what others had to say. What devices wait for each
        other is not seen.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    file = Path(folder) / f"{hosts.index()}.json"
    before = [hosts.waited()]

    def beat(step: int, seconds: float, stop: bool) -> Beat:
        alive = {"step": step, "time": time.time(), "process": os.getpid(), "machine": platform.node()}
        temporary = file.with_suffix(".tmp")
        temporary.write_text(json.dumps(alive) + "\n", encoding="utf-8")
        os.replace(temporary, file)
        worked = seconds - (hosts.waited() - before[0])
        said = [json.loads(part) for part in hosts.exchange(json.dumps([worked, stop]).encode())]
        before[0] = hosts.waited()
        return Beat(any(wish for _, wish in said), _compared([taken for taken, _ in said]))

    return beat


def _compared(seconds: list[float]) -> dict[str, float]:
    if len(seconds) == 1:
        return {}
    slowest = max(range(len(seconds)), key=seconds.__getitem__)
    return {
        "seconds_slowest_host": seconds[slowest],
        "seconds_fastest_host": min(seconds),
        "slowest_host": float(slowest),
    }
