"""KL fused with equal task rewards, and the price of masking, by listing all groups of four of a five-action policy."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import kl
from grpo_jax.advantages import leave_one_out, standardised
from grpo_jax.losses import degenerate, objective, reductions, surrogates
from grpo_jax.types import Batch, Scores
from tests.references import kl as reference

QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
REFERENCE = np.array(reference.softmax([1.10, -0.12, -0.71, -0.83, -0.48]))
POLICY = np.array(reference.softmax([0.96, -0.26, -1.08, -1.17, -0.46]))
REWARDS = np.array([1.0, 0, 0, 1, 0])
GROUPS = np.array(list(itertools.product(range(5), repeat=4)))
WEIGHTS = np.prod(POLICY[GROUPS], axis=1)
EQUAL = np.ptp(REWARDS[GROUPS], axis=1) == 0
VARIED = EQUAL & (np.ptp(GROUPS, axis=1) > 0)


@functools.cache
def compiled(built):
    return jax.jit(jax.grad(built, has_aux=True), compiler_options=QUICK)


def slopes(built, beta, groups=GROUPS):
    """The gradient of the mean over all listed groups, by each member's log-prob, times the number of members."""
    with jax.enable_x64(True):
        log_probs, ref = (jnp.asarray(np.log(p)[groups][..., None]) for p in (POLICY, REFERENCE))
        batch = Batch(jnp.ones(log_probs.shape, bool), jnp.asarray(REWARDS[groups]), ref_log_probs=ref)
        gradient, metrics = compiled(built)(Scores(log_probs), batch, beta)
        return np.asarray(gradient.log_probs)[..., 0] * groups.size, metrics


def test_the_instance_is_the_one_whose_numbers_are_known():
    np.testing.assert_allclose(np.sum(POLICY * REWARDS), 0.62652, atol=5e-6)
    np.testing.assert_allclose(reference.exact(POLICY, REFERENCE), 0.0050594, atol=5e-8)
    np.testing.assert_allclose(np.sum(WEIGHTS[EQUAL]), 0.17353, atol=5e-6)


FUSED = {
    "grpo": (
        objective(
            standardised(ddof=1, epsilon=1e-4),
            surrogates.reinforce(),
            reductions.sequence_mean_of_token_sum(),
            kl=kl.penalty(kl.k1, "reward", allow_biased=True),
        ),
        {0.1: 0.760, 0.01: 0.701, 0.001: 0.398},
        5e-4,
    ),
    "rloo": (
        objective(
            leave_one_out(),
            surrogates.reinforce(),
            reductions.sequence_mean_of_token_sum(),
            kl=kl.penalty(kl.k1, "reward"),
        ),
        {0.1: 0.0113, 0.01: 0.0011, 0.001: 0.0001},
        5e-5,
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_kl_fused_before_normalisation_has_unit_scale_whatever_beta_and_none_otherwise(name):
    built, expected, digits = FUSED[name]
    for beta, size in expected.items():
        advantages, _ = slopes(built, beta)
        mean = np.sum(WEIGHTS[VARIED] * np.mean(np.abs(advantages[VARIED]), axis=1)) / np.sum(WEIGHTS[VARIED])
        np.testing.assert_allclose(mean, size, rtol=0, atol=digits)


@pytest.mark.parametrize("beta", [0.1, 0.001])
def test_kl_added_after_normalisation_keeps_its_scale(beta):
    built = objective(
        standardised(), surrogates.reinforce(), reductions.sequence_mean_of_token_sum(), kl=kl.penalty(kl.k1, "to_go")
    )
    advantages, _ = slopes(built, beta)
    np.testing.assert_allclose(advantages[EQUAL], beta * np.log(POLICY / REFERENCE)[GROUPS[EQUAL]], rtol=1e-9, atol=0)


def kl_gradient(rule):
    """The expected gradient of the KL term by the logits, and the share of the denominator that was left."""
    built = objective(
        leave_one_out(),
        surrogates.reinforce(),
        reductions.sequence_mean_of_token_sum(),
        kl=kl.penalty(kl.k1, "to_go"),
        degenerate=rule,
    )
    with_kl, metrics = slopes(built, 1.0)
    without, _ = slopes(built, 0.0)
    by_action = np.zeros(5)
    np.add.at(by_action, GROUPS, WEIGHTS[:, None] * (with_kl - without) / 4)
    gradient = by_action - np.sum(by_action) * POLICY
    return gradient, float(metrics["loss"].count) / GROUPS.size


def test_masking_biases_the_kl_gradient_by_thirteen_and_fourteen_per_cent():
    exact = np.array(reference.expected_gradient(np.log(POLICY), POLICY, np.log(POLICY / REFERENCE)))
    kept, _ = kl_gradient(degenerate.keep())
    np.testing.assert_allclose(kept, exact, rtol=1e-10)
    masked, counted = kl_gradient(degenerate.mask("all"))
    assert counted == 1
    np.testing.assert_allclose(np.linalg.norm(masked - exact) / np.linalg.norm(exact), 0.130, atol=5e-4)
    live, counted = kl_gradient(degenerate.mask("live"))
    # The listed groups are not weighed by their probability in the denominator; in a large batch it is this share.
    live = live * counted / (1 - np.sum(WEIGHTS[EQUAL]))
    np.testing.assert_allclose(np.linalg.norm(live - exact) / np.linalg.norm(exact), 0.144, atol=5e-4)
