"""One token, three actions: the objective's expected value and gradient, by listing the actions, in both precisions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import kl
from grpo_jax.advantages import from_function, leave_one_out
from grpo_jax.losses import objective, reductions, surrogates
from grpo_jax.types import Batch, Scores
from tests.references import kl as reference

LOGITS, REFERENCE, OLD = [0.2, -0.3, 0.5], [0.5, 0.3, 0.2], [0.6, -0.1, 0.0]
POLICY, SAMPLER = np.array(reference.softmax(LOGITS)), np.array(reference.softmax(OLD))
U = np.log(POLICY) - np.log(REFERENCE)
K1, K2, K3 = U, U**2 / 2, np.exp(-U) - 1 + U
NO_ADVANTAGE = from_function(lambda rewards, mask: 0 * rewards, name="no_advantage")
TOKEN = kl.importance.token()
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}

REVERSE = [-0.188597, -0.112169, 0.300767]
FORWARD = [-0.16175, -0.094841, 0.25659]
RATIO_K2 = [-0.229131, -0.13761, 0.366742]
IN_LOSS = {
    "k1": kl.penalty(kl.k1, "loss", allow_biased=True),
    "k2": kl.penalty(kl.k2, "loss"),
    "k3": kl.penalty(kl.k3, "loss"),
    "straight-through": kl.penalty(kl.straight_through(kl.k3, kl.k2), "loss"),
    "ratio k1": kl.penalty(kl.k1, "loss", importance=TOKEN),
    "ratio k2": kl.penalty(kl.k2, "loss", importance=TOKEN),
    "ratio k3": kl.penalty(kl.k3, "loss", importance=TOKEN),
    "full": kl.full_vocabulary("loss"),
}
# Per case: the term, who samples, the gradient to six digits; and, for double precision, what the value is the mean of
# and which weight on the score the gradient is the mean of, both under the distribution given last.
CASES = {
    "k1": (IN_LOSS["k1"], POLICY, [0, 0, 0], K1, 1 + 0 * U, POLICY),
    "k2": (IN_LOSS["k2"], POLICY, REVERSE, K2, U, POLICY),
    "k3": (IN_LOSS["k3"], POLICY, FORWARD, K3, 1 - np.exp(-U), POLICY),
    "straight-through": (IN_LOSS["straight-through"], POLICY, REVERSE, K3, U, POLICY),
    "ratio k1": (IN_LOSS["ratio k1"], POLICY, REVERSE, K1, K1 + 1, POLICY),
    "ratio k2": (IN_LOSS["ratio k2"], POLICY, RATIO_K2, K2, K2 + U, POLICY),
    "ratio k3": (IN_LOSS["ratio k3"], POLICY, REVERSE, K3, K3 + 1 - np.exp(-U), POLICY),
    "full": (IN_LOSS["full"], POLICY, REVERSE, K1, U, POLICY),
    "k1 to go": (kl.penalty(kl.k1), POLICY, REVERSE, K1, U, POLICY),
    "k3 both": (kl.penalty(kl.k3, "both"), POLICY, REVERSE, 2 * K3, U, POLICY),
    "off-policy k1": (IN_LOSS["k1"], SAMPLER, [0.1507, 0.0376, -0.1883], K1, 1 + 0 * U, SAMPLER),
    "off-policy k2": (IN_LOSS["k2"], SAMPLER, [-0.170155, -0.079568, 0.249723], K2, U, SAMPLER),
    "off-policy k3": (IN_LOSS["k3"], SAMPLER, [-0.167751, -0.072178, 0.239929], K3, 1 - np.exp(-U), SAMPLER),
    "off-policy ratio k1": (IN_LOSS["ratio k1"], SAMPLER, REVERSE, K1, K1 + 1, POLICY),
    "off-policy ratio k2": (IN_LOSS["ratio k2"], SAMPLER, RATIO_K2, K2, K2 + U, POLICY),
    "off-policy ratio k3": (IN_LOSS["ratio k3"], SAMPLER, REVERSE, K3, K3 + 1 - np.exp(-U), POLICY),
    "off-policy full": (IN_LOSS["full"], SAMPLER, REVERSE, np.full(3, np.sum(POLICY * U)), U, POLICY),
    "off-policy k1 to go": (kl.penalty(kl.k1), SAMPLER, REVERSE, K1, U, POLICY),
}


def expectation(term, sampler):
    """The objective's expected value and gradient by the logits; beta 1, no reward."""
    reduction = reductions.sequence_mean_of_token_sum()
    built = objective(NO_ADVANTAGE, surrogates.importance_weighted(), reduction, kl=term)

    def one(log_prob, full_kl, old, ref):
        batch = Batch(jnp.ones((1, 1, 1), bool), jnp.zeros((1, 1)), old_log_probs=old, ref_log_probs=ref)
        return built(Scores(log_prob, full_kl=full_kl if built.needs_full_kl else None), batch, 1.0)[0]

    def loss(logits, sampler, ref):
        log_probs = jax.nn.log_softmax(logits)
        full = jnp.full(3, jnp.sum(jnp.exp(log_probs) * (log_probs - ref)))
        each = jax.vmap(one)(*(x.reshape(3, 1, 1, 1) for x in (log_probs, full, jnp.log(sampler), ref)))
        return jnp.sum(sampler * each)

    inputs = (jnp.asarray(LOGITS), jnp.asarray(sampler), jnp.log(jnp.asarray(REFERENCE)))
    return jax.jit(jax.value_and_grad(loss), compiler_options=QUICK)(*inputs)


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_in_single_precision_are_the_known_ones(name):
    term, sampler, known, value, *_, weights = CASES[name]
    found, slope = expectation(term, sampler)
    assert slope.dtype == jnp.float32
    digits = 5.1e-5 if name == "off-policy k1" else 1e-6  # That one is known to four digits.
    np.testing.assert_allclose(slope, known, rtol=0, atol=digits)
    np.testing.assert_allclose(found, np.sum(weights * value), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_in_double_precision_are_those_of_the_formula(name):
    term, sampler, _, value, pull, weights = CASES[name]
    with jax.enable_x64(True):
        found, slope = expectation(term, sampler)
    assert slope.dtype == np.float64
    np.testing.assert_allclose(found, np.sum(weights * value), rtol=1e-12)
    np.testing.assert_allclose(slope, reference.expected_gradient(LOGITS, weights, pull), rtol=1e-12, atol=1e-15)


def test_values_of_the_exact_and_the_uncorrected_kl_are_the_known_ones():
    np.testing.assert_allclose(reference.exact(POLICY, REFERENCE), 0.166746, atol=1e-6)
    np.testing.assert_allclose([np.sum(POLICY * K1), np.sum(POLICY * K3)], 0.166746, atol=1e-6)
    np.testing.assert_allclose(np.sum(SAMPLER * K1), -0.061844, atol=1e-6)


def test_each_tokens_gradient_under_its_own_ratio_is_its_log_ratio():
    term = kl.penalty(kl.k3, "loss", importance=TOKEN)
    reduction = reductions.sequence_mean_of_token_sum()
    built = objective(leave_one_out(), surrogates.importance_weighted(), reduction, kl=term)
    log_probs, ref = jnp.log(jnp.array(POLICY)).reshape(1, 3, 1), jnp.log(jnp.array(REFERENCE)).reshape(1, 3, 1)
    batch = Batch(jnp.ones((1, 3, 1), bool), jnp.ones((1, 3)), ref_log_probs=ref)
    slope = jax.jit(jax.grad(lambda lp: built(Scores(lp), batch, 1.0)[0]), compiler_options=QUICK)(log_probs)
    np.testing.assert_allclose(3 * slope[0, :, 0], U, rtol=1e-5)
