"""Attention over several sources: equal to one joined source, finite for rows that may read nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.models.attention import KeyValues, Source, attend, attend_in_chunks, rotate, rotation

T, K, R, D, S = 3, 2, 2, 4, 7


def random_inputs(seed, scale=1.0):
    keys = jax.random.split(jax.random.key(seed), 4)
    query = scale * jax.random.normal(keys[0], (T, K, R, D))
    memory = KeyValues(scale * jax.random.normal(keys[1], (K, D, S)), jax.random.normal(keys[2], (K, S, D)))
    return query, memory, jax.random.bernoulli(keys[3], 0.7, (T, S))


def part(memory, mask, start, stop):
    return Source(KeyValues(memory.keys[..., start:stop], memory.values[:, start:stop]), mask[:, start:stop])


@jax.jit
def joined(query, memory, mask):
    return attend(query, (Source(memory, mask),))


@jax.jit
def split(query, memory, mask):
    return attend(query, (part(memory, mask, 0, 3), part(memory, mask, 3, S)))


def by_loops(query, memory, mask):
    query, keys, values = (np.float64(x) for x in (query, *memory))
    result = np.zeros((T, K, R, D))
    for t, k, r in np.ndindex(T, K, R):
        read = [s for s in range(S) if mask[t, s]]
        logits = np.array([query[t, k, r] @ keys[k, :, s] / D**0.5 for s in read])
        weights = np.exp(logits - logits.max()) if read else logits
        for weight, s in zip(weights / weights.sum() if read else weights, read, strict=True):
            result[t, k, r] += weight * values[k, s]
    return result


@given(st.integers(0, 1000), st.sampled_from([0.1, 1.0, 10.0]))
@settings(max_examples=15)
def test_one_or_two_sources_equal_loops_over_keys(seed, scale):
    query, memory, mask = random_inputs(seed, scale)
    expected = by_loops(query, memory, np.asarray(mask))
    np.testing.assert_allclose(joined(query, memory, mask), expected, atol=2e-5)
    np.testing.assert_allclose(split(query, memory, mask), expected, atol=2e-5)


@pytest.mark.parametrize("queries_per_chunk", [1, 2])
def test_a_few_queries_at_a_time_attend_like_all_at_once_in_value_and_gradient(queries_per_chunk):
    query, memory, mask = random_inputs(3)
    weights = jax.random.normal(jax.random.key(9), query.shape)

    def total(attention):
        run = lambda query, memory: (jnp.sum(weights * attention(query, memory)), attention(query, memory))  # noqa: E731
        return jax.jit(jax.value_and_grad(run, (0, 1), has_aux=True))(query, memory)

    def chunked(query, memory):
        parts = lambda mask: (part(memory, mask, 0, 3), part(memory, mask, 3, S))  # noqa: E731
        return attend_in_chunks(query, mask, parts, queries_per_chunk)

    ((_, found), gradient), ((_, expected), expected_gradient) = total(chunked), total(lambda q, m: joined(q, m, mask))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), gradient, expected_gradient)


def test_a_chunk_as_long_as_the_sequence_is_kept_and_not_recomputed():
    query, memory, mask = random_inputs(0)
    sources = lambda mask: (Source(memory, mask),)  # noqa: E731
    text = lambda size: str(jax.make_jaxpr(lambda q: attend_in_chunks(q, mask, sources, size))(query))  # noqa: E731
    assert "scan" not in text(T)
    assert "scan" in text(T - 1)


@pytest.mark.parametrize("readable", [(), (0,), (5,)])
def test_rows_with_nothing_to_read_are_zero_and_all_gradients_finite(readable):
    query, memory, _ = random_inputs(0)
    mask = jnp.zeros((T, S), bool).at[1, jnp.array(readable, int)].set(True)
    np.testing.assert_array_equal(split(query, memory, mask)[jnp.array([0, 2])], 0)
    gradients = jax.jit(jax.grad(lambda q, m: split(q, m, mask).sum(), (0, 1)))(query, memory)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
    if not readable:
        jax.tree.map(lambda leaf: np.testing.assert_array_equal(leaf, 0), gradients)


def test_masked_keys_and_values_are_never_read():
    query, memory, mask = random_inputs(1)
    mask = mask.at[:, 2].set(False)
    huge = KeyValues(memory.keys.at[..., 2].set(1e30), memory.values.at[:, 2].set(1e30))
    np.testing.assert_array_equal(split(query, memory, mask), split(query, huge, mask))


def test_logits_beyond_the_range_of_exp_stay_finite():
    query, memory, mask = random_inputs(2, 1e4)
    np.testing.assert_allclose(split(query, memory, mask), by_loops(query, memory, np.asarray(mask)), atol=1e-3)


def test_rotated_products_depend_on_the_distance_of_positions_only():
    x, y = jax.random.normal(jax.random.key(0), (2, 1, 1, D))

    def product(p, q):
        return jnp.sum(rotate(x, rotation(jnp.array([p]), D, 100.0)) * rotate(y, rotation(jnp.array([q]), D, 100.0)))

    np.testing.assert_allclose(product(3, 5), product(10, 12), rtol=1e-5)
    assert abs(product(3, 5) - product(3, 6)) > 1e-3


def test_position_zero_is_not_rotated():
    x = jax.random.normal(jax.random.key(1), (1, 2, D))
    np.testing.assert_array_equal(rotate(x, rotation(jnp.array([0]), D, 100.0)), x)


def test_angles_are_computed_once_for_all_layers():
    def layers(x, positions, weights):
        angles = rotation(positions, D, 100.0)
        for weight in weights:
            x = jnp.tanh(rotate(x, angles) @ weight)
        return x

    shapes = (jnp.ones((5, 2, D)), jnp.arange(5), jnp.ones((3, D, D)))
    compiled = jax.jit(layers).lower(*shapes).compile().as_text()
    assert compiled.count(" cosine(") == compiled.count(" sine(") == 1
