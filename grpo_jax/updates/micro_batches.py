"""Batches taken in parts, so that one part's activations fit in memory and the gradient stays the whole batch's."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from grpo_jax.statistics import Mean, Statistic
from grpo_jax.types import Params

Tree = TypeVar("Tree")


def pad_groups(tree: Tree, multiple: int) -> Tree:
    """Appends padding groups until their number is a multiple; none is ever dropped.

    A padding group is all zeros and False: no prompt token, no completion token, no valid member. A ``Batch`` must have
    been through ``check()``, so that its ``valid`` exists and can say so.

    Args:
        tree: arrays whose leading axis is P: Prompts, a Rollout, a Batch, or a tuple of them.
        multiple: what P becomes a multiple of, >= 1; micro-batches times the mesh's data shards, say.

    Returns:
        The same tree with P rounded up.

    Raises:
        ValueError: for a multiple below 1 or a leaf with another leading axis.
    """
    if multiple < 1:
        raise ValueError(f"pad_groups: multiple must be at least 1, got {multiple}")
    missing = -_groups(tree) % multiple
    return (
        jax.tree.map(lambda leaf: jnp.pad(leaf, [(0, missing)] + [(0, 0)] * (leaf.ndim - 1)), tree) if missing else tree
    )


def split_groups(tree: Tree, count: int) -> Tree:
    """Splits every leaf's groups into parts: ``[P, ...] -> [count, P / count, ...]``.

    Part i takes the groups i, i + count, i + 2 count, ...: with P sharded in contiguous blocks, each part then has
    groups of every shard, and splitting moves no data between devices. Scalars are repeated for each part.

    Args:
        tree: arrays whose leading axis is P, or scalars.
        count: number of parts; P must be a multiple.

    Returns:
        The tree with a new leading axis.

    Raises:
        ValueError: when P is not a multiple of count, or a leaf has another leading axis.
    """
    groups = _groups(tree)
    if groups % count:
        raise ValueError(f"split_groups: {groups} groups do not split into {count} micro-batches; use pad_groups first")

    def split(leaf):
        if leaf.ndim == 0:
            return jnp.broadcast_to(leaf, (count,))
        return jnp.moveaxis(leaf.reshape(groups // count, count, *leaf.shape[1:]), 1, 0)

    return jax.tree.map(split, tree)


def join_groups(tree: Tree) -> Tree:
    """Undoes ``split_groups``: ``[count, P / count, ...] -> [P, ...]``, the groups in their first order."""
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1).reshape(-1, *leaf.shape[2:]), tree)


def map_groups(function: Callable[[Any], Tree], inputs: Any, count: int) -> Tree:
    """Applies a function to the groups part by part, one after another.

    Args:
        function: from a tree with leading axis P to one with leading axis P, group by group.
        inputs: the whole tree.
        count: number of parts; 1 applies it to the whole at once.

    Returns:
        What the function gives for the whole, up to rounding.
    """
    if count == 1:
        return function(inputs)
    return join_groups(jax.lax.map(function, split_groups(inputs, count)))


def accumulate_gradient(
    terms: Callable[[Params, Any], tuple[Mean, dict[str, Statistic]]], params: Params, inputs: Any, count: int
) -> tuple[Params, Mean, dict[str, Statistic]]:
    """Differentiates a mean over the whole batch, part by part.

    ``grad = sum_i grad(total_i) / sum_i count_i``: any split gives the same gradient up to rounding. Sums are kept in
    float32 and the result has each parameter's dtype.

    Args:
        terms: ``(params, part) -> (loss as a Mean, statistics)``; only the mean's total is differentiated.
        params: the parameters.
        inputs: the whole batch, leading axis P.
        count: number of parts; P must be a multiple.

    Returns:
        The gradient of the mean (0 where nothing was counted), the mean undivided, and the merged statistics.
    """
    if count == 1:
        return _whole_gradient(terms, params, inputs)

    def total(params, part):
        mean, statistics = terms(params, part)
        return mean.total, (mean, statistics)

    def add(gradient, part):
        more, found = jax.grad(total, has_aux=True)(params, part)
        more = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), more)
        # Added up among devices part by part: left to itself, the compiler would carry each device's own sum through
        # all parts and add up at the end, for which every device would need room for the whole gradient.
        more = jax.lax.optimization_barrier(more)
        return jax.tree.map(jnp.add, gradient, more), found

    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), params)
    gradient, stacked = jax.lax.scan(add, zeros, split_groups(inputs, count))
    mean, statistics = merge_stacked(stacked)
    divisor = _divisor(mean)
    gradient = jax.tree.map(lambda leaf, param: (leaf / divisor).astype(param.dtype), gradient, params)
    return gradient, mean, statistics


def _whole_gradient(terms: Callable, params: Params, inputs: Any) -> tuple[Params, Mean, dict[str, Statistic]]:
    """Differentiates the mean of a batch in one part: divided before, it is not divided, and kept twice, after."""

    def divided(params):
        mean, statistics = terms(params, inputs)
        return mean.total / jax.lax.stop_gradient(_divisor(mean)), (mean, statistics)

    gradient, found = jax.grad(divided, has_aux=True)(params)
    return gradient, *found


def _divisor(mean: Mean) -> Float[Array, ""]:
    """Returns what a total is divided by, which is 1 where nothing was counted."""
    return jnp.where(mean.count > 0, mean.count, 1)


def merge_stacked(stacked: Tree) -> Tree:
    """Merges statistics that were stacked along a leading axis.

    Args:
        stacked: a tree of statistics whose arrays have one more leading axis, of length >= 1.

    Returns:
        The same tree of merged statistics.
    """

    def is_statistic(node):
        return isinstance(node, Statistic)

    def merge(merged, part):
        return jax.tree.map(lambda one, other: one.merge(other), merged, part, is_leaf=is_statistic), None

    first, rest = jax.tree.map(lambda leaf: leaf[0], stacked), jax.tree.map(lambda leaf: leaf[1:], stacked)
    return jax.lax.scan(merge, first, rest)[0]


def _groups(tree: Any) -> int:
    """Returns P, the leading axis shared by every leaf that is not a scalar."""
    leaves = [(path, leaf) for path, leaf in jax.tree.leaves_with_path(tree) if leaf.ndim]
    groups = leaves[0][1].shape[0]
    for path, leaf in leaves:
        if leaf.shape[0] != groups:
            name = jax.tree_util.keystr(path)
            raise ValueError(f"{name} has shape {leaf.shape}, but the groups' axis P comes first and is {groups}")
    return groups
