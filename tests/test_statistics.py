"""Averages that stay undivided until the end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax.statistics import Maximum, Mean, Moments, masked, maximum_of, mean_of, moments_of

VALUES = st.lists(st.tuples(st.floats(-100, 100, width=32), st.booleans()), min_size=12, max_size=12)


def columns(pairs):
    values, mask = zip(*pairs, strict=True)
    return np.array(values, np.float32), np.array(mask, bool)


def test_a_mean_of_nothing_is_zero_with_zero_gradient():
    def mean(values):
        return mean_of(values, jnp.zeros(3, bool)).compute()

    value, gradient = jax.value_and_grad(mean)(jnp.array([1.0, jnp.nan, jnp.inf]))
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)


def test_moments_and_maximum_of_nothing_are_zero_and_minus_infinity():
    nothing = jnp.zeros(2, bool)
    moments = moments_of(jnp.array([jnp.nan, 3.0]), nothing)
    assert (moments.count, moments.mean, moments.std()) == (0, 0, 0)
    assert maximum_of(jnp.array([jnp.nan, 3.0]), nothing).value == -jnp.inf


def test_parts_of_two_and_five_values_merge_to_the_mean_of_seven_not_to_the_mean_of_means():
    parts = [Mean(jnp.float32(3), jnp.float32(2)), Mean(jnp.float32(25), jnp.float32(5))]
    assert parts[0].merge(parts[1]).compute() == 4


@given(VALUES, st.integers(0, 12))
def test_statistics_of_any_two_parts_merge_to_those_of_the_whole(pairs, cut):
    values, mask = columns(pairs)
    for summarise in (mean_of, moments_of, maximum_of):
        # Whole widths, so that every example runs the same compiled operations.
        first, second = mask & (np.arange(12) < cut), mask & (np.arange(12) >= cut)
        whole = summarise(jnp.asarray(values), jnp.asarray(mask))
        merged = summarise(jnp.asarray(values), jnp.asarray(first)).merge(
            summarise(jnp.asarray(values), jnp.asarray(second))
        )
        np.testing.assert_allclose(np.array(merged), np.array(whole), rtol=1e-5, atol=1e-3)


@given(VALUES)
def test_statistics_are_those_of_a_loop_over_the_unmasked_values(pairs):
    values, mask = columns(pairs)
    kept = [float(value) for value, present in zip(values, mask, strict=True) if present]
    mean = sum(kept) / len(kept) if kept else 0.0
    std = (sum((value - mean) ** 2 for value in kept) / len(kept)) ** 0.5 if kept else 0.0
    moments = moments_of(jnp.asarray(values), jnp.asarray(mask))
    np.testing.assert_allclose(mean_of(jnp.asarray(values), jnp.asarray(mask)).compute(), mean, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose([moments.mean, moments.std()], [mean, std], rtol=1e-4, atol=1e-4)
    largest = maximum_of(jnp.asarray(values), jnp.asarray(mask)).value
    assert largest == (max(kept) if kept else -np.inf)


def test_the_standard_deviation_keeps_its_digits_beside_a_large_mean():
    values = jnp.float32(1e4) + jnp.array([0.0, 1.0, 2.0, 3.0])
    halves = [moments_of(values[:2], jnp.ones(2, bool)), moments_of(values[2:], jnp.ones(2, bool))]
    np.testing.assert_allclose(halves[0].merge(halves[1]).std(), np.std([0, 1, 2, 3]), rtol=1e-4)


def test_merging_with_nothing_changes_nothing():
    nothing, mask = jnp.zeros(3, bool), jnp.ones(3, bool)
    values = jnp.array([1.0, 5.0, 3.0])
    for summarise in (mean_of, moments_of, maximum_of):
        empty, full = summarise(values, nothing), summarise(values, mask)
        np.testing.assert_array_equal(np.array(empty.merge(full)), np.array(full))
        np.testing.assert_array_equal(np.array(full.merge(empty)), np.array(full))


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e30])
def test_masked_values_have_neither_value_nor_gradient(poison):
    mask = jnp.array([True, False])

    def total(values):
        return jnp.sum(jnp.square(masked(values, mask)))

    value, gradient = jax.value_and_grad(total)(jnp.array([3.0, poison]))
    assert value == 9
    np.testing.assert_array_equal(gradient, [6, 0])
    moments = moments_of(jnp.array([3.0, poison]), mask)
    assert (moments.mean, moments.squares) == (3, 0)


def test_statistics_are_the_same_compiled_and_mapped():
    values = jnp.arange(12.0).reshape(3, 4) ** 2
    mask = values % 3 != 1
    for summarise in (mean_of, moments_of, maximum_of):
        mapped = jax.jit(jax.vmap(summarise))(values, mask)
        for row in range(3):
            single = summarise(values[row], mask[row])
            np.testing.assert_allclose([leaf[row] for leaf in mapped], np.array(single), rtol=1e-6)


def test_the_largest_of_two_maxima_wins():
    assert Maximum(jnp.float32(-2)).merge(Maximum(jnp.float32(-3))).value == -2
    assert Moments(*jnp.float32([1, 2, 0])).merge(Moments(*jnp.float32([1, 4, 0]))).std() == 1
