"""Policy losses of one completion: numbers of other libraries, a loop as oracle, and what on-policy makes of them."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from grpo_jax.losses import surrogates
from tests.references import losses as reference

# The three tokens of NeMo-RL's and SkyRL's tests.
A, OLD, CURRENT = [1.0, -1.0, 2.0], [-1.0, -1.0, -1.0], [-1.69315, -1.0, -0.59453]
A_DUAL, OLD_DUAL, CURRENT_DUAL = [1.0, -1.0, -4.0], [-1.0, -1.0, -3.0], [-1.69315, -1.0, -0.69741]

SURROGATES = {
    "reinforce": (surrogates.reinforce(), reference.reinforce, ()),
    "importance_weighted": (surrogates.importance_weighted(), reference.importance_weighted, ()),
    "clipped": (surrogates.clipped(0.2, 0.28), reference.clipped, (0.2, 0.28)),
    "dual_clipped": (surrogates.dual_clipped(0.2, 0.28, 1.5), reference.dual_clipped, (0.2, 0.28, 1.5)),
    "cispo": (surrogates.cispo(0.2, 0.28), reference.cispo, (0.2, 0.28)),
    "cispo_above": (surrogates.cispo(), reference.cispo, (None, 0.28)),
    "gspo": (surrogates.gspo(0.1, 0.2), reference.gspo, (0.1, 0.2)),
    "gspo_token": (surrogates.gspo_token(0.1, 0.2), reference.gspo_token, (0.1, 0.2)),
    "sapo": (surrogates.sapo(1.0, 2.0), reference.sapo, (1.0, 2.0)),
}
FOUR = st.lists(st.integers(-64, 64).map(lambda n: n / 64), min_size=4, max_size=4)


def arrays(*values):
    return [jnp.asarray(value, jnp.float32) for value in values]


def tokens(surrogate, log_probs, old, advantages):
    return surrogate.loss(*arrays(log_probs, old, advantages), jnp.ones(len(log_probs), bool))


def with_ratios(surrogate, ratios, advantages, old=-2.0):
    """Losses and gradients of tokens whose ratios to the old policy are given."""
    log_probs = jnp.log(jnp.asarray(ratios, jnp.float32)) + old
    mask = jnp.ones(len(ratios), bool)

    def total(log_probs):
        losses = surrogate.loss(log_probs, jnp.full(len(ratios), old), jnp.asarray(advantages, jnp.float32), mask)
        return jnp.sum(losses), losses

    gradient, losses = jax.grad(total, has_aux=True)(log_probs)
    return losses, gradient


def test_clipped_gives_the_numbers_of_nemo_rl():
    losses = tokens(surrogates.clipped(), CURRENT, OLD, A)
    np.testing.assert_allclose(losses, [-0.5, 1, -2.4], atol=1e-5)
    np.testing.assert_allclose(jnp.mean(losses), -0.6333, atol=5e-5)


def test_reinforce_gives_the_numbers_of_nemo_rl():
    np.testing.assert_allclose(jnp.mean(tokens(surrogates.reinforce(), [-0.5, -1, -1.5], OLD, A)), 0.8333, atol=5e-5)


def test_a_ratio_of_one_gives_the_numbers_of_nemo_rl():
    for surrogate in (surrogates.importance_weighted(), surrogates.clipped()):
        np.testing.assert_allclose(jnp.mean(tokens(surrogate, CURRENT, CURRENT, A)), -0.6667, atol=5e-5)


def test_dual_clip_gives_the_numbers_of_nemo_rl_and_skyrl():
    losses = tokens(surrogates.dual_clipped(), CURRENT_DUAL, OLD_DUAL, A_DUAL)
    np.testing.assert_allclose(losses, [-0.5, 1, 12], rtol=1e-5)
    np.testing.assert_allclose([jnp.mean(losses), jnp.sum(losses)], [4.1667, 12.5], rtol=1e-5)


def test_dual_clip_gives_the_numbers_of_slime_and_acts_on_negative_advantages_alone():
    losses, gradient = with_ratios(surrogates.dual_clipped(0.2, 0.2, 1.5), [2, 2, 0.5], [2, -2, 2])
    np.testing.assert_allclose(losses, [-2.4, 3, -1], rtol=1e-5)
    np.testing.assert_allclose(gradient, [0, 0, -1], atol=1e-6)


def test_cispo_gives_the_number_of_skyrl():
    losses = tokens(surrogates.cispo(0.2, 0.2), CURRENT_DUAL, OLD_DUAL, A_DUAL)
    np.testing.assert_allclose(jnp.sum(losses), -2.9930, atol=5e-5)


def test_cispo_bounds_the_weight_and_loses_no_tokens_gradient():
    advantages = np.array([1, -0.5, 2, -1])
    _, gradient = with_ratios(surrogates.cispo(0.2, 0.28), [1, 1.14, 1.56, 0.4], advantages)
    np.testing.assert_allclose(gradient, -advantages * [1, 1.14, 1.28, 0.8], rtol=1e-5)
    _, gradient = with_ratios(surrogates.cispo(), [1, 1.14, 1.56, 0.4], advantages)
    np.testing.assert_allclose(gradient, -advantages * [1, 1.14, 1.28, 0.4], rtol=1e-5)


def test_gspo_gives_the_numbers_of_nemo_rl():
    losses = tokens(surrogates.gspo(0.2, 0.2), CURRENT, OLD, A)
    np.testing.assert_allclose(losses, -0.9086 * np.array(A), rtol=1e-4)
    np.testing.assert_allclose(jnp.mean(losses), -0.6057, atol=5e-5)


def test_sapo_gives_its_gate_at_one_and_beyond():
    for tau, value, beyond in ((1.0, 2, 2.626889), (1.05, 2 / 1.05, None), (2.0, 1, 1.570808)):
        for ratio, gate in ((1, value), (math.exp(0.5), beyond)):
            losses, gradient = with_ratios(surrogates.sapo(tau, tau), [ratio] * 2, [1, -1])
            if gate is not None:
                np.testing.assert_allclose(losses, [-gate, gate], rtol=1e-5)
            if ratio == 1:
                np.testing.assert_allclose(gradient, [-1, 1], rtol=1e-5)
    by_sign, _ = with_ratios(surrogates.sapo(1.0, 1.05), [1, 1], [1, -1])
    np.testing.assert_allclose(by_sign, [-2, 2 / 1.05], rtol=1e-6)


def test_token_ratios_are_clipped_one_by_one_not_as_one_sequence_ratio():
    losses, _ = with_ratios(surrogates.clipped(), [0.55 / 0.5, 0.36 / 0.4, 0.3 / 0.2], [1, 1, 1])
    np.testing.assert_allclose(losses, [-1.1, -0.9, -1.2], rtol=1e-5)
    np.testing.assert_allclose(jnp.mean(losses), -1.0667, atol=5e-5)


@functools.cache
def evaluated(name):
    surrogate = SURROGATES[name][0]

    def total(log_probs, old, advantages, mask):
        losses = jnp.where(mask, surrogate.loss(log_probs, old, advantages, mask), 0)
        return jnp.sum(losses), losses

    def both(log_probs, old, advantages, mask):
        gradients, losses = jax.grad(total, has_aux=True)(log_probs, old, advantages, mask)
        return losses, gradients, surrogate.is_clipped(log_probs, old, advantages, mask)

    return jax.jit(both)


@pytest.mark.parametrize("name", SURROGATES)
@given(log_probs=FOUR, old=FOUR, advantages=FOUR, mask=st.lists(st.booleans(), min_size=4, max_size=4))
def test_losses_and_gradients_are_those_of_a_loop(name, log_probs, old, advantages, mask):
    if name.startswith("gspo"):
        advantages = [advantages[0]] * 4
    rho = reference.ratios(log_probs, old, mask)
    if name.startswith("gspo"):
        rho = [reference.geometric_mean_ratio(log_probs, old, mask)]
    edges = {0.8, 1.28, 1.5, 0.9, 1.2}
    assume(all(abs(ratio - edge) > 1e-4 for ratio in rho for edge in edges))
    _, formula, bounds = SURROGATES[name]
    losses, gradients, _ = evaluated(name)(*arrays(log_probs, old, advantages), jnp.asarray(mask))
    expected, slopes = formula(log_probs, old, advantages, mask, *bounds)
    np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradients, slopes, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["clipped", "gspo"])
@given(log_probs=FOUR, old=FOUR, advantages=FOUR)
def test_clip_flags_are_those_of_a_loop_and_mark_lost_gradients(name, log_probs, old, advantages):
    mask = [True] * 4
    if name == "gspo":
        advantages = [advantages[0]] * 4
    rho = [reference.geometric_mean_ratio(log_probs, old, mask)] * 4 if name == "gspo" else None
    rho = rho or reference.ratios(log_probs, old, mask)
    low, high = SURROGATES[name][2]
    assume(all(abs(ratio - edge) > 1e-4 for ratio in rho for edge in (1 - low, 1 + high)))
    _, gradients, flags = evaluated(name)(*arrays(log_probs, old, advantages), jnp.asarray(mask))
    expected = [(a > 0 and r > 1 + high) or (a < 0 and r < 1 - low) for a, r in zip(advantages, rho, strict=True)]
    np.testing.assert_array_equal(flags, expected)
    np.testing.assert_array_equal(np.asarray(gradients) == 0, np.array(expected) | (np.array(advantages) == 0))


@pytest.mark.parametrize("name", [name for name in SURROGATES if name != "gspo"])
@given(log_probs=FOUR, advantages=FOUR)
def test_on_policy_every_token_surrogate_has_the_plain_policy_gradient(name, log_probs, advantages):
    losses, gradients, flags = evaluated(name)(*arrays(log_probs, log_probs, advantages), jnp.ones(4, bool))
    np.testing.assert_allclose(gradients, -np.float32(advantages), rtol=1e-6, atol=1e-30)
    assert not np.any(flags)


def test_on_policy_gspo_shares_the_policy_gradient_among_the_tokens():
    mask = jnp.array([True, True, True, False])
    log_probs, advantages = jnp.array([-1.0, -2.0, -0.5, -9.0]), jnp.full(4, 3.0)

    def mean(log_probs):
        return jnp.sum(surrogates.gspo().loss(log_probs, jax.lax.stop_gradient(log_probs), advantages, mask)[:3]) / 3

    np.testing.assert_allclose(jax.grad(mean)(log_probs), [-1, -1, -1, 0], rtol=1e-6)


def test_bounds_of_zero_leave_the_on_policy_gradient_whole():
    for surrogate in (surrogates.clipped(0.0, 0.0), surrogates.gspo_token(0.0, 0.0), surrogates.dual_clipped(0.0, 0.0)):
        _, gradient = with_ratios(surrogate, [1, 1], [1, -2])
        np.testing.assert_allclose(gradient, [-1, 2])


def test_a_bound_counts_as_clipped_only_where_it_takes_the_gradient():
    mask, old = jnp.ones(4, bool), jnp.zeros(4)
    log_probs = jnp.log(jnp.array([1.5, 1.5, 0.5, 0.5]))
    advantages = jnp.array([1.0, -1, 1, -1])
    for surrogate in (surrogates.clipped(), surrogates.dual_clipped()):
        flags = surrogate.is_clipped(log_probs, old, advantages, mask)
        np.testing.assert_array_equal(flags, [True, False, False, True])
    flags = surrogates.cispo().is_clipped(jnp.log(jnp.array([1.5, 0.5, 1.0, 1.0])), old, jnp.ones(4), mask)
    np.testing.assert_array_equal(flags, [True, False, False, False])
    flags = surrogates.dual_clipped(cap=3.0).is_clipped(jnp.log(jnp.array([4.0, 4, 2.9, 1])), old, -jnp.ones(4), mask)
    np.testing.assert_array_equal(flags, [True, True, False, False])


def test_clip_counts_of_an_advantage_of_zero_are_zero():
    flags = surrogates.clipped().is_clipped(*arrays([1.0, -1.0], [0.0, 0.0], [0.0, 0.0]), jnp.ones(2, bool))
    assert not jnp.any(flags)


@pytest.mark.parametrize("name", [*SURROGATES, "sequence_importance_weighted"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_log_ratios_of_a_hundred_leave_values_and_gradients_finite(name, sign):
    surrogate = SURROGATES[name][0] if name in SURROGATES else surrogates.sequence_importance_weighted()
    mask = jnp.ones(2, bool)
    for log_probs in ([100.0, 100.0], [-100.0, 100.0], [-100.0, -100.0]):

        def total(current):
            return jnp.sum(surrogate.loss(current, jnp.zeros(2), jnp.full(2, sign), mask))

        value, gradient = jax.value_and_grad(total)(jnp.array(log_probs))
        assert np.isfinite(value)
        assert np.all(np.isfinite(gradient))


def test_gspo_of_a_diverged_completion_is_clipped_with_a_zero_gradient():
    losses, gradient = with_ratios(surrogates.gspo(0.2, 0.2), [1e30, 1e30], [1, 1])
    np.testing.assert_allclose(losses, [-1.2, -1.2], rtol=1e-6)
    np.testing.assert_array_equal(gradient, 0)


def test_the_sequence_weight_multiplies_every_tokens_score():
    log_probs, old = jnp.array([0.3, -0.1]), jnp.zeros(2)
    advantages, mask = jnp.array([2.0, -1.0]), jnp.ones(2, bool)

    def total(log_probs):
        return jnp.sum(surrogates.sequence_importance_weighted().loss(log_probs, old, advantages, mask))

    value, gradient = jax.value_and_grad(total)(log_probs)
    np.testing.assert_allclose(value, -math.exp(0.2), rtol=1e-6)
    np.testing.assert_allclose(gradient, -math.exp(0.2) * np.array([2, -1]), rtol=1e-6)


def test_compiled_and_mapped_losses_are_those_of_single_completions():
    keys = jax.random.split(jax.random.key(0), 3)
    log_probs, old, advantages = (0.3 * jax.random.normal(key, (2, 4)) for key in keys)
    mask = jnp.array([[True, True, False, True], [True, True, True, True]])
    for name, (surrogate, *_) in SURROGATES.items():
        mapped = jax.jit(jax.vmap(surrogate.loss))(log_probs, old, advantages, mask)
        for row in range(2):
            single = surrogate.loss(log_probs[row], old[row], advantages[row], mask[row])
            np.testing.assert_allclose(mapped[row], single, rtol=1e-5, atol=1e-6, err_msg=name)


NAN = float("nan")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: surrogates.clipped(1.0, 0.2), r"surrogates.clipped: low is 1.0; it must be in \[0, 1\)"),
        (lambda: surrogates.clipped(-0.1, 0.2), "low is -0.1"),
        (lambda: surrogates.clipped(0.2, -0.1), "surrogates.clipped: high is -0.1; it must be >= 0"),
        (lambda: surrogates.clipped(NAN, 0.2), "low is nan"),
        (lambda: surrogates.clipped(0.2, NAN), "high is nan"),
        (lambda: surrogates.dual_clipped(cap=1.0), "cap is 1.0; it must be > 1"),
        (lambda: surrogates.dual_clipped(cap=NAN), "cap is nan"),
        (lambda: surrogates.dual_clipped(low=2.0), "surrogates.dual_clipped: low is 2.0"),
        (lambda: surrogates.cispo(1.0), "surrogates.cispo: low is 1.0"),
        (lambda: surrogates.cispo(high=-1.0), "surrogates.cispo: high is -1.0"),
        (lambda: surrogates.gspo(high=-1.0), "surrogates.gspo: high is -1.0"),
        (lambda: surrogates.gspo_token(low=-1.0), "surrogates.gspo_token: low is -1.0"),
        (lambda: surrogates.sapo(0.0), "surrogates.sapo: temperatures are 0.0 and 1.05; both must be > 0"),
        (lambda: surrogates.sapo(1.0, NAN), "temperatures are 1.0 and nan"),
    ],
)
def test_bounds_out_of_range_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
