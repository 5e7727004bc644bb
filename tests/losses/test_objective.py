"""The composed objective: a loop as oracle, worked values, metrics, and what it refuses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax import advantages, kl
from grpo_jax.losses import degenerate, mismatch, objective, reductions, surrogates
from grpo_jax.types import Batch, Scores
from tests.losses.composed import QUICK
from tests.references import advantages as reference_advantages
from tests.references import losses as reference_losses
from tests.references import objective as reference

SHAPE = (2, 3, 3)
LOOPS = {
    "grpo": (
        objective(
            advantages.standardised(), surrogates.clipped(), reductions.token_mean(), kl=kl.penalty(kl.k3, "loss")
        ),
        reference.Parts(
            functools.partial(reference_advantages.standardised, ddof=1, epsilon=1e-4),
            functools.partial(reference_losses.clipped, low=0.2, high=0.2),
            reference_losses.token_mean,
            "k3",
        ),
    ),
    "rloo": (
        objective(
            advantages.leave_one_out(),
            surrogates.reinforce(),
            reductions.sequence_mean_of_token_sum(),
            kl=kl.penalty(kl.k1, "reward"),
            degenerate=degenerate.mask("live"),
        ),
        reference.Parts(
            reference_advantages.leave_one_out,
            reference_losses.reinforce,
            reference_losses.sequence_mean_of_token_sum,
            placement="reward",
            rule="mask live",
        ),
    ),
    "to_go": (
        objective(
            advantages.leave_one_out(),
            surrogates.importance_weighted(),
            reductions.constant_length(6),
            kl=kl.penalty(kl.k1, "to_go"),
            degenerate=degenerate.mask("all"),
        ),
        reference.Parts(
            reference_advantages.leave_one_out,
            reference_losses.importance_weighted,
            functools.partial(reference_losses.constant_length, length=6),
            placement="to_go",
            rule="mask all",
        ),
    ),
    "gspo": (
        objective(
            advantages.centred(),
            surrogates.gspo(0.1, 0.1),
            reductions.sequence_mean_of_token_mean(),
            kl=kl.penalty(kl.k2, "loss", "sequence"),
        ),
        reference.Parts(
            reference_advantages.centred,
            functools.partial(reference_losses.gspo, low=0.1, high=0.1),
            reference_losses.sequence_mean_of_token_mean,
            "k2",
            granularity="sequence",
        ),
    ),
    "cispo": (
        objective(
            advantages.standardised(0, 1e-6),
            surrogates.cispo(),
            reductions.token_mean(),
            kl=kl.penalty(kl.k3, "loss", importance=kl.importance.token()),
            degenerate=degenerate.mask("live"),
            mismatch=mismatch.truncated_token(1.5),
        ),
        reference.Parts(
            functools.partial(reference_advantages.standardised, ddof=0, epsilon=1e-6),
            functools.partial(reference_losses.cispo, low=None, high=0.28),
            reference_losses.token_mean,
            "k3",
            token_ratio=True,
            rule="mask live",
            cap=1.5,
        ),
    ),
}


@functools.cache
def compiled(built):
    return jax.jit(jax.value_and_grad(built, has_aux=True), compiler_options=QUICK)


@pytest.mark.parametrize("name", LOOPS)
@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1))
def test_loss_gradient_and_share_of_degenerate_groups_are_those_of_a_loop(name, seed):
    draws = np.random.default_rng(seed)
    old = -draws.exponential(size=SHAPE)
    log_probs, ref, behaviour = (old + 0.3 * draws.standard_normal(SHAPE) for _ in range(3))
    rewards = draws.choice([0.0, 0.5, 1.0, np.nan], size=SHAPE[:2], p=[0.3, 0.3, 0.3, 0.1])
    mask, valid = draws.random(SHAPE) < 0.75, draws.random(SHAPE[:2]) < 0.9
    built, parts = LOOPS[name]
    fields = [np.float32(x) for x in (log_probs, old, ref, behaviour, rewards)]
    expected = reference.evaluate(parts, *(x.tolist() for x in fields), mask.tolist(), valid.tolist(), 0.3)
    log_probs, old, ref, behaviour, rewards = (jnp.asarray(x) for x in fields)
    batch = Batch(jnp.asarray(mask), rewards, jnp.asarray(valid), None, old, behaviour, ref)
    (loss, metrics), gradient = compiled(built)(Scores(log_probs), batch, 0.3)
    np.testing.assert_allclose(loss, expected[0], rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(gradient.log_probs, expected[1], rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(metrics["degenerate"].compute(), expected[2], rtol=1e-6)


def batch_of(rewards, tokens=1, **fields):
    rewards = np.asarray(rewards, np.float32)
    shape = (*rewards.shape[:2], tokens)
    return Batch(jnp.asarray(np.ones(shape, bool)), jnp.asarray(rewards), **spread_over(shape, fields))


def spread_over(shape, fields):
    """Values broadcast to a shape, on the host, where nothing is compiled for it."""
    return {name: jnp.asarray(np.broadcast_to(np.float32(value), shape)) for name, value in fields.items()}


def scores_of(batch, log_probs=-1.0, **fields):
    return Scores(**spread_over(batch.mask.shape, fields | {"log_probs": log_probs}))


PLAIN = objective(advantages.leave_one_out(), surrogates.clipped(), reductions.token_mean())
K1_REWARD = objective(
    advantages.leave_one_out(),
    surrogates.reinforce(),
    reductions.sequence_mean_of_token_sum(),
    kl=kl.penalty(kl.k1, "reward"),
)
K1_TO_GO = objective(
    advantages.leave_one_out(), surrogates.reinforce(), reductions.sequence_mean_of_token_sum(), kl=kl.penalty(kl.k1)
)
K3_LOSS = objective(
    advantages.leave_one_out(), surrogates.clipped(), reductions.token_mean(), kl=kl.penalty(kl.k3, "loss")
)


def run(built, scores, batch, beta=0.0):
    (loss, metrics), gradient = compiled(built)(scores, batch, beta)
    return loss, gradient.log_probs, metrics


def test_on_policy_the_loss_is_zero_and_the_gradient_is_not():
    batch = batch_of([[1.0, -1.0]])
    loss, gradient, _ = run(PLAIN, scores_of(batch), batch)
    assert loss == 0
    np.testing.assert_allclose(np.ravel(gradient), [-1, 1])


def test_kl_before_the_baseline_and_after_it_are_different_advantages():
    # Completions with KL sums of .4 and 0, equal rewards, beta .5.
    batch = batch_of([[1.0, 1.0]], tokens=2, ref_log_probs=[[[-1.2, -1.2], [-1, -1]]])
    _, before, _ = run(K1_REWARD, scores_of(batch), batch, 0.5)
    np.testing.assert_allclose(-2 * before[0, :, 0], [-0.2, 0.2], atol=1e-6)
    _, after, _ = run(K1_TO_GO, scores_of(batch), batch, 0.5)
    np.testing.assert_allclose(-2 * after[0, :, 0], [-0.2, 0], atol=1e-6)
    np.testing.assert_allclose(-2 * after[0, :, 1], [-0.1, 0], atol=1e-6)


def test_a_large_reward_does_not_swallow_the_kl_in_it():
    batch = batch_of([[1e4, 1e4]], ref_log_probs=[[[-1.001], [-1.0]]])
    _, gradient, _ = run(K1_REWARD, scores_of(batch), batch, 0.1)
    np.testing.assert_allclose(-2 * np.ravel(gradient), [-1e-4, 1e-4], rtol=1e-3)


def test_kl_is_charged_to_each_completion_and_never_averaged_over_the_batch():
    batch = batch_of([[0.0, 0.0]], ref_log_probs=[[[-1.0], [-3.0]]])
    _, gradient, metrics = run(K1_TO_GO, scores_of(batch), batch, 1.0)
    np.testing.assert_allclose(2 * np.ravel(gradient), [0, 2])
    assert metrics["kl_max"].value > metrics["kl"].mean > 0


@pytest.mark.parametrize("placed", ["loss", "to_go", "both"])
def test_without_any_advantage_a_step_down_the_gradient_lowers_the_exact_kl(placed):
    term = kl.full_vocabulary("loss") if placed == "loss" else kl.penalty(kl.k1, placed)
    built = objective(advantages.leave_one_out(), surrogates.reinforce(), reductions.token_mean(), kl=term)
    reference_logits, logits = jnp.array([0.3, -0.2, 0.1]), jnp.array([1.0, -1.0, 0.5])
    ref = jax.nn.log_softmax(reference_logits)

    def exact(logits):
        log_probs = jax.nn.log_softmax(logits)
        return jnp.sum(jnp.exp(log_probs) * (log_probs - ref))

    def expected_loss(logits):
        log_probs = jax.nn.log_softmax(logits)
        weights = jax.lax.stop_gradient(jnp.exp(log_probs))

        def one(log_prob, ref):
            batch = Batch(jnp.ones((1, 2, 1), bool), jnp.zeros((1, 2)), ref_log_probs=jnp.full((1, 2, 1), ref))
            return built(Scores(jnp.full((1, 2, 1), log_prob), full_kl=jnp.full((1, 2, 1), exact(logits))), batch, 0.1)[
                0
            ]

        return jnp.sum(weights * jax.vmap(one)(log_probs, ref))

    step = logits - jax.jit(jax.grad(expected_loss), compiler_options=QUICK)(logits)
    assert exact(step) < exact(logits) - 1e-4


def test_beta_changes_the_gradient_and_the_kl_part_does_not_depend_on_the_advantage():
    batch = batch_of([[1.0, 0.0]], tokens=2, ref_log_probs=-1.5)
    equal = batch._replace(rewards=jnp.zeros((1, 2)))
    scores = scores_of(batch)
    parts = [run(K3_LOSS, scores, b, 0.2)[1] - run(K3_LOSS, scores, b, 0.0)[1] for b in (batch, equal)]
    assert np.all(np.abs(parts[0]) > 0.01)
    np.testing.assert_allclose(parts[0], parts[1], rtol=1e-5)


def test_a_policy_equal_to_its_reference_has_a_kl_of_exactly_zero():
    batch = batch_of([[1.0, 0.0]], tokens=3, ref_log_probs=-1.0)
    loss, gradient, metrics = run(K3_LOSS, scores_of(batch), batch, 0.5)
    assert metrics["kl"].mean == metrics["kl_max"].value == metrics["kl_loss"].total == 0
    np.testing.assert_array_equal(gradient, run(K3_LOSS, scores_of(batch), batch, 0.0)[1])
    assert loss == 0


def test_a_reference_that_wants_a_lost_token_pulls_back_with_finite_force():
    batch = batch_of([[0.0, 0.0]], ref_log_probs=0.0)
    loss, gradient, metrics = run(K3_LOSS, scores_of(batch, -100.0), batch, 0.1)
    assert np.isfinite(loss)
    assert np.all(np.asarray(gradient) < -1e6)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(metrics))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_an_overflowing_ratio_at_padding_leaves_loss_and_gradient_finite(sign):
    batch = batch_of([[sign, 0.0]], tokens=2, old_log_probs=-1.0)
    batch = batch._replace(mask=batch.mask.at[0, :, 1].set(False))
    loss, gradient, _ = run(PLAIN, scores_of(batch, [-1.0, 199.0]), batch)
    assert loss == 0
    np.testing.assert_allclose(np.asarray(gradient)[0], [[-sign / 2, 0], [sign / 2, 0]])


def test_a_batch_without_any_token_has_zero_loss_zero_gradient_and_nothing_that_is_not_a_number():
    batch = batch_of([[1.0, 0.0]], tokens=2, ref_log_probs=jnp.nan)
    batch = batch._replace(mask=jnp.zeros_like(batch.mask))
    loss, gradient, metrics = run(K3_LOSS, scores_of(batch, jnp.nan), batch, 0.1)
    assert loss == 0
    np.testing.assert_array_equal(gradient, 0)
    assert not any(np.any(np.isnan(leaf)) for leaf in jax.tree.leaves(metrics))
    assert metrics["kl"].count == metrics["ratio"].count == 0


def test_a_completion_without_tokens_enters_neither_the_kl_nor_the_baseline():
    batch = batch_of([[100.0, 1.0]], tokens=2, ref_log_probs=-1.2)
    batch = batch._replace(mask=batch.mask.at[0, 0].set(False))
    _, gradient, metrics = run(K3_LOSS, scores_of(batch), batch, 0.0)
    np.testing.assert_array_equal(gradient, 0)
    assert (metrics["kl"].count, metrics["reward"].mean, metrics["length"].compute()) == (1, 1, 2)
    np.testing.assert_allclose(metrics["kl_per_sequence"].compute(), 2 * (np.exp(-0.2) - 1 + 0.2), rtol=1e-4)


def test_the_kl_term_and_the_policy_term_share_one_denominator():
    ref = np.full((1, 2, 9), -1.0)
    ref[0, 0, 0] = -2
    batch = batch_of([[0.0, 0.0]], tokens=9, ref_log_probs=ref)
    batch = batch._replace(mask=batch.mask.at[0, 0, 1:].set(False))
    _, _, metrics = run(K3_LOSS, scores_of(batch), batch, 1.0)
    np.testing.assert_allclose(metrics["kl_loss"].compute(), np.exp(-1) / 10, rtol=1e-5)
    assert metrics["kl_loss"].count == metrics["policy_loss"].count == 10


def test_tokens_of_a_tool_are_neither_trained_nor_counted():
    batch = batch_of([[1.0, 0.0]], tokens=3)
    batch = batch._replace(mask=batch.mask.at[:, :, 1].set(False))
    _, gradient, metrics = run(PLAIN, scores_of(batch), batch)
    assert metrics["loss"].count == 4
    np.testing.assert_allclose(gradient[0], [[-0.25, 0, -0.25], [0.25, 0, 0.25]])


TO_GO = objective(
    advantages.leave_one_out(),
    surrogates.reinforce(),
    reductions.sequence_mean_of_token_sum(),
    kl=kl.penalty(kl.k1, "to_go"),
)


def test_the_kl_after_tokens_of_a_tool_reaches_the_tokens_before_them():
    """Of log-ratios (0, 5, 1) the middle one is the tool's: the first token is charged 1, by the last one alone."""
    batch = batch_of([[0.0, 0.0]], tokens=3, ref_log_probs=jnp.array([-1.0, -6.0, -2.0]))
    batch = batch._replace(mask=batch.mask.at[:, :, 1].set(False))
    _, gradient, metrics = run(TO_GO, scores_of(batch), batch, 1.0)
    np.testing.assert_allclose(gradient[0], [[0.5, 0, 0.5]] * 2)
    np.testing.assert_allclose(metrics["kl"].mean, np.exp(-1), rtol=1e-6)  # k3 of 0 and of 1, not of 5


