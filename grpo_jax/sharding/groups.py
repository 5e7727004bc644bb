"""Keeps groups on their devices all the way through a model, and the logits of their tokens with them."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from grpo_jax.sharding.rules import RULES, partition


def pin_groups(mesh: Mesh) -> Callable[[Array], Array]:
    """Builds the function that keeps groups where `batch_sharding` puts them, all the way through a model.

    Parameters are split over fsdp too, by another axis. Left alone, the compiler may follow the parameters instead of
    the groups and give every device all tokens of the batch and a part of each; with the groups pinned it gathers one
    layer's parameters at a time.

    Args:
        mesh: the mesh.

    Returns:
        ``x -> x``: its leading axis (groups, or tokens group by group) is split over data and fsdp, the others as the
        compiler likes. Arrays whose leading axis does not divide are left alone.
    """
    axes, parts = _split(mesh)

    def pin(x: Array) -> Array:
        if parts == 1 or x.shape[0] % parts:
            return x
        spec = PartitionSpec(axes, *[PartitionSpec.UNCONSTRAINED] * (x.ndim - 1))
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    return pin


def group_by_group(mesh: Mesh) -> Callable[[Callable, Any, Any, Any], Any]:
    """Builds the function that lets every device compute what its own groups need by itself.

    Scoring holds the logits of a few columns or positions at a time. Left alone, the compiler gathers the head again
    for every few, and for its gradient gathers the logits of all devices, or adds up gradients of the head each time.
    So that the head is gathered once and its gradients are added up once, devices work apart in between.

    Args:
        mesh: the mesh.

    Returns:
        ``(f, weights, groups, dtype) -> f(weights, groups)``, for trees of weights ``[width, V]`` and of arrays whose
        leading axis is P, such as f returns too; f must treat groups alike, whatever their number, and compute with the
        weights in that dtype, in which they travel. Where P does not divide, or nothing is split over data and fsdp, f
        is called as it is.
    """
    axes, parts = _split(mesh)

    def apply(f: Callable, weights: Any, groups: Any, dtype: Any) -> Any:
        if parts == 1 or any(leaf.shape[0] % parts for leaf in jax.tree.leaves(groups)):
            return f(weights, groups)
        own = PartitionSpec(axes)

        @partial(jax.shard_map, mesh=mesh, axis_names=set(axes), in_specs=(own, own), out_specs=own)
        def alone(copies: Any, groups: Any) -> Any:
            return f(jax.tree.map(lambda copy: copy[0], copies), groups)

        return alone(jax.tree.map(partial(_copies, mesh, axes, dtype), weights), groups)

    return apply


def vocabulary_parts(mesh: Mesh) -> int:
    """Returns how many parts the table splits a vocabulary into whose size is a multiple of their number."""
    axis = RULES["vocabulary"]
    assert isinstance(axis, str)
    return mesh.shape[axis]


def _split(mesh: Mesh) -> tuple[tuple[str, ...], int]:
    """Returns the axes that groups are split over, and into how many parts."""
    axes = RULES["prompts"]
    assert isinstance(axes, tuple)
    return axes, math.prod(mesh.shape[axis] for axis in axes)


def _copies(
    mesh: Mesh, axes: tuple[str, ...], dtype: Any, weight: Float[Array, "width V"]
) -> Float[Array, "N width V"]:
    """Gives each of the N parts that groups are split into a copy of a weight, whose vocabulary stays split."""
    rows, columns = place = partition(mesh, ("embed", "vocabulary"), weight.shape)

    @partial(jax.shard_map, mesh=mesh, in_specs=place, out_specs=PartitionSpec(axes, None, columns))
    def copies(part: Array) -> Array:
        # Every device has a gradient of its own for its copy: it is here that they are added up, once.
        mine = jax.lax.pcast(part, tuple(set(axes) - {rows}), to="varying")
        return _whole(mine, rows, dtype)[None]

    return copies(weight)


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _whole(weight: Array, axis: str | None, dtype: Any) -> Array:
    """Gathers a weight of which every device has some rows, rounded to a type that is cheap to move."""
    return _gathered(weight.astype(dtype), axis).astype(weight.dtype)


@_whole.defjvp
def _gradient_of_whole(axis: str | None, dtype: Any, weights: tuple[Array], changes: tuple[Array]) -> tuple:
    # What comes back is the sum of all devices' gradients, which is not rounded before it is added up.
    return _whole(weights[0], axis, dtype), _gathered(changes[0], axis)


def _gathered(weight: Array, axis: str | None) -> Array:
    return weight if axis is None else jax.lax.all_gather(weight, axis, axis=0, tiled=True)
