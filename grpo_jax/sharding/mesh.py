"""The mesh of devices, written as text: ``data=4,fsdp=2``."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.mesh_utils import create_hybrid_device_mesh
from jax.sharding import AxisType, Mesh

AXES = ("data", "fsdp", "tensor")
"""The mesh's axes: groups are split over data and fsdp, parameters over fsdp and tensor."""


def make_mesh(spec: str = "", devices: Sequence[Any] | None = None) -> Mesh:
    """Builds the mesh that a text describes.

    Every mesh has the axes data, fsdp and tensor, of size 1 where the text does not name them. They are Auto axes: the
    compiler propagates shardings from the inputs, and this is the only place that says so. Several TPU slices lie along
    data, so that fsdp and tensor stay within one.

    Args:
        spec: ``axis=size`` pairs joined by commas, as in ``"data=4,fsdp=2"``; one size may be -1 and takes the devices
            that the others leave. Empty: all devices on data.
        devices: the devices to use; None: all of them.

    Returns:
        The mesh, using every device.

    Raises:
        ValueError: for text that is not of this form, an unknown or repeated axis, a size that is neither positive nor
            -1, sizes whose product is not the number of devices, or several TPU slices that data does not divide into.
    """
    available = jax.devices() if devices is None else list(devices)
    sizes = _parse(spec) if spec.strip() else {"data": -1}
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if -1 in sizes.values():
        if len(available) % fixed:
            raise ValueError(f"mesh {spec!r}: {len(available)} devices do not divide by {fixed}, so -1 has no value")
        sizes = {axis: len(available) // fixed if size == -1 else size for axis, size in sizes.items()}
    elif fixed != len(available):
        raise ValueError(f"mesh {spec!r} needs {fixed} devices, but there are {len(available)}; -1 fills an axis up")
    shape = tuple(sizes.get(axis, 1) for axis in AXES)
    slices = {getattr(device, "slice_index", 0) for device in available if device.platform == "tpu"}
    if len(slices) > 1:
        return Mesh(_over_slices(shape, available, len(slices), spec), AXES, axis_types=(AxisType.Auto,) * len(AXES))
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=available)


def _over_slices(shape: tuple[int, ...], devices: list[Any], slices: int, spec: str) -> np.ndarray:
    """Returns the devices of several TPU slices with the slices along data: the network between them is the slowest."""
    data, *within = shape
    if data % slices:
        raise ValueError(
            f"mesh {spec!r}: the devices are on {slices} TPU slices, which only data may reach across, but data is "
            f"{data}; give it a multiple of {slices}, as in data={slices},fsdp=-1"
        )
    between = (slices, *(1 for _ in within))
    return create_hybrid_device_mesh((data // slices, *within), between, devices, allow_split_physical_axes=True)


def other_layout(mesh: Mesh, spec: str) -> Mesh:
    """Builds another mesh of a mesh's devices, in one order with it, so that one program can compute on both.

    Args:
        mesh: the mesh.
        spec: as `make_mesh` takes it.

    Raises:
        ValueError: see `make_mesh`.
    """
    devices = list(mesh.devices.flat)
    shape = tuple(make_mesh(spec, devices).shape.values())
    return Mesh(mesh.devices.reshape(shape), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def mesh_size(spec: str, place: str) -> int:
    """Returns how many devices a text asks for.

    Args:
        spec: as `make_mesh` takes it, every size written out.
        place: where the text stands, for the error.

    Raises:
        ValueError: text that is not of this form, is empty, or leaves a size open.
    """
    sizes = _parse(spec) if spec.strip() else {}
    if not sizes or -1 in sizes.values():
        raise ValueError(f"{place} {spec!r} does not say how many devices; write each size out, as in data=2,tensor=2")
    return math.prod(sizes.values())


def group_multiple(mesh: Mesh, *, micro_batches: int = 1) -> int:
    """Returns what P must be a multiple of, so that every device has as many groups as any other in each micro-batch.

    Args:
        mesh: the mesh.
        micro_batches: parts an update takes the batch in.

    Returns:
        data * fsdp * micro_batches; ``updates.pad_groups`` rounds a batch up to it.
    """
    return mesh.shape["data"] * mesh.shape["fsdp"] * micro_batches


def _parse(spec: str) -> dict[str, int]:
    """Returns the size of each axis that the text names."""
    sizes: dict[str, int] = {}
    for part in spec.split(","):
        axis, _, text = (piece.strip() for piece in part.partition("="))
        if axis not in AXES:
            raise ValueError(
                f"mesh {spec!r}: unknown axis {axis!r} in {part!r}; write axis=size with {', '.join(AXES)}"
            )
        if axis in sizes:
            raise ValueError(f"mesh {spec!r}: axis {axis!r} stands twice")
        try:
            sizes[axis] = int(text)
        except ValueError:
            raise ValueError(f"mesh {spec!r}: the size of {axis!r} is {text!r}, not a whole number") from None
        if sizes[axis] < 1 and sizes[axis] != -1:
            raise ValueError(f"mesh {spec!r}: the size of {axis!r} is {text}; it must be positive, or -1 to fill up")
    if list(sizes.values()).count(-1) > 1:
        raise ValueError(f"mesh {spec!r}: -1 may stand once, or the sizes are ambiguous")
    return sizes