def test_dropped_tokens_stay_in_the_denominator():
    built = objective(
        advantages.leave_one_out(),
        surrogates.clipped(),
        reductions.token_mean(),
        mismatch=mismatch.masked_token(),
    )
    recorded = jnp.tile(jnp.array([-1.0, -9.0]), 5)
    batch = batch_of([[1.0, 0.0]], tokens=10, behaviour_log_probs=recorded)
    _, gradient, metrics = run(built, scores_of(batch), batch)
    assert metrics["loss"].count == 20
    np.testing.assert_allclose(gradient[0, 0], np.tile([-0.05, 0], 5), atol=1e-8)
    np.testing.assert_allclose(metrics["mismatch"].compute(), 4)
    assert metrics["mismatch_max"].value == 8


def test_completions_that_the_policy_has_left_are_dropped_where_they_count_against_it_and_stay_in_the_denominator():
    built = objective(
        advantages.leave_one_out(),
        surrogates.reinforce(),
        reductions.token_mean(),
        kl=kl.penalty(kl.k3, "loss"),
        off_policy=mismatch.off_policy_sequences(1.0),
    )
    recorded = [[[0.5, 0.5], [0.5, 0.5], [-0.5, -0.5]]]
    batch = batch_of([[3.0, 0.0, 0.0]], tokens=2, behaviour_log_probs=recorded, ref_log_probs=-1.5)
    _, gradient, metrics = run(built, scores_of(batch), batch, 0.1)
    pull = 0.1 * (1 - np.exp(-0.5))
    expected = [[pull - 3] * 2, [0, 0], [pull + 1.5] * 2]
    np.testing.assert_allclose(6 * gradient[0], expected, rtol=1e-5)
    assert metrics["loss"].count == 6


