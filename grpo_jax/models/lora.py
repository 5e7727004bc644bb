"""Low-rank adapters: train a few numbers beside a frozen base."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from grpo_jax.models.pretrained.layout import as_tree, leaf_at
from grpo_jax.types import Params

INPUTS = {"query": 1, "key": 1, "value": 1, "output": 2, "gate": 1, "up": 1, "down": 1}
"""The decoder's matrices that can be adapted, with how many of their leading axes are inputs, the layer axis aside."""


class Adapters(NamedTuple):
    """Adapters of a decoder as pure functions; ``params`` are theirs, ``base`` the frozen parameters of the decoder.

    The params have, for each adapted matrix at its path in the base, ``{"down": [..., inputs, rank], "up": [..., rank,
    outputs]}``. Because they are all that is trained, a reference that is a copy of them is the policy *as it started*:
    its adapters included, where a run goes on from adapters that were trained before.

    Attributes:
        init: ``(*, key) -> params``: normal ``down``, zero ``up``, so that nothing is changed yet. Consumes the key.
        merge: ``(base, params) -> parameters of the decoder``, base + alpha / rank * down up.
        logical_axes: ``() -> pytree`` like params.
    """

    init: Callable[..., Params]
    merge: Callable[[Params, Params], Params]
    logical_axes: Callable[[], Any]


def lora(
    base: Any,
    base_axes: Any,
    rank: int = 16,
    alpha: float | None = None,
    targets: tuple[str, ...] = tuple(INPUTS),
) -> Adapters:
    """Builds low-rank adapters of a decoder's matrices.

    Args:
        base: the decoder's parameters, or their shapes (``jax.eval_shape``).
        base_axes: their logical axes, ``policy.logical_axes()``.
        rank: width of each adapter, >= 1, and less than both sides of every matrix it adapts.
        alpha: ``alpha / rank`` multiplies the product; None: twice the rank.
        targets: which matrices to adapt, out of `INPUTS`.

    Raises:
        ValueError: an unknown target, a number out of range, or nothing to adapt.

    References: Hu et al. 2021, arXiv 2106.09685, section 4.1.
    """
    alpha = 2.0 * rank if alpha is None else alpha
    unknown = sorted(set(targets) - INPUTS.keys())
    if unknown or not targets:
        raise ValueError(f"lora: targets {list(targets)}; give some of {', '.join(INPUTS)}")
    if rank < 1 or not 0 < alpha < float("inf"):
        raise ValueError(f"lora: rank is {rank} and alpha {alpha}; rank must be at least 1, alpha positive and finite")
    places = dict(_places(base, base_axes, targets, rank))
    if not places:
        raise ValueError(f"lora: the parameters hold none of {', '.join(targets)}; adapters are for a decoder's blocks")

    def init(*, key: Key[Array, ""]) -> Params:
        keys = jax.random.split(key, len(places))
        pairs = zip(places.items(), keys, strict=True)
        return as_tree({path: place.init(rank, key=key) for (path, place), key in pairs})

    def merge(base: Params, params: Params) -> Params:
        def merged(path: tuple, leaf: Array) -> Array:
            place = places.get(_keys(path))
            return leaf if place is None else place.added(leaf, leaf_at(params, _keys(path)), alpha / rank)

        return jax.tree.map_with_path(merged, base)

    return Adapters(init, merge, lambda: as_tree({path: place.logical_axes() for path, place in places.items()}))


class _Place(NamedTuple):
    """One matrix: its shape and axes, split into layers, inputs and outputs."""

    shape: tuple[tuple[int, ...], ...]
    axes: tuple[tuple[str | None, ...], ...]

    def init(self, rank: int, *, key: Key[Array, ""]) -> dict[str, Array]:
        layers, inputs, outputs = self.shape
        size = math.prod(inputs)
        down = jax.random.normal(key, (*layers, *inputs, rank)) * size**-0.5
        return {"down": down, "up": jnp.zeros((*layers, rank, *outputs))}

    def added(self, leaf: Array, adapter: Mapping[str, Array], scale: float) -> Float[Array, "*shape"]:
        layers, (down, up) = self.shape[0], (adapter["down"], adapter["up"])
        rank = down.shape[-1]
        product = down.reshape(*layers, -1, rank) @ up.reshape(*layers, rank, -1)
        added = (leaf + scale * product.reshape(leaf.shape)).astype(leaf.dtype)
        # Compiled for itself, whatever reads it: with adapters that are still 0 policy and reference then compute the
        # same numbers, not some that are a rounding apart.
        return jax.lax.optimization_barrier(added)

    def logical_axes(self) -> dict[str, tuple[str | None, ...]]:
        layers, inputs, outputs = self.axes
        return {"down": (*layers, *inputs, None), "up": (*layers, None, *outputs)}


def _places(base: Any, base_axes: Any, targets: tuple[str, ...], rank: int) -> Iterator[tuple[tuple[str, ...], _Place]]:
    """Yields path and place of every matrix to adapt."""
    for path, leaf in jax.tree.leaves_with_path(base):
        keys = _keys(path)
        if keys[0] != "blocks" or keys[-1] not in targets:
            continue
        axes = leaf_at(base_axes, keys)
        first = int(axes[0] == "layers")
        middle = first + INPUTS[keys[-1]]
        place = _Place(*(tuple(each[part] for part in _parts(first, middle)) for each in (leaf.shape, axes)))
        sides = [math.prod(part) for part in place.shape[1:]]
        if rank >= min(sides):
            raise ValueError(f"lora: rank {rank} is not below {min(sides)}, the smaller side of {'.'.join(keys)}")
        yield keys, place


def _parts(first: int, middle: int) -> tuple[slice, slice, slice]:
    return slice(0, first), slice(first, middle), slice(middle, None)


def _keys(path: tuple) -> tuple[str, ...]:
    return tuple(entry.key for entry in path)
