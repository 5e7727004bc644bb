"""Devices to compile for that are not there, and what is published about them."""

import contextlib
import os
import re
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies


class Chip(NamedTuple):
    """Published figures of a chip.

    Attributes:
        flops: peak bfloat16 floating-point operations a second.
        memory: bytes of HBM, a GB counted as 10^9.
        bandwidth: bytes a second between HBM and chip.
        links: bytes a second that a chip can send to other chips of its slice, over all its links, which is half of
            the bidirectional figure.
        slices: shapes that can be rented, smallest first, as far as they are compiled for here.
    """

    flops: float
    memory: float
    bandwidth: float
    links: float
    slices: tuple[str, ...]


_FLAT = ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
CHIPS = {
    "v5e": Chip(197e12, 16e9, 819e9, 200e9, _FLAT),
    "v6e": Chip(918e12, 32e9, 1600e9, 400e9, _FLAT),
    "v5p": Chip(459e12, 95e9, 2765e9, 600e9, ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8")),
}
"""Figures of cloud.google.com/tpu/docs/v5e (197 TFLOP/s, 16 GB at 819 GB/s, 400 GB/s of links in both directions),
cloud.google.com/tpu/docs/v6e (918, 32 GB, 1600, 3200 Gbit/s one way) and cloud.google.com/tpu/docs/v5p (459, 95 GB,
2765, 1200 GB/s in both directions), read in November 2026."""


_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


class Topology(NamedTuple):
    """Devices to compile for.

    Attributes:
        name: as it was asked for, such as "v5e:4x4".
        devices: the devices, none of which need exist.
        chip: what is published about each. None: this machine's processor, of which nothing is.
    """

    name: str
    devices: Sequence[Any]
    chip: Chip | None


def topology(name: str) -> Topology:
    """Returns the devices of a name.

    Args:
        name: "v5e:4x4", "v6e:8x8", "v5p:4x4x4" and the like; "cpu:8" is that many virtual devices of this machine,
            which a process has that did not use JAX before; otherwise there are as many as there were.

    Raises:
        ImportError: a TPU, and libtpu is not installed.
        ValueError: no such chip or shape, or fewer virtual devices.
    """
    kind, _, shape = name.partition(":")
    if kind == "cpu" and shape.isdecimal() and int(shape) > 0:
        return Topology(name, _virtual(int(shape)), None)
    if kind not in CHIPS or not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", shape):
        raise ValueError(
            f"--topology {name!r}: write cpu:8, or a chip and the shape of its slice, such as "
            + ", ".join(f"{chip}:{CHIPS[chip].slices[-1]}" for chip in CHIPS)
        )
    if find_spec("libtpu") is None:
        raise ImportError(f"--topology {name} is compiled for with libtpu: pip install 'grpo-jax[plan]'")
    # Off a TPU machine libtpu would look for the metadata of one, and say at length that there is none.
    # Several processes may compile at a time, since none of them drives a TPU.
    for variable, value in _ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    try:
        found = topologies.get_topology_desc(name, "tpu")
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        raise ValueError(
            f"--topology {name}: {str(error).splitlines()[0]}; known shapes are {', '.join(CHIPS[kind].slices)}"
        ) from error
    return Topology(name, found.devices, CHIPS[kind])


def slices(name: str) -> tuple[str, ...]:
    """Returns the names of all slices of a topology's chip, smallest first."""
    kind = name.partition(":")[0]
    return tuple(f"{kind}:{shape}" for shape in CHIPS[kind].slices) if kind in CHIPS else ()


def _virtual(count: int) -> Sequence[Any]:
    with contextlib.suppress(RuntimeError):  # a process that has looked at its devices keeps them
        jax.config.update("jax_num_cpu_devices", count)
    devices = jax.devices("cpu")
    if len(devices) < count:
        raise ValueError(
            f"--topology cpu:{count}: this process has {len(devices)} virtual devices; set JAX_NUM_CPU_DEVICES={count}"
        )
    return devices[:count]