def test_an_entropy_bonus_rewards_entropy():
    built = objective(
        advantages.leave_one_out(), surrogates.clipped(), reductions.token_mean(), entropy_coefficient=0.1
    )
    batch = batch_of([[0.0, 0.0]], tokens=2)
    (loss, metrics), gradient = compiled(built)(scores_of(batch, entropy=1.5), batch, 0.0)
    np.testing.assert_allclose(loss, -0.15, rtol=1e-6)
    np.testing.assert_allclose(gradient.entropy, -0.1 / 4, rtol=1e-6)
    np.testing.assert_allclose(metrics["entropy"].compute(), 1.5)


def test_the_share_of_clipped_tokens_counts_the_sign_of_the_advantage():
    batch = batch_of([[1.0, -1.0]], tokens=2, old_log_probs=0.0)
    _, _, metrics = run(PLAIN, scores_of(batch, jnp.log(jnp.array([1.5, 0.5]))), batch)
    np.testing.assert_allclose(metrics["clipped"].compute(), 0.5)
    np.testing.assert_allclose(metrics["ratio"].compute(), 1, rtol=1e-6)
    np.testing.assert_allclose(metrics["ratio_max"].value, 1.5, rtol=1e-6)


def test_the_kl_metric_of_older_samples_is_weighted_by_what_came_before():
    old, current, ref = [-1.0, -1.0], [-0.9, -1.2], [-1.1, -1.0]
    batch = batch_of([[0.0, 0.0]], tokens=2, old_log_probs=old, ref_log_probs=ref)
    _, _, metrics = run(K3_LOSS, scores_of(batch, current), batch)
    k3 = [np.exp(-0.2) - 1 + 0.2, np.exp(0.2) - 1 - 0.2]
    expected = np.exp(0.1) * k3[0] + np.exp(-0.1) * k3[1]
    np.testing.assert_allclose(metrics["kl_per_sequence"].compute(), expected, rtol=1e-4)
    np.testing.assert_allclose(metrics["kl_per_token"].compute(), expected / 2, rtol=1e-4)
    np.testing.assert_allclose(metrics["kl_token_max"].value, np.exp(0.1) * k3[0], rtol=1e-4)


