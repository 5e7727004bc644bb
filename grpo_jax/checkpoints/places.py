"""The form in which a tree is stored: a flat dict of plain arrays by their place, and what is recorded of them."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

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


def recorded(leaves: Mapping[str, Any], marks: Mapping[str, int]) -> dict[str, list[Any]]:
    """Returns shape, dtype and fingerprint of leaves by place."""
    return {place: [list(leaf.shape), leaf.dtype.name, marks[place]] for place, leaf in leaves.items()}


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
