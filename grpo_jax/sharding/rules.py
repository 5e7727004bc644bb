"""Where arrays live on the mesh: one table from logical axes to mesh axes, applied at the edges."""

from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from grpo_jax.types import TrainState

Rules = dict[str, str | tuple[str, ...] | None]
RULES: Rules = {
    "prompts": ("data", "fsdp"),
    "vocabulary": "tensor",
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "head_dim": None,
    "mlp": "tensor",
    "layers": None,
}
"""The mesh axes that a logical axis is split over; None: every device has all of it. Groups (``prompts``) are never
split themselves: all completions of a prompt are on one device, so that advantages need no communication."""
ON_THE_WAY = RULES | {"embed": ("data", "fsdp")}
"""Where parameters pass through when a mesh with fewer devices on tensor hands them to one with more: each device
first exchanges parts with the few others on its tensor axis, so that none ever holds what it does not keep."""


def partition(
    mesh: Mesh, axes: tuple[str | None, ...] | None, shape: tuple[int, ...], rules: Rules = RULES
) -> PartitionSpec:
    """Returns how one array is split.

    A dimension is replicated when the table gives it no mesh axis, when its size is no multiple of the mesh axis's (two
    key-value heads on four devices, say), or when an earlier dimension of the array took that mesh axis.

    Args:
        mesh: the mesh.
        axes: the logical axis of each dimension, None for one without; None for an array without any.
        shape: the array's shape.
        rules: the table.

    Returns:
        The partition.

    Raises:
        ValueError: for a logical axis that the table lacks, or another number of axes than dimensions.
    """
    if axes is None:
        return PartitionSpec()
    if len(axes) != len(shape):
        raise ValueError(f"logical axes {axes} name {len(axes)} dimensions of an array of shape {shape}")
    placed: list[str | tuple[str, ...] | None] = []
    taken: set[str] = set()
    for axis, size in zip(axes, shape, strict=True):
        if axis is not None and axis not in rules:
            raise ValueError(f"unknown logical axis {axis!r}; sharding/rules.py has {', '.join(rules)}")
        rule = rules[axis] if axis is not None else None
        names = (rule,) if isinstance(rule, str) else rule or ()
        parts = 1
        for name in names:
            parts *= mesh.shape[name]
        fits = parts > 1 and size % parts == 0 and taken.isdisjoint(names)
        placed.append(rule if fits else None)
        taken |= set(names) if fits else set()
    return PartitionSpec(*placed)


def shardings(mesh: Mesh, logical_axes: Any, params: Any, rules: Rules = RULES) -> Any:
    """Returns the sharding of each parameter.

    Args:
        mesh: the mesh.
        logical_axes: a tree like params; each leaf a tuple with a logical axis (or None) per dimension, or None.
        params: the parameters, or their shapes (``jax.eval_shape``).
        rules: the table.

    Returns:
        A tree of NamedSharding like params.
    """

    def sharding(leaf, axes):
        return NamedSharding(mesh, partition(mesh, axes, leaf.shape, rules))

    return jax.tree.map(sharding, params, logical_axes)


def state_shardings(mesh: Mesh, logical_axes: Any, state: TrainState) -> TrainState:
    """Returns the sharding of a whole training state; usable as ``in_shardings`` and ``out_shardings``.

    The reference is split like the policy. So is each of the optimizer's arrays that stands at a parameter's path and
    has its shape (Adam's moments); everything else, counts and the controller, is on every device.

    Args:
        mesh: the mesh.
        logical_axes: the parameters' logical axes, see ``shardings``.
        state: the state, or its shapes (``jax.eval_shape`` of ``Learner.init``).

    Returns:
        A TrainState of NamedSharding.
    """
    of_params = shardings(mesh, logical_axes, state.params)
    replicated = NamedSharding(mesh, PartitionSpec())

    def everywhere(tree):
        return jax.tree.map(lambda _: replicated, tree)

    return state._replace(
        params=of_params,
        opt_state=like_params(state.opt_state, state.params, of_params, replicated),
        ref_params=None if state.ref_params is None else of_params,
        controller=everywhere(state.controller),
        key=replicated,
        step=replicated,
        position=replicated,
        rejected=replicated,
    )


def like_params(tree: Any, params: Any, of_params: Any, otherwise: NamedSharding) -> Any:
    """Returns shardings of a tree that holds copies of the parameters' tree somewhere inside it.

    Args:
        tree: the tree, such as an optimizer's state.
        params: the parameters.
        of_params: their shardings.
        otherwise: the sharding of everything that is not like a parameter.

    Returns:
        A tree of shardings like ``tree``: a leaf whose path ends in a parameter's path and whose shape is that
        parameter's has its sharding.
    """
    paths = jax.tree.leaves_with_path(params)
    known = {path: (leaf.shape, spec) for (path, leaf), spec in zip(paths, jax.tree.leaves(of_params), strict=True)}

    def sharding(path, leaf):
        for start in range(len(path) + 1):
            shape, spec = known.get(path[start:], (None, otherwise))
            if shape == leaf.shape:
                return spec
        return otherwise

    return jax.tree.map_with_path(sharding, tree)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of everything whose leading axis is P: prompts, rollouts, batches.

    As a prefix of the whole tree it serves for ``in_shardings``. P must be a multiple of ``group_multiple(mesh)``;
    groups stay whole.

    Args:
        mesh: the mesh.

    Returns:
        The sharding.
    """
    return NamedSharding(mesh, PartitionSpec(RULES["prompts"]))