def test_without_a_kl_term_no_reference_is_needed_and_no_kl_is_reported():
    batch = batch_of([[1.0, 0.0]])
    _, _, metrics = run(PLAIN, scores_of(batch), batch)
    assert not PLAIN.needs_reference
    assert not any(name.startswith("kl") and name != "kl_loss" for name in metrics)
    assert (PLAIN.target.name, PLAIN.off_policy_target.name) == ("zero", "zero")


def test_an_infinite_one_of_several_rewards_stays_out_of_the_reported_reward():
    built = objective(
        advantages.weighted_sum([1.0, 1.0], advantages.leave_one_out()), surrogates.clipped(), reductions.token_mean()
    )
    batch = batch_of([[[1.0, np.inf], [0.0, 1.0], [np.nan, np.nan]]])
    _, gradient, metrics = run(built, scores_of(batch), batch)
    np.testing.assert_allclose(metrics["reward"].mean, 0.75)
    assert np.all(np.isfinite(gradient))


def test_needs_are_declared():
    everything = objective(
        advantages.leave_one_out(),
        surrogates.clipped(),
        reductions.token_mean(),
        kl=kl.full_vocabulary("loss"),
        degenerate=degenerate.entropy_shaped(),
    )
    assert (everything.needs_reference, everything.needs_full_kl, everything.needs_entropy) == (True, True, True)
    assert (K3_LOSS.needs_reference, K3_LOSS.needs_full_kl, K3_LOSS.needs_entropy) == (True, False, False)
    assert hash(K3_LOSS) == hash(K3_LOSS)


