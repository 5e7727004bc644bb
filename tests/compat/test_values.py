"""Each constructor gives the numbers that its library gives, on inputs small enough to work by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import compat, kl
from grpo_jax.types import Batch, Scores

ODD = jnp.array([[1.0, 0.0, 0.0, 0.0]])


def tokens(*values):
    """Each value as the only token of a completion of its own ``[1, G, 1]``."""
    return jnp.asarray(values)[None, :, None]


def given(built, log_probs, advantages, old=None, ref=None, beta=0.0):
    """Loss and gradient by the log-probs where each token is a completion with its own advantage."""
    log_probs = tokens(*log_probs)
    batch = Batch(
        mask=jnp.ones(log_probs.shape, bool),
        rewards=jnp.zeros(log_probs.shape[:2]),
        old_log_probs=None if old is None else jnp.broadcast_to(tokens(*old), log_probs.shape),
        ref_log_probs=log_probs if ref is None else jnp.broadcast_to(tokens(*ref), log_probs.shape),
        advantages=jnp.asarray(advantages)[None],
    ).check()
    value, gradient = jax.value_and_grad(lambda x: built.accumulate(Scores(x), batch, beta)[0].compute())(log_probs)
    return value, gradient[0, :, 0]


def pulled(built, log_probs, ref, old=None, beta=1.0):
    """Loss and gradient of the KL term alone: all advantages are 0."""
    return given(built, log_probs, np.zeros(len(log_probs), np.float32), old, ref, beta)


@pytest.mark.parametrize(
    ("constructor", "odd", "rest"),
    [
        (compat.trl_grpo, 1.4997, -0.4999),  # ddof 1, epsilon 1e-4
        (compat.trl_gspo, 1.4997, -0.4999),
        (compat.verl_grpo, 1.499997, -0.499999),  # epsilon 1e-6
        (compat.tunix_grpo, 1.499997, -0.499999),
        (compat.slime_grpo, 1.499997, -0.499999),
        (compat.skyrl_grpo, 1.499997, -0.499999),
        (compat.openrlhf_grpo, 1.5, -0.5),
        (compat.open_instruct_grpo, 1.7320508, -0.5773503),  # ddof 0
        (compat.openrlhf_rloo, 1.0, -1 / 3),
        (compat.openrlhf_reinforce_plus_plus_baseline, 1.7320508, -0.5773503),  # over the batch, which is one group
        (compat.nemo_rl_grpo, 1.0, -0.5773497),  # the others of the odd one have deviation 0: it is not divided
    ],
)
def test_one_right_answer_of_four_has_the_librarys_advantages(constructor, odd, rest):
    batch = Batch(mask=jnp.ones((1, 4, 1), bool), rewards=ODD)
    advantages = constructor().prepare(batch).advantages
    np.testing.assert_allclose(advantages, [[odd, rest, rest, rest]], rtol=1e-5)


def test_the_losses_of_nemo_rl():
    current, old = [-1.69315, -1.0, -0.59453], [-1.0, -1.0, -1.0]
    loss = functools.partial(given, compat.nemo_rl_grpo())
    np.testing.assert_allclose(loss(current, [1.0, -1.0, 2.0], old)[0], -0.6333, atol=1e-4)
    np.testing.assert_allclose(loss(current, [1.0, -1.0, 2.0])[0], -2 / 3, rtol=1e-5)  # nobody else sampled: ratios 1
    reinforce = given(compat.nemo_rl_reinforce(), [-0.5, -1.0, -1.5], [1.0, -1.0, 2.0])[0]
    np.testing.assert_allclose(reinforce, 2.5 / 3, rtol=1e-5)


@pytest.mark.parametrize(
    "built", [compat.nemo_rl_grpo(ratio_clip_c=3.0), compat.skyrl_grpo(clip_ratio_c=3.0), compat.verl_grpo()]
)
def test_a_dual_clip_bounds_what_a_negative_advantage_costs(built):
    loss, gradient = given(built, [-1.69315, -1.0, -0.69741], [1.0, -1.0, -4.0], [-1.0, -1.0, -3.0])
    np.testing.assert_allclose(loss, (-0.5 + 1 + 12) / 3, rtol=1e-5)
    np.testing.assert_allclose(gradient, np.array([-0.5, 1.0, 0.0]) / 3, rtol=1e-5)


def test_a_sequence_ratio_is_the_geometric_mean_of_nemo_rls_gspo():
    surrogate = compat.nemo_rl_gspo().parts.surrogate
    current, old = jnp.array([-1.69315, -1.0, -0.59453]), jnp.full(3, -1.0)
    loss = surrogate.loss(current, old, jnp.array([1.0, -1.0, 2.0]), jnp.ones(3, bool))
    np.testing.assert_allclose(jnp.mean(loss), -0.6057, atol=1e-4)


def test_the_kl_of_nemo_rl_is_clamped_in_and_out():
    u = jnp.array([-1.0, 14.0, 29.0])
    for estimator, values in (
        (kl.k1, [-1, 10, 10]),
        (kl.k2, [0.5, 10, 10]),
        (kl.k3, [np.e - 2, 10, 10]),
    ):
        np.testing.assert_allclose(compat.own_ratio(estimator)(u), values, rtol=1e-5)


def test_a_log_ratio_beyond_nemo_rls_input_clamp_has_no_gradient():
    # current -3 and -1 against 0: u = -3 is clamped to -2, where k3 = e^2 - 3; u = -1 pulls with u itself.
    built = compat.nemo_rl_grpo(kl_input_clamp_value=2.0)
    loss, gradient = pulled(built, [-3.0, -1.0], [0.0, 0.0])
    np.testing.assert_allclose(2 * loss, 4.389056 + 0.718282, rtol=1e-5)
    np.testing.assert_allclose(2 * gradient, [0.0, -1.0], atol=1e-6)


def test_the_kl_loss_of_nemo_rl_and_its_gradient():
    loss, _ = pulled(compat.nemo_rl_grpo(), [0.0, -1.0, -2.0], [-1.0, -1.0, -1.0], beta=0.1)
    np.testing.assert_allclose(loss, 0.0362, atol=5e-5)
    current, ref, old = [-1.2, -0.7], [-0.9, -1.1], [-1.5, -0.4]
    _, gradient = pulled(compat.nemo_rl_grpo(), current, ref, beta=0.3)
    np.testing.assert_allclose(gradient, [-0.045, 0.06], rtol=1e-4)
    _, gradient = pulled(compat.nemo_rl_grpo_importance_weighted(), current, ref, old, beta=0.3)
    np.testing.assert_allclose(gradient, [-0.060744, 0.044449], rtol=1e-4)


@pytest.mark.parametrize("built", [compat.verl_grpo(), compat.skyrl_grpo(), compat.openrlhf_grpo()])
def test_a_plain_clamp_lets_go_of_what_the_policy_has_all_but_lost(built):
    loss, gradient = pulled(built, [-2.62, -2.6], [0.0, 0.0])
    np.testing.assert_allclose(2 * loss, 10 + np.exp(2.6) - 3.6, rtol=1e-5)
    np.testing.assert_allclose(2 * gradient, [0.0, 1 - np.exp(2.6)], rtol=1e-5)
    kept = jax.grad(kl.clamped(kl.k3, 10.0))(jnp.float32(-2.62))
    np.testing.assert_allclose(kept, 1 - np.exp(2.62), rtol=1e-4)  # ours: -12.7


def test_verls_straight_through_reports_k3_and_pulls_with_u():
    loss, gradient = pulled(compat.verl_grpo_straight_through(), [-1.0, -3.0], [-1.5, 0.0])
    np.testing.assert_allclose(2 * loss, np.exp(-0.5) - 0.5 + 10, rtol=1e-5)
    np.testing.assert_allclose(2 * gradient, [0.5, -3.0], rtol=1e-5)


def test_openrlhfs_unbiased_gradient_is_weighted_by_a_capped_ratio():
    loss, gradient = pulled(compat.openrlhf_grpo_unbiased(), [-1.0, -1.0], [-1.5, -2.0], [-1.2, -5.0])
    np.testing.assert_allclose(2 * loss, np.exp(-0.5) - 0.5 + np.exp(-1.0), rtol=1e-5)
    np.testing.assert_allclose(2 * gradient, [0.5 * np.exp(0.2), 10.0], rtol=1e-5)


def test_a_kl_in_the_reward_enters_before_trls_baseline_and_after_openrlhfs():
    # Two equal rewards, KL .4 and 0, beta .5: advantages -.2, .2 in TRL, -.2, 0 in OpenRLHF.
    batch = Batch(
        mask=jnp.ones((1, 2, 1), bool),
        rewards=jnp.ones((1, 2)),
        old_log_probs=tokens(-1.0, -1.0),
        ref_log_probs=tokens(-1.4, -1.0),
    )
    for built, advantages in ((compat.trl_rloo(), [-0.2, 0.2]), (compat.openrlhf_rloo(), [-0.2, 0.0])):
        gradient = jax.grad(lambda x, built=built: built(Scores(x), batch, 0.5)[0])(tokens(-1.0, -1.0))
        np.testing.assert_allclose(-2 * gradient[0, :, 0], advantages, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "constructor", [compat.trl_rloo, compat.verl_kl_in_reward, compat.openrlhf_rloo], ids=lambda each: each.__name__
)
def test_a_kl_in_the_reward_is_that_of_the_policy_that_sampled(constructor):
    # The current policy has moved by .1; the KL charged stays that of the old one, and with it the advantage.
    batch = Batch(
        mask=jnp.ones((1, 2, 1), bool),
        rewards=jnp.array([[1.0, 0.0]]),
        old_log_probs=tokens(-1.0, -1.0),
        ref_log_probs=tokens(-1.4, -1.0),
    )
    loss = jax.grad(lambda x: constructor()(Scores(x), batch, 0.5)[0])
    here, moved = loss(tokens(-1.0, -1.0)), loss(tokens(-0.9, -0.9))
    np.testing.assert_allclose(moved, here * np.exp(0.1), rtol=1e-5)


def test_slimes_surrogates():
    ratios = np.array([2.0, 2.0, 0.5])
    loss, _ = given(compat.slime_grpo(eps_clip_c=1.5), np.log(ratios) - 3, [2.0, -2.0, 2.0], [-3.0] * 3)
    np.testing.assert_allclose(loss, (-2.4 + 3 - 1) / 3, rtol=1e-4)
    ratios, advantages = np.array([1.0, 1.14, 1.56, 0.4]), np.array([1.0, -0.5, 2.0, -1.0])
    _, gradient = given(compat.slime_cispo(0.2, 0.28), np.log(ratios) - 3, advantages, [-3.0] * 4)
    np.testing.assert_allclose(4 * gradient, -np.array([1.0, 1.14, 1.28, 0.8]) * advantages, rtol=1e-5)


def test_slimes_weighted_kl_is_cut_after_the_weight():
    built = compat.slime_grpo(estimator=kl.k3, importance=kl.importance.token(), kl_limit=10.0)
    loss, gradient = pulled(built, [-2.0, -2.0], [0.0, -1.0], [-3.0, -2.0])
    np.testing.assert_allclose(2 * loss, 10 + np.e - 2, rtol=1e-5)  # e (e^2 - 3) = 11.9 is cut
    np.testing.assert_allclose(2 * gradient, [0.0, -1.0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("constructor", [compat.tunix_grpo, compat.slime_grpo], ids=lambda each: each.__name__)
def test_the_default_kl_term_of_tunix_and_slime_does_not_know_the_reference(constructor):
    near = pulled(constructor(), [-1.0, -2.0], [-1.1, -2.0])[1]
    far = pulled(constructor(), [-1.0, -2.0], [-9.0, -0.1])[1]
    np.testing.assert_array_equal(near, far)
    np.testing.assert_allclose(near, [0.5, 0.5])


def test_skyrl_averages_each_completion_first_and_masked_tokens_never_count():
    reduce = compat.skyrl_grpo().parts.reduction.reduce
    mask = jnp.array([[[True, True], [True, False]]])
    np.testing.assert_allclose(reduce(jnp.array([[[1.0, 2.0], [3.0, 4.0]]]), mask).compute(), 2.25)
    log_probs = jnp.array([[[0.2, 0.3, 0.5, 0.7]]])
    batch = Batch(
        mask=jnp.array([[[True, True, True, False]]]),
        rewards=jnp.ones((1, 1)),
        ref_log_probs=jnp.array([[[0.1, 0.2, 0.4, jnp.nan]]]),
    )
    built = compat.skyrl_grpo(estimator=kl.k1)
    loss, gradient = jax.value_and_grad(lambda x: built(Scores(x), batch, 1.0)[0])(log_probs)
    np.testing.assert_allclose(loss, 0.1, rtol=1e-5)
    np.testing.assert_allclose(gradient, [[[1 / 3, 1 / 3, 1 / 3, 0]]], rtol=1e-5)


def test_the_token_mean_of_verl_openrlhf_and_open_instruct_is_global():
    mask = jnp.arange(5)[None, :] < jnp.array([[2], [5]])
    values = jnp.array([[1.0, 2.0, 9.0, 9.0, 9.0], [3.0, 4.0, 5.0, 6.0, 7.0]])
    for constructor in (compat.verl_grpo, compat.openrlhf_rloo, compat.open_instruct_grpo, compat.trl_grpo):
        np.testing.assert_allclose(constructor().parts.reduction.reduce(values[None], mask[None]).compute(), 4.0)
