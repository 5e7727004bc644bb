"""A number that says whether an array is, bit for bit, what it was; the same however the array is laid out."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_STEPS = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))


def fingerprints(leaves: Mapping[str, jax.Array | np.ndarray]) -> dict[str, int]:
    """Returns the fingerprint of each leaf, a number of 32 bits.

        sum over words w at index i of mix(w + 0x9E3779B1 i)  mod 2^32

    where a word is an element's bits (half an element of 64 bits) and mix is a bijection, so that one altered word
    always shows and several go unseen with probability 2^-32. A sum modulo 2^32 depends on no order: an array has one
    fingerprint on any number of devices and hosts, and on the host. Arrays on devices are summed there, where a pass
    over memory costs least and nothing has to be gathered.
    """
    return {
        place: _finished(_on_devices(leaf)) if isinstance(leaf, jax.Array) else int(_on_host(leaf))
        for place, leaf in leaves.items()
    }


def _finished(value: jax.Array) -> int:
    """Waits on all devices: of independent sums at a time, CPUs of several processes may each begin another one."""
    return int(jax.block_until_ready(value))


@jax.jit
def _on_devices(leaf: Any) -> Any:
    if leaf.dtype == jnp.bool_:
        words = leaf.astype(jnp.uint8)
    else:
        words = jax.lax.bitcast_convert_type(leaf, f"uint{8 * min(leaf.dtype.itemsize, 4)}")
    index, stride = jnp.zeros(words.shape, jnp.uint32), 1
    for axis in reversed(range(words.ndim)):
        place = jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
        index, stride = index + place * jnp.uint32(stride % 2**32), stride * words.shape[axis]
    return jnp.sum(_mixed(words.astype(jnp.uint32), index, jnp.uint32), dtype=jnp.uint32)


def _on_host(leaf: np.ndarray) -> np.uint32:
    flat = np.ascontiguousarray(leaf).reshape(-1)
    words = flat.view(f"uint{8 * min(leaf.dtype.itemsize, 4)}").astype(np.uint32)
    index = np.arange(words.size, dtype=np.uint64).astype(np.uint32)
    return np.sum(_mixed(words, index, np.uint32), dtype=np.uint32)


def _mixed(words: Any, index: Any, uint32: Any) -> Any:
    """Returns the words mixed with their places; for each place a bijection of the word."""
    mixed = words + index * uint32(0x9E3779B1)
    for shift, factor in _STEPS:
        mixed = (mixed ^ (mixed >> uint32(shift))) * uint32(factor)
    return mixed ^ (mixed >> uint32(16))
