"""The form in which a tree is stored: a flat dict of plain arrays by their place, and a record of what they are."""

import json
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

Record = dict[str, Any]
"""What a checkpoint says of itself: "leaves" (place -> [shape, dtype, fingerprint]), "score", and "seal" over them."""

EXTRA = "extra."
"""What the places of leaves that are no part of the state begin with."""


def by_place(tree: Any) -> dict[str, Any]:
    """Returns a flat dict from the place of each leaf, as in "opt_state.0.mu.embed", to the leaf, in order.

    Raises:
        ValueError: two leaves have one place.
    """
    pairs = jax.tree_util.tree_leaves_with_path(tree)
    flat = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in pairs}
    if len(flat) != len(pairs):
        raise ValueError("two leaves of the state have one name: no name of a parameter may contain a dot")
    return flat


def rebuilt(leaves: Mapping[str, Any], like: Any) -> Any:
    """Returns a tree of the structure of ``like`` from leaves by place, as ``Restored.extra`` has them.

    Args:
        leaves: place -> leaf, of exactly the leaves that the tree has.
        like: a tree of that structure; its leaves are not looked at.

    Raises:
        ValueError: a leaf is missing, or there is one too many.
    """
    wanted = by_place(like)
    if wanted.keys() != leaves.keys():
        apart = sorted(wanted.keys() ^ leaves.keys())
        raise ValueError(f"checkpoints.rebuilt: {', '.join(apart[:8])} is in one of leaves and like, but not in both")
    return jax.tree.unflatten(jax.tree.structure(like), [leaves[place] for place in wanted])


def storable(leaf: Any) -> jax.Array:
    """Returns a leaf of the state as a plain array: a typed key becomes its data."""
    leaf = jnp.asarray(leaf)
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def storable_extra(leaf: Any) -> jax.Array | np.ndarray:
    """Returns a leaf that may also be on the host, and then stays there."""
    return storable(leaf) if isinstance(leaf, jax.Array) else np.asarray(leaf)


def stored_form(leaf: Any) -> jax.ShapeDtypeStruct:
    """Returns shape, dtype and sharding of a leaf of the state as it is stored."""
    sharding = getattr(leaf, "sharding", None) or SingleDeviceSharding(jax.devices()[0])
    stored = jax.eval_shape(storable, leaf)
    return jax.ShapeDtypeStruct(stored.shape, stored.dtype, sharding=sharding)


def restored(stored: jax.Array, like: Any) -> jax.Array:
    """Returns a stored array in the form of a leaf: key data becomes a typed key again."""
    if not _is_key(like):
        return stored
    return jax.random.wrap_key_data(stored, impl=jax.random.key_impl(jnp.empty((), like.dtype)))


def recorded(leaves: Mapping[str, Any], marks: Mapping[str, int], score: float | None) -> Record:
    """Returns the record of leaves by place, with their fingerprints."""
    record: Record = {
        "leaves": {place: [list(leaf.shape), leaf.dtype.name, marks[place]] for place, leaf in leaves.items()},
        "score": score,
    }
    return record | {"seal": _seal(record)}


def checked(record: Any) -> Record:
    """Returns the record.

    Raises:
        ValueError: it is none, or not what was written.
    """
    if not isinstance(record, dict) or "seal" not in record:
        raise ValueError("it has no record of what it holds")
    content = {name: value for name, value in record.items() if name != "seal"}
    if _seal(content) != record["seal"]:
        raise ValueError("its record of what it holds was altered")
    return record


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _seal(content: Record) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
