"""Arrays whose parts live on several processes' devices."""

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from grpo_jax.hosts.exchange import index


def put(tree: Any, sharding: Any) -> Any:
    """Puts arrays on devices, also on those of several processes.

    Args:
        tree: NumPy arrays of the whole; each process reads only what lives on its own devices, and the rest of its
            arrays may hold anything.
        sharding: where they go, one sharding for all.
    """
    if sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)

    def placed(leaf: Any) -> jax.Array:
        leaf = np.asarray(leaf)
        return jax.make_array_from_callback(leaf.shape, sharding, lambda part: leaf[part])

    return jax.tree.map(placed, tree)


def whole(tree: Any, *, wanted: bool = True) -> Any:
    """Returns arrays as NumPy ones, gathered over processes; every process has to call it, leaf by leaf in one order.

    Args:
        tree: arrays, anywhere.
        wanted: whether this process keeps them; otherwise leaves come out as None, and no memory is taken on the host.
    """
    leaves, structure = jax.tree.flatten(tree)
    if all(getattr(leaf, "is_fully_addressable", True) for leaf in leaves):
        return jax.device_get(tree)
    return jax.tree.unflatten(structure, [_gathered(leaf, wanted) for leaf in leaves])


def _gathered(leaf: Any, wanted: bool) -> Any:
    if not getattr(leaf, "is_fully_addressable", True) and not leaf.is_fully_replicated:
        everywhere = NamedSharding(leaf.sharding.mesh, PartitionSpec())
        # One at a time: of independent gathers CPUs of several processes may each begin another one, and wait for ever.
        leaf = jax.block_until_ready(jax.jit(_same, out_shardings=everywhere)(leaf))
    return jax.device_get(leaf) if wanted else None


def _same(leaf: jax.Array) -> jax.Array:
    return leaf


def scored_by(sharding: Any, rows: int) -> np.ndarray:
    """Returns the process that decodes and scores each row ``[rows]``: one of those that hold it, in turn.

    Args:
        sharding: where arrays with a leading axis of rows live.
        rows: length of that axis.
    """
    holders = _holders(sharding, rows)
    return np.asarray([sorted(here)[row % len(here)] for row, here in enumerate(holders)], np.int32)


def held_rows(sharding: Any, rows: int) -> tuple[int, int]:
    """Returns the rows, from the first up to and without the last, among which this process's own lie."""
    here = [row for row, holders in enumerate(_holders(sharding, rows)) if index() in holders]
    return (here[0], here[-1] + 1) if here else (0, 0)


def _holders(sharding: Any, rows: int) -> list[set[int]]:
    """Returns the processes that hold each row."""
    found: list[set[int]] = [set() for _ in range(rows)]
    for device, (part,) in sharding.devices_indices_map((rows,)).items():
        for row in range(rows)[part]:
            found[row].add(device.process_index)
    return found
