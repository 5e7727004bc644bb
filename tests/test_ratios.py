"""Ratios of probabilities at masked positions, at overflow and under importance weights."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.test_util import check_grads

from grpo_jax import ratios

LIMIT = ratios.EXPONENT_LIMIT
LOG_RATIOS = st.lists(st.floats(-3, 3, width=32), min_size=5, max_size=5)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e30, 200.0])
def test_a_masked_token_has_no_ratio_and_no_gradient_whatever_stands_there(poison):
    mask = jnp.array([True, False])

    def total(log_probs, other):
        return jnp.sum(ratios.bounded_exp(ratios.log_ratio(log_probs, other, mask)))

    for log_probs, other in (([0.5, poison], [0.2, 0.0]), ([0.5, 0.0], [0.2, poison])):
        value, gradients = jax.value_and_grad(total, (0, 1))(jnp.array(log_probs), jnp.array(other))
        np.testing.assert_allclose(value, math.exp(0.3) + 1, rtol=1e-6)
        np.testing.assert_allclose(gradients, [[math.exp(0.3), 0], [-math.exp(0.3), 0]], rtol=1e-6)


def test_the_exponential_goes_on_as_its_tangent():
    value, slope = jax.vmap(jax.value_and_grad(ratios.bounded_exp))(jnp.array([-30.0, 0, LIMIT, LIMIT + 3, 1e4]))
    largest = math.exp(LIMIT)
    np.testing.assert_allclose(value, [math.exp(-30), 1, largest, 4 * largest, (1e4 - 19) * largest], rtol=1e-6)
    np.testing.assert_allclose(slope, [math.exp(-30), 1, largest, largest, largest], rtol=1e-6)


def test_a_token_that_the_policy_excludes_has_ratio_zero():
    value, slope = jax.value_and_grad(ratios.bounded_exp)(-jnp.inf)
    assert (value, slope) == (0, 0)


def test_equal_log_probs_have_ratio_exactly_one():
    log_probs = jnp.array([-0.1, -1.7, -33.3])
    mask = jnp.ones(3, bool)
    log_ratios = ratios.log_ratio(log_probs, log_probs, mask)
    for values in (
        ratios.bounded_exp(log_ratios),
        ratios.causal_ratio(log_ratios),
        ratios.prefix_ratio(log_ratios),
        ratios.sequence_ratio(log_ratios),
        ratios.geometric_mean_ratio(log_ratios, mask),
        ratios.score_carrier(log_probs),
    ):
        np.testing.assert_array_equal(values, 1)


@given(LOG_RATIOS)
def test_products_of_ratios_are_those_of_a_loop(log_ratios):
    products = [math.exp(sum(log_ratios[: t + 1])) for t in range(5)]
    values = jnp.asarray(log_ratios, jnp.float32)
    np.testing.assert_allclose(ratios.causal_ratio(values), products, rtol=2e-5)
    np.testing.assert_allclose(ratios.prefix_ratio(values), [1, *products[:-1]], rtol=2e-5)
    np.testing.assert_allclose(ratios.sequence_ratio(values), products[-1], rtol=2e-5)


def test_the_geometric_mean_leaves_out_masked_tokens():
    mask = jnp.array([[True, True, False], [True, True, True]])
    log_ratios = jax.vmap(ratios.log_ratio)(jnp.array([[0.4, 0.6, 99], [1.0, 1, 1]]), jnp.zeros((2, 3)), mask)
    np.testing.assert_allclose(jax.vmap(ratios.geometric_mean_ratio)(log_ratios, mask), [1.6487, 2.7183], rtol=1e-4)


def test_a_product_and_a_geometric_mean_differ_by_the_length():
    log_ratios = jnp.full(4, 0.1)
    np.testing.assert_allclose(ratios.sequence_ratio(log_ratios), 1.49182, rtol=1e-5)
    np.testing.assert_allclose(ratios.geometric_mean_ratio(log_ratios, jnp.ones(4, bool)), 1.10517, rtol=1e-5)


def test_a_completion_without_tokens_has_ratio_one():
    nothing = jnp.zeros(3, bool)
    log_ratios = ratios.log_ratio(jnp.full(3, jnp.nan), jnp.full(3, jnp.nan), nothing)
    assert ratios.geometric_mean_ratio(log_ratios, nothing) == 1
    assert ratios.sequence_ratio(log_ratios) == 1


def test_a_mean_log_ratio_of_a_hundred_has_a_finite_ratio_and_gradient():
    def ratio(log_probs):
        return ratios.geometric_mean_ratio(log_probs, jnp.ones(2, bool))

    value, gradient = jax.value_and_grad(ratio)(jnp.array([100.0, 100.0]))
    assert np.isfinite(value)
    np.testing.assert_allclose(gradient, math.exp(LIMIT) / 2, rtol=1e-6)


def test_the_carrier_of_the_score_has_its_gradient_and_value_one():
    weights = jnp.array([2.0, -3.0])
    value, gradient = jax.value_and_grad(lambda lp: jnp.sum(weights * ratios.score_carrier(lp)))(jnp.array([-0.5, -4]))
    assert value == -1
    np.testing.assert_array_equal(gradient, weights)


def test_gradients_of_all_ratios_are_those_of_finite_differences():
    mask = jnp.array([True, True, False, True])
    log_ratios = jnp.array([0.3, -0.7, 0.0, 0.2])
    functions = [ratios.bounded_exp, ratios.causal_ratio, ratios.prefix_ratio, ratios.sequence_ratio]
    with jax.enable_x64(True):
        inputs = (jnp.asarray(np.array(log_ratios, np.float64)),)
        for function in [*functions, lambda u: ratios.geometric_mean_ratio(u, mask)]:
            # Finite differences hand over NumPy arrays.
            check_grads(lambda u, f=function: f(jnp.asarray(u)), inputs, order=1, modes=["rev"])
