"""Estimators of KL as functions of the log-ratio: values, gradients, and what floating point does to them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.test_util import check_grads

from grpo_jax import kl
from tests.references import kl as reference

NAMES = ["k1", "k2", "k3", "absolute"]
POLICY, OTHER = jnp.array([0.2, -0.3, 0.5]), jnp.log(jnp.array([0.5, 0.3, 0.2]))


@functools.cache
def value_and_slope(name):
    estimator = getattr(kl, name)
    return jax.jit(jax.vmap(jax.value_and_grad(estimator)))


def on_three_actions(estimator):
    """The expectation over the three actions, exactly: of the value, and of the path-wise gradient by the logits."""
    log_probs = jax.nn.log_softmax(POLICY)

    def value(logits):
        return jnp.sum(jnp.exp(log_probs) * estimator(jax.nn.log_softmax(logits) - OTHER))

    return jax.value_and_grad(value)(POLICY)


@pytest.mark.parametrize("name", NAMES)
@given(st.lists(st.floats(-15, 15, width=32, allow_subnormal=False), min_size=6, max_size=6))
def test_values_and_slopes_are_those_of_the_formula_in_double_precision(name, log_ratios):
    formula, slope = reference.ESTIMATORS[name]
    values, slopes = value_and_slope(name)(jnp.asarray(log_ratios, jnp.float32))
    np.testing.assert_allclose(values, [formula(u) for u in log_ratios], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slopes, [slope(u) for u in log_ratios], rtol=1e-5, atol=1e-6)


def test_three_tokens_give_the_numbers_of_nemo_rl():
    log_ratios = jnp.full(3, -1.0) - jnp.array([0.0, -15, -30])
    np.testing.assert_allclose(kl.k1(log_ratios), [-1, 14, 29], rtol=1e-6)
    np.testing.assert_allclose(kl.k2(log_ratios), [0.5, 98, 420.5], rtol=1e-6)
    np.testing.assert_allclose(kl.k3(log_ratios), [0.71828, 13, 28], rtol=1e-5)
    np.testing.assert_allclose(kl.clamped(kl.k1)(log_ratios), [-1, 10, 10], rtol=1e-6)
    np.testing.assert_allclose(kl.clamped(kl.k2)(log_ratios), [0.5, 10, 10], rtol=1e-6)
    np.testing.assert_allclose(kl.clamped(kl.k3)(log_ratios), [0.71828, 10, 10], rtol=1e-5)


def test_three_tokens_around_the_reference_have_a_mean_of_362_thousandths():
    values = kl.k3(jnp.array([0.0, -1, -2]) - -1)
    np.testing.assert_allclose(values, [0.36788, 0, 0.71828], rtol=1e-4)
    np.testing.assert_allclose(0.1 * jnp.mean(values), 0.0362, atol=5e-5)


def test_k2_is_half_the_square_and_k1_may_be_negative():
    np.testing.assert_allclose(kl.k2(jnp.float32(0.2)), 0.02, rtol=1e-6)
    assert kl.k1(jnp.float32(-2) - jnp.float32(-1)) == -1


@pytest.mark.parametrize("scale", [1e-8, 1e-6, 1e-4, 1e-2, 1, 10])
def test_k3_is_never_negative_in_single_precision(scale):
    log_ratios = scale * jax.random.normal(jax.random.key(1), (20_000,))
    values = kl.k3(log_ratios)
    assert jnp.min(values) >= 0
    assert jnp.mean(values) > 0 or scale < 1e-6
    naive = jnp.exp(-log_ratios) - 1 + log_ratios
    assert jnp.min(naive) < 0 or scale >= 1e-2, "the formula as it is usually written goes negative"


def test_k3_keeps_its_slope_where_its_value_vanishes():
    log_ratios = jnp.array([-1e-6, 1e-9, 1e-6, 0.0])
    np.testing.assert_allclose(jax.vmap(jax.grad(kl.k3))(log_ratios), log_ratios, rtol=1e-5)


def test_a_token_the_policy_has_lost_has_a_finite_k3_and_a_finite_pull_back():
    value, slope = jax.value_and_grad(kl.k3)(jnp.float32(-100 - 0))
    assert np.isfinite(value)
    np.testing.assert_allclose(slope, 1 - np.exp(20), rtol=1e-6)
    just_inside, just_outside = jax.vmap(jax.value_and_grad(kl.k3))(jnp.array([-19.9999, -20.0001]))
    np.testing.assert_allclose(just_inside[1] / just_inside[0], 1.0002, rtol=1e-4)
    np.testing.assert_allclose(just_outside[1], 1 - np.exp(20), rtol=2e-4)


@pytest.mark.parametrize(("excess", "value", "slope"), [(2.62, 10, -12.736), (5, 10, -147.41), (2.610, 9.989, -12.599)])
def test_a_clamp_keeps_the_restoring_slope_of_the_estimator(excess, value, slope):
    clamped, pull = jax.value_and_grad(kl.clamped(kl.k3, 10.0))(jnp.float32(-excess))
    np.testing.assert_allclose(clamped, value, atol=2e-3)
    np.testing.assert_allclose(pull, slope, rtol=1e-4)


def test_estimates_average_to_the_exact_kl_of_three_actions():
    for estimator in (kl.k1, kl.k3, kl.mixture((0.5, kl.k1), (0.5, kl.k3)), kl.straight_through(kl.k3, kl.k2)):
        np.testing.assert_allclose(on_three_actions(estimator)[0], 0.166746, atol=1e-6)


def test_path_wise_gradients_of_three_actions_are_nothing_reverse_and_forward():
    np.testing.assert_allclose(on_three_actions(kl.k1)[1], 0, atol=1e-6)
    np.testing.assert_allclose(on_three_actions(kl.k2)[1], [-0.188597, -0.112169, 0.300767], atol=1e-6)
    np.testing.assert_allclose(on_three_actions(kl.k3)[1], [-0.16175, -0.094841, 0.25659], atol=1e-6)


def test_straight_through_has_the_value_of_one_and_the_slope_of_the_other():
    estimator = kl.straight_through(kl.k3, kl.k2)
    log_ratios = jnp.linspace(-3, 3, 7)
    values, slopes = jax.vmap(jax.value_and_grad(estimator))(log_ratios)
    np.testing.assert_allclose(values, kl.k3(log_ratios), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slopes, log_ratios, rtol=1e-6)
    assert getattr(estimator, "__name__") == "straight_through(k3, k2)"  # noqa: B009


def test_a_mixture_is_the_weighted_sum():
    log_ratios = jnp.linspace(-2, 2, 5)
    estimator = kl.mixture((0.25, kl.k2), (2.0, kl.absolute))
    np.testing.assert_allclose(estimator(log_ratios), log_ratios**2 / 8 + 2 * jnp.abs(log_ratios), rtol=1e-6)


def test_gradients_are_those_of_finite_differences():
    with jax.enable_x64(True):
        inputs = (jnp.asarray([-2.0, -0.3, 0.4, 3.0]),)
        for estimator in (kl.k1, kl.k2, kl.k3, kl.absolute):
            check_grads(lambda u, f=estimator: f(jnp.asarray(u)), inputs, order=1, modes=["rev"], rtol=1e-4)


def test_estimators_are_elementwise_compiled_and_mapped():
    log_ratios = jnp.linspace(-3, 3, 12)
    for estimator in (kl.k1, kl.k2, kl.k3, kl.absolute, kl.clamped(kl.k3, 1.0)):
        assert isinstance(estimator, kl.Estimator)
        mapped = jax.jit(jax.vmap(estimator))(log_ratios.reshape(3, 4))
        np.testing.assert_allclose(mapped.ravel(), estimator(log_ratios), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: kl.mixture(), "no parts given"),
        (lambda: kl.clamped(kl.k3, 0.0), "limit is 0.0; it must be > 0"),
        (lambda: kl.clamped(kl.k3, -1.0), "limit is -1.0"),
        (lambda: kl.clamped(kl.k3, float("nan")), "limit is nan"),
    ],
)
def test_bad_hyperparameters_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
