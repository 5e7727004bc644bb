"""A fingerprint is the same wherever an array lies, and another one where a single bit is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from grpo_jax.checkpoints.fingerprints import fingerprints

DTYPES = [jnp.float32, jnp.bfloat16, jnp.int32, jnp.uint32, jnp.bool_, jnp.int8, jnp.float16]


def of(leaf):
    return fingerprints({"leaf": leaf})["leaf"]


def loop(leaf):
    """The definition, word by word, in Python's own integers."""
    total = 0
    size = min(leaf.dtype.itemsize, 4)
    data = np.asarray(leaf).tobytes()
    for index, start in enumerate(range(0, len(data), size)):
        word = (int.from_bytes(data[start : start + size], "little") + 0x9E3779B1 * index) % 2**32
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            word = ((word ^ (word >> shift)) * factor) % 2**32
        total += word ^ (word >> 16)
    return total % 2**32


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: jnp.dtype(dtype).name)
def test_devices_host_and_a_loop_agree(dtype):
    values = np.random.default_rng(0).normal(size=(3, 5, 2)) * 3
    leaf = jnp.asarray(values).astype(dtype)
    assert of(leaf) == of(np.asarray(leaf)) == loop(leaf)


@pytest.mark.parametrize("leaf", [np.arange(-4, 5), np.float64([[0.1, -2.5e300]]), np.int64(2**40), np.zeros((0, 3))])
def test_the_host_takes_what_devices_do_not(leaf):
    assert of(np.asarray(leaf)) == loop(np.asarray(leaf))


def test_a_scalar_and_nothing_have_one_too():
    assert of(jnp.float32(0.1)) == loop(np.float32(0.1))
    assert of(jnp.zeros((0, 2))) == 0


def test_it_does_not_depend_on_how_an_array_is_split():
    leaf = jax.random.normal(jax.random.key(0), (16, 8))
    mesh = jax.make_mesh((4, 2), ("data", "fsdp"), axis_types=(AxisType.Auto, AxisType.Auto))
    for spec in (PartitionSpec(), PartitionSpec("data"), PartitionSpec("fsdp", "data"), PartitionSpec(None, "data")):
        assert of(jax.device_put(leaf, NamedSharding(mesh, spec))) == of(leaf)


@given(st.integers(0, 11), st.integers(0, 31))
def test_every_single_bit_shows(place, bit):
    words = np.arange(12, dtype=np.uint32) * np.uint32(2654435761)
    other = words.copy()
    other[place] ^= np.uint32(1) << np.uint32(bit)
    assert of(words) != of(other)


def test_what_looks_alike_is_told_apart():
    assert of(np.float32([0.0])) != of(np.float32([-0.0]))
    assert of(np.float32([1, 2])) != of(np.float32([2, 1]))
    assert of(np.float32([[1, 2], [3, 4]])) != of(np.float32([[1, 3], [2, 4]]))
    nans = np.uint32([0x7FC00000, 0x7FC00001]).view(np.float32)
    assert of(jnp.asarray(nans[:1])) != of(jnp.asarray(nans[1:]))
