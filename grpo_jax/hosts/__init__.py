"""One run as several processes, each with some of the devices: how they meet, talk, and share arrays.

In one process every function here does what is obvious and sends nothing.
"""

from grpo_jax.hosts.arrays import held_rows, put, scored_by, whole
from grpo_jax.hosts.exchange import (
    HostFailed,
    announce,
    count,
    exchange,
    from_writer,
    gathered,
    index,
    is_writer,
    on_writer,
    quiet,
    together,
    waited,
)
from grpo_jax.hosts.start import Hosts, start, started, stop

__all__ = [
    "HostFailed",
    "Hosts",
    "announce",
    "count",
    "exchange",
    "from_writer",
    "gathered",
    "held_rows",
    "index",
    "is_writer",
    "on_writer",
    "put",
    "quiet",
    "scored_by",
    "start",
    "started",
    "stop",
    "together",
    "waited",
    "whole",
]
