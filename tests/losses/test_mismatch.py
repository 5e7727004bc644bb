"""Correction of the difference between the sampler's probabilities and the trainer's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax.losses import mismatch

ALL = jnp.ones(3, bool)
FACTORIES = {
    "truncated_token": mismatch.truncated_token,
    "truncated_sequence": mismatch.truncated_sequence,
    "masked_token": mismatch.masked_token,
    "masked_sequence": mismatch.masked_sequence,
}


def weights(rule, ratios, mask=ALL, old=-1.0):
    """The weights of tokens whose ratios pi_old / mu are given."""
    return rule(jnp.full(len(ratios), old), old - jnp.log(jnp.asarray(ratios, jnp.float32)), mask)


def test_weights_are_those_of_nemo_rl():
    recorded = jnp.array([-0.5, -1.5, -0.8])
    found = mismatch.truncated_token()(jnp.full(3, -1.0), recorded, ALL)
    np.testing.assert_allclose(found, [0.6065, 1.6487, 0.8187], atol=5e-5)
    assert np.isclose(np.mean(found * np.array([-0.5, 1, -2.4])), -0.2065, atol=5e-5)


def test_a_missing_ratio_to_the_sampler_is_made_good():
    found = mismatch.truncated_token()(jnp.array([-1.0]), jnp.array([-0.3]), jnp.ones(1, bool))
    np.testing.assert_allclose(found, 0.4966, atol=5e-5)


def test_ratios_outside_the_bounds_are_masked_not_clipped():
    np.testing.assert_allclose(weights(mismatch.masked_token(0.5, 5.0), [0.4, 0.8, 6]), [0, 0.8, 0], rtol=1e-6)
    five = weights(mismatch.masked_token(0.5, 2.0), [0.25, 0.5001, 1, 1.9999, 4], mask=jnp.ones(5, bool))
    np.testing.assert_allclose(five, [0, 0.5001, 1, 1.9999, 0], rtol=1e-6)


def test_a_completion_whose_product_leaves_the_bounds_is_dropped_whole():
    rule = mismatch.masked_sequence(0.5, 2.0)
    np.testing.assert_allclose(weights(rule, [0.368, 1, 1]), [0, 0, 0])
    np.testing.assert_allclose(weights(rule, [1.649, 1, 1]), [1.649] * 3, rtol=1e-6)


def test_truncation_by_token_and_by_sequence_differ():
    np.testing.assert_allclose(weights(mismatch.truncated_token(2.0), [1.5, 3, 0.5]), [1.5, 2, 0.5], rtol=1e-6)
    np.testing.assert_allclose(weights(mismatch.truncated_sequence(4.0), [1.5, 3, 0.5]), [2.25] * 3, rtol=1e-6)
    np.testing.assert_allclose(weights(mismatch.truncated_sequence(2.0), [1.5, 3, 0.5]), [2] * 3, rtol=1e-6)


@pytest.mark.parametrize("name", FACTORIES)
@given(st.lists(st.integers(-64, 64), min_size=3, max_size=3), st.lists(st.booleans(), min_size=3, max_size=3))
def test_weights_are_those_of_a_loop(name, log_ratios, mask):
    log_ratios = [n / 64 for n in log_ratios]
    found = FACTORIES[name]()(jnp.asarray(log_ratios, jnp.float32), jnp.zeros(3), jnp.asarray(mask))
    product = np.exp(sum(u for u, m in zip(log_ratios, mask, strict=True) if m))
    for t in range(3):
        ratio = product if name.endswith("sequence") else np.exp(log_ratios[t])
        low, high = (0.5, 5.0) if name == "masked_token" else (0.5, 2.0)
        expected = min(ratio, 2) if name.startswith("truncated") else ratio * (low <= ratio <= high)
        if mask[t]:
            np.testing.assert_allclose(found[t], expected, rtol=1e-5)


@pytest.mark.parametrize("name", FACTORIES)
def test_an_unrecorded_token_has_weight_one_and_leaves_the_others_alone(name):
    old, recorded = jnp.array([-1.0, -2.0, -3.0]), jnp.array([-1.2, jnp.nan, -3.1])
    whole = name.endswith("sequence")
    expected = np.full(3, np.exp(0.3)) if whole else [np.exp(0.2), 1, np.exp(0.1)]
    np.testing.assert_allclose(FACTORIES[name]()(old, recorded, ALL), expected, rtol=1e-5)


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e30])
def test_masked_tokens_reach_no_weight(name, poison):
    mask = jnp.array([True, True, False])
    clean = FACTORIES[name]()(jnp.array([-1.0, -2, 0]), jnp.array([-1.2, -1.9, 0]), mask)
    for old, recorded in ((poison, 0.0), (0.0, poison), (poison, poison)):
        found = FACTORIES[name]()(jnp.array([-1.0, -2, old]), jnp.array([-1.2, -1.9, recorded]), mask)
        np.testing.assert_array_equal(found, clean)


def test_ratios_beyond_overflow_are_bounded():
    found = weights(mismatch.truncated_sequence(), [1e30, 1e30, 1])
    np.testing.assert_allclose(found, 2)


def test_rules_are_protocols_and_map():
    for factory in FACTORIES.values():
        rule = factory()
        assert isinstance(rule, mismatch.Mismatch)
        old, recorded = jnp.log(jnp.array([[0.5, 0.4], [0.3, 0.2]])), jnp.log(jnp.array([[0.4, 0.4], [0.1, 0.9]]))
        mapped = jax.jit(jax.vmap(rule))(old, recorded, jnp.ones((2, 2), bool))
        for row in range(2):
            np.testing.assert_allclose(mapped[row], rule(old[row], recorded[row], jnp.ones(2, bool)), rtol=1e-6)


def test_completions_with_a_negative_advantage_that_the_policy_has_left_are_dropped():
    rule = jax.vmap(mismatch.off_policy_sequences(1.0))
    distance = jnp.array([2.0, 0.5, 2.0])[:, None]
    # Half the tokens are further away and half nearer, and padding says nothing.
    recorded = jnp.zeros((3, 3)).at[:, 2].set(jnp.array([1e4, -1e4, 1e4]))
    current = recorded - jnp.concatenate([2 * distance, 0 * distance, 0 * distance], axis=1)
    mask = jnp.tile(jnp.array([[True, True, False]]), (3, 1))
    keep = rule(current, recorded, jnp.array([1.0, -1, -1]), mask)
    np.testing.assert_array_equal(keep, [True, True, False])


def test_a_completion_of_which_nothing_is_recorded_is_kept():
    rule = mismatch.off_policy_sequences(0.1)
    assert rule(jnp.array([-9.0]), jnp.array([jnp.nan]), jnp.float32(-1), jnp.ones(1, bool))
    assert rule(jnp.array([-9.0]), jnp.array([0.0]), jnp.float32(-1), jnp.zeros(1, bool))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: mismatch.truncated_token(0.9), "mismatch.truncated_token: cap is 0.9; it must be >= 1"),
        (lambda: mismatch.truncated_sequence(-1.0), "mismatch.truncated_sequence: cap is -1.0"),
        (lambda: mismatch.truncated_token(float("nan")), "cap is nan"),
        (lambda: mismatch.masked_token(2.0, 1.0), r"mismatch.masked_token: bounds are \[2.0, 1.0\]"),
        (lambda: mismatch.masked_token(-1.0, 1.0), "they must hold 1, the ratio of a perfect match"),
        (lambda: mismatch.masked_sequence(1.5, 2.0), "mismatch.masked_sequence: bounds are"),
        (lambda: mismatch.masked_sequence(0.5, float("nan")), "bounds are"),
        (lambda: mismatch.off_policy_sequences(0.0), "delta is 0.0; it must be > 0 nats per token"),
        (lambda: mismatch.off_policy_sequences(float("nan")), "delta is nan"),
    ],
)
def test_bounds_out_of_order_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
