"""The oracle's gradients against those taken by hand in NumPy, against jax.grad end to end, and against samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import kl
from grpo_jax.advantages import leave_one_out, standardised
from grpo_jax.losses import objective, reductions, surrogates
from grpo_jax.oracle import exact, instance, space
from tests.references import tabular

LISTED = instance.enumerated()
SMALL = instance.enumerated(max_tokens=2)
ROWS = [
    sum(3**t for t in range(len(prefix))) + sum(v * 3**i for i, v in enumerate(prefix[::-1]))
    for prefix in tabular.PREFIXES
]


def tables_of(seed, off_policy=True, listed=LISTED):
    return instance.tables(instance.random_instance(listed, seed), off_policy)


def build(term, advantage=None, surrogate=None, reduction=None):
    return objective(
        advantage or leave_one_out(),
        surrogate or surrogates.sequence_importance_weighted(),
        reduction or reductions.sequence_mean_of_token_sum(),
        kl=term,
    )


def test_the_targets_are_the_gradients_taken_by_hand():
    drawn = instance.random_instance(LISTED, 3)
    found = instance.tables(drawn, off_policy=True).targets
    logits = [np.asarray(p["logits"])[0][ROWS] for p in (drawn.params, drawn.ref_params, drawn.behaviour_params)]
    for name, by_hand in tabular.exact_gradients(*logits).items():
        np.testing.assert_allclose(found[name].reshape(-1, 3)[ROWS], by_hand, atol=1e-14, err_msg=name)


def test_the_gradient_of_the_reward_is_that_of_its_expectation():
    drawn = instance.random_instance(LISTED, 4)
    by_hand = instance.tables(drawn)
    score = np.sum(by_hand.jacobian[:, :3], axis=1)
    expected = -np.einsum("n,n,nd->d", by_hand.probabilities, drawn.rewards, score)
    np.testing.assert_allclose(by_hand.targets["reward"], expected, atol=1e-14)


@pytest.mark.parametrize(
    "built",
    [build(kl.penalty(kl.k1, "reward")), build(kl.penalty(kl.k3, "loss"), standardised(), surrogates.clipped())],
    ids=["linear", "clipped"],
)
def test_the_mean_is_jax_grad_of_the_expected_loss_through_the_policy(built):
    drawn = instance.random_instance(SMALL, 5)
    groups = space.multisets(len(drawn.rewards), 2)
    found = exact.expectation(built, instance.tables(drawn, True), groups, beta=0.3)
    with instance.exactly():
        whole = jax.grad(exact.expected_loss(built, drawn, groups, 0.3, off_policy=True))(drawn.params)
    np.testing.assert_allclose(found.reward + 0.3 * found.kl, whole["logits"].ravel(), atol=1e-14)


def test_multisets_and_ordered_groups_agree_whatever_the_chunk(monkeypatch):
    built, tables = build(kl.penalty(kl.k3, "both"), standardised()), tables_of(6, listed=SMALL)
    whole = exact.expectation(built, tables, space.ordered(7, 2))
    monkeypatch.setattr(exact, "CHUNK", 12)
    halves = exact.expectation(built, tables, space.multisets(7, 2))
    for one, other in zip(whole, halves, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-15)


def test_the_covariance_has_the_variance_as_its_trace_and_is_that_of_samples():
    built, tables = build(kl.penalty(kl.k1, "reward")), tables_of(7, listed=SMALL)
    groups = space.multisets(7, 2)
    matrix = exact.covariance(built, tables, groups)
    np.testing.assert_allclose(np.trace(matrix), exact.expectation(built, tables, groups).kl_variance, rtol=1e-12)
    weights, gradients = next(exact.gradients_of_groups(built, tables, groups))
    drawn = gradients[1][np.random.default_rng(0).choice(len(weights), 200_000, p=weights / weights.sum())]
    np.testing.assert_allclose(np.cov(drawn.T), matrix, atol=0.02 * np.trace(matrix))


@pytest.mark.parametrize("reduction", [reductions.token_mean(), reductions.constant_length(5)], ids=lambda r: r.name)
def test_a_reduction_given_as_data_is_the_reduction(reduction):
    built = build(kl.penalty(kl.k3, "both"), reduction=reduction)
    tables, groups = tables_of(8, listed=SMALL), space.multisets(7, 2)
    own = exact.expectation(built, tables, groups)
    shared = exact.expectation(build(kl.penalty(kl.k3, "both")), tables, groups, reduction=reduction)
    for one, other in zip(own, shared, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-15)


def test_what_cannot_be_computed_is_refused():
    drawn = instance.random_instance(SMALL, 1)
    with pytest.raises(ValueError, match="beta is 0"):
        exact.expectation(build(kl.penalty(kl.k1)), instance.tables(drawn), space.multisets(7, 2), beta=0.0)
    with pytest.raises(ValueError, match="4 rewards for 7"):
        instance.tables(drawn._replace(rewards=np.zeros(4)))
    never = {"logits": jnp.full_like(drawn.params["logits"], -jnp.inf)}
    with pytest.raises(ValueError, match="not finite"):
        instance.tables(drawn._replace(ref_params=never))


def test_a_jacobian_that_does_not_fit_is_refused_with_its_size(monkeypatch):
    monkeypatch.setattr(instance, "JACOBIAN_LIMIT", 1000)
    with pytest.raises(ValueError, match=r"7 completions of 2 tokens by 12 parameters.*Monte Carlo.*certify_sampled"):
        tables_of(1, listed=SMALL)