REDUCTION, CLIPPED, LOO = reductions.token_mean(), surrogates.clipped(), advantages.leave_one_out()
K1 = kl.penalty(kl.k1, "reward")
FUSED = "fused with the task reward before standardised.*is not linear.*Use placement='to_go'"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: objective(advantages.standardised(), CLIPPED, REDUCTION, K1), FUSED),
        (lambda: objective(advantages.max_rl(), CLIPPED, REDUCTION, K1), "before max_rl, which is not linear"),
        (
            lambda: objective(advantages.batch_whitened(), CLIPPED, REDUCTION, K1),
            "would rescale beta.*placement='to_go'",
        ),
        (
            lambda: objective(
                advantages.batch_whitened(), CLIPPED, REDUCTION, kl.penalty(kl.k1, "reward", allow_biased=True)
            ),
            "scales by the whole batch",
        ),
        (
            lambda: objective(LOO, surrogates.gspo(), REDUCTION, kl.penalty(kl.k1)),
            "one advantage per completion.*gspo_token",
        ),
        (lambda: objective(LOO, surrogates.gspo(), REDUCTION, kl.penalty(kl.k1, "own_token")), "one advantage per"),
        (lambda: objective(LOO, surrogates.gspo(), REDUCTION, kl.full_vocabulary("both")), "one advantage per"),
        (
            lambda: objective(LOO, surrogates.gspo(), REDUCTION, degenerate=degenerate.entropy_shaped()),
            "the degenerate rule gives each token its own",
        ),
        (lambda: objective(LOO, CLIPPED, REDUCTION, entropy_coefficient=-0.1), "entropy_coefficient is -0.1"),
        (lambda: objective(LOO, CLIPPED, REDUCTION, entropy_coefficient=float("nan")), "entropy_coefficient is nan"),
        (lambda: objective(LOO, CLIPPED, REDUCTION, entropy_coefficient=float("inf")), "must be finite and >= 0"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


CORRECTED = objective(LOO, CLIPPED, REDUCTION, mismatch=mismatch.truncated_token())
DROPPING = objective(LOO, CLIPPED, REDUCTION, off_policy=mismatch.off_policy_sequences(1.0))
ENTROPIC = objective(LOO, CLIPPED, REDUCTION, entropy_coefficient=0.1)
SHAPED = objective(LOO, CLIPPED, REDUCTION, degenerate=degenerate.entropy_shaped())
EXACT = objective(LOO, CLIPPED, REDUCTION, kl.full_vocabulary("both"))
SEVERAL = objective(
    advantages.weighted_sum([1.0, 1.0], advantages.standardised()),
    CLIPPED,
    REDUCTION,
    kl.penalty(kl.k1, "reward", allow_biased=True),
)


@pytest.mark.parametrize(
    ("built", "scores", "batch", "error", "message"),
    [
        (K3_LOSS, {}, {}, ValueError, r"a KL term needs batch.ref_log_probs \[P, G, T\]; score the reference"),
        (EXACT, {}, {}, ValueError, "full-vocabulary KL needs scores.full_kl"),
        (ENTROPIC, {}, {}, ValueError, "needs scores.entropy; score with entropy=True"),
        (SHAPED, {}, {}, ValueError, "needs scores.entropy"),
        (CORRECTED, {}, {}, ValueError, "needs batch.behaviour_log_probs, the sampler's own record"),
        (DROPPING, {}, {}, ValueError, "needs batch.behaviour_log_probs"),
        (
            SEVERAL,
            {},
            {"rewards": jnp.ones((1, 2, 2)), "ref_log_probs": jnp.ones((1, 2, 3))},
            ValueError,
            "several rewards",
        ),
        (PLAIN, {"log_probs": jnp.zeros((1, 2, 1))}, {}, AssertionError, "shape"),
        (PLAIN, {"entropy": jnp.zeros((1, 2, 1))}, {}, AssertionError, "shape"),
        (PLAIN, {}, {"old_log_probs": jnp.zeros((1, 2, 1))}, AssertionError, "shape"),
        (PLAIN, {}, {"rewards": jnp.zeros((1, 3))}, AssertionError, "shape"),
        (PLAIN, {}, {"valid": jnp.ones((2, 1), bool)}, AssertionError, "shape"),
        (PLAIN, {}, {"mask": jnp.ones((1, 2, 3))}, AssertionError, "expected bool"),
        (
            PLAIN,
            {"log_probs": jnp.zeros((1, 1, 3))},
            {"rewards": jnp.ones((1, 1)), "mask": jnp.ones((1, 1, 3), bool)},
            ValueError,
            "a group of 1 has no other members",
        ),
    ],
)
def test_batches_and_scores_that_lack_something_are_refused(built, scores, batch, error, message):
    plain = Batch(jnp.ones((1, 2, 3), bool), jnp.array([[1.0, 0.0]]))
    # Traced only: every refusal comes before any computation.
    with pytest.raises(error, match=message):
        jax.eval_shape(lambda: built(Scores(jnp.zeros((1, 2, 3)))._replace(**scores), plain._replace(**batch), 0.1))


def test_unprepared_pieces_of_a_batch_are_refused():
    batch = batch_of([[1.0, 0.0]]).check()
    with pytest.raises(AssertionError, match="prepare"):
        jax.eval_shape(lambda: PLAIN.accumulate(scores_of(batch), batch, 0.0))
