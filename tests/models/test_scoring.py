"""Log-prob, entropy and KL of one distribution against worked values, and masking and chunking of positions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax.models.scoring import entropy_of, full_kl_of, log_prob_of, read_logits, score_positions

THETA, REFERENCE = jnp.array([0.2, -0.3, 0.5]), jnp.log(jnp.array([0.5, 0.3, 0.2]))
LOGITS = st.lists(st.floats(-30, 30, width=32), min_size=4, max_size=4)


def test_full_kl_and_its_gradient_have_the_worked_values():
    value, gradient = jax.value_and_grad(full_kl_of)(THETA, REFERENCE)
    assert value == pytest.approx(0.166746, abs=1e-6)
    np.testing.assert_allclose(gradient, [-0.188597, -0.112169, 0.300767], atol=1e-6)


@pytest.mark.parametrize(("temperature", "expected"), [(1.0, -0.126928), (0.6, -0.035052)])
def test_the_temperature_divides_logits(temperature, expected):
    assert log_prob_of(jnp.array([2.0, 0.0]) / temperature, jnp.int32(0)) == pytest.approx(expected, abs=1e-6)


@given(LOGITS, LOGITS, st.integers(0, 3))
def test_one_distribution_equals_float64(logits, ref_logits, token):
    ours, theirs = np.float64(logits), np.float64(ref_logits)
    ours, theirs = (x - x.max() - np.log(np.exp(x - x.max()).sum()) for x in (ours, theirs))
    logits, ref_logits = jnp.array(logits, jnp.float32), jnp.array(ref_logits, jnp.float32)
    assert log_prob_of(logits, jnp.int32(token)) == pytest.approx(ours[token], abs=1e-5)
    assert entropy_of(logits) == pytest.approx(-np.exp(ours) @ ours, abs=1e-5)
    assert full_kl_of(logits, ref_logits) == pytest.approx(np.exp(ours) @ (ours - theirs), abs=2e-5)


def test_a_uniform_distribution_has_the_largest_entropy():
    assert entropy_of(jnp.zeros(8)) == pytest.approx(np.log(8), abs=1e-6)
    assert entropy_of(jnp.array([100.0, 0.0])) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("positions_per_chunk", [2, 99])
def test_nothing_leaks_from_masked_positions_whatever_the_chunks(positions_per_chunk):
    features = jax.random.normal(jax.random.key(0), (2, 3, 5, 4))
    tokens = jax.random.randint(jax.random.key(1), (2, 3, 5), 0, 4)
    mask = jax.random.bernoulli(jax.random.key(2), 0.6, (2, 3, 5))

    def total(features, tokens):
        identity, shifted = (lambda x: x), (lambda x: x[..., ::-1])
        read = read_logits(identity, shifted, entropy=True)
        scores = score_positions(read, tokens, mask, features, positions_per_chunk=positions_per_chunk)
        return sum(jnp.sum(leaf) for leaf in scores), scores

    run = jax.jit(jax.value_and_grad(total, has_aux=True))
    clean = run(features, tokens)
    poisoned = run(jnp.where(mask[..., None], features, jnp.nan), jnp.where(mask, tokens, -9))
    (_, scores), gradient = clean
    np.testing.assert_array_equal(np.asarray(scores.log_probs)[~np.asarray(mask)], 0)
    assert all(np.all(np.asarray(leaf)[np.asarray(mask)] != 0) for leaf in scores)
    jax.tree.map(np.testing.assert_array_equal, clean, poisoned)
    expected = jax.vmap(jax.vmap(jax.vmap(log_prob_of)))(features, tokens)
    np.testing.assert_allclose(scores.log_probs, np.where(mask, expected, 0), atol=1e-6)
    np.testing.assert_array_equal(np.asarray(gradient)[~np.asarray(mask)], 0)


def test_what_is_not_asked_for_is_not_computed():
    features, tokens = jnp.zeros((1, 1, 2, 4)), jnp.zeros((1, 1, 2), jnp.int32)
    read = read_logits(lambda x: x, None, entropy=False)
    scores = score_positions(read, tokens, tokens == 0, features, positions_per_chunk=2)
    assert scores.entropy is None
    assert scores.full_kl is None
