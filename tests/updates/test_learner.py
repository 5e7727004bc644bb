import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax import advantages, kl
from grpo_jax.kl import controllers
from grpo_jax.losses import degenerate, objective, reductions, surrogates
from grpo_jax.types import Scores
from grpo_jax.updates import adam, assert_not_aliased, behaviour, copied_every, ema, frozen, learner
from tests.updates.builders import (
    FULL_KL,
    OBJECTIVE,
    REWARD_ONLY,
    TOKENS,
    VOCABULARY,
    assert_near,
    assert_same,
    build,
    compiled,
    moved_state,
    policy_params,
    rollout_and_batch,
    score,
)

PLAIN = functools.partial(build, optimizer=optax.sgd(1.0))
"""Steps whose length is the gradient: the parameters show it."""


def recording(statistic):
    """A controller of constant beta whose state is what it was fed last."""
    return controllers.constant(0.1)._replace(
        init=lambda: jnp.zeros(2),
        beta=lambda state: jnp.float32(0.1),
        update=lambda state, kl, samples: jnp.stack([kl, samples.astype(jnp.float32)]),
        statistic=statistic,
    )


@pytest.fixture(scope="module")
def default():
    return build(controller=recording("nats_per_sequence"))


@pytest.fixture(scope="module")
def three_steps():
    return build(controller=recording("nats_per_token"), updates_per_rollout=3)


@pytest.fixture(scope="module")
def full_kl():
    return PLAIN(parts=FULL_KL, controller=controllers.constant(1.0))


@pytest.fixture(scope="module")
def plain():
    built = PLAIN()
    return built, built.update


def test_an_update_is_the_gradient_of_the_objective_at_the_controllers_beta(plain):
    built, update = plain
    state, (rollout, batch) = moved_state(built), rollout_and_batch()

    def loss(params):
        ref_log_probs = score(state.ref_params, rollout).log_probs
        return OBJECTIVE(score(params, rollout), batch._replace(ref_log_probs=ref_log_probs), 0.1)[0]

    value, gradient = compiled(jax.value_and_grad(loss))(state.params)
    new, metrics = update(state, rollout, batch)
    assert_near(new.params, jax.tree.map(jnp.subtract, state.params, gradient), atol=1e-6)
    np.testing.assert_allclose(metrics["loss"], value, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(metrics["gradient_norm"], optax.tree.norm(gradient), rtol=1e-5)
    assert metrics["beta"] == np.float32(0.1)


def test_an_update_advances_the_step_and_leaves_key_position_and_reference(plain):
    built, update = plain
    state, (rollout, batch) = moved_state(built), rollout_and_batch()
    new, _ = update(state, rollout, batch)
    assert (new.step, new.position, new.rejected) == (1, 0, 0)
    assert jax.random.key_data(new.key).tolist() == jax.random.key_data(state.key).tolist()
    assert_same(new.ref_params, state.ref_params)


def test_every_metric_is_a_finite_scalar(plain):
    built, update = plain
    _, metrics = update(moved_state(built), *rollout_and_batch())
    assert {"loss", "beta", "gradient_norm", "rejected", "idle", "kl_mean", "kl_std", "kl_max", "reward_mean"} <= set(
        metrics
    )
    for name, value in metrics.items():
        assert value.shape == (), name
        assert np.isfinite(value), name


@pytest.fixture(scope="module")
def by_parts(plain):
    return {1: plain[1], 2: PLAIN(micro_batches=2).update, 5: PLAIN(micro_batches=5).update}


@settings(max_examples=8)
@given(st.integers(0, 10_000), st.sampled_from([2, 5]))
def test_any_number_of_micro_batches_gives_the_same_update_and_metrics(by_parts, seed, count):
    state, (rollout, batch) = moved_state(PLAIN(), seed=seed), rollout_and_batch(prompts=6, seed=seed)
    batch = batch._replace(rewards=batch.rewards.at[1, 0].set(jnp.nan))
    new, metrics = by_parts[count](state, rollout, batch)
    whole, whole_metrics = by_parts[1](state, rollout, batch)
    assert_near(new.params, whole.params, rtol=1e-4, atol=1e-5)
    assert_near(metrics, whole_metrics, rtol=1e-4, atol=1e-5)


def test_whole_batch_statistics_and_denominators_do_not_depend_on_the_split():
    reduction = reductions.sequence_mean_of_token_mean()
    parts = objective(advantages.batch_whitened(), surrogates.cispo(), reduction)
    rollout, batch = rollout_and_batch()
    updated = []
    for count in (1, 4):
        built = PLAIN(parts=parts, micro_batches=count)
        updated.append(built.update(moved_state(built), rollout, batch)[0].params)
    assert_near(*updated, rtol=1e-5, atol=1e-6)


def test_invalid_groups_change_nothing(plain):
    built, update = plain
    state, (rollout, batch) = moved_state(built), rollout_and_batch(prompts=4)
    other_rollout, other = rollout_and_batch(prompts=3, seed=9)
    joined = jax.tree.map(
        lambda *leaves: jnp.concatenate(leaves), (rollout, batch.check()), (other_rollout, other.check())
    )
    joined = (joined[0], joined[1]._replace(valid=joined[1].valid & (jnp.arange(7) < 4)[:, None]))
    assert_near(update(state, *joined)[0].params, update(state, rollout, batch)[0].params, rtol=1e-5, atol=1e-6)


def test_on_policy_the_ratio_is_one_and_clipping_changes_nothing(plain):
    built, update = plain
    state, (rollout, batch) = moved_state(built), rollout_and_batch()
    new, metrics = update(state, rollout, batch)
    explicit, _ = update(state, rollout, batch._replace(old_log_probs=score(state.params, rollout).log_probs))
    assert metrics["ratio"] == metrics["ratio_max"] == 1.0
    assert metrics["clipped"] == 0.0
    assert_near(new.params, explicit.params, rtol=1e-6)


def test_several_steps_per_rollout_are_single_ones_with_the_first_policys_log_probs(default, three_steps):
    rollout, batch = rollout_and_batch()
    state = moved_state(three_steps)
    new, metrics = three_steps.update(state, rollout, batch)
    batch = batch._replace(old_log_probs=score(state.params, rollout).log_probs)
    expected, losses = state, []
    for _ in range(3):
        expected, step_metrics = default.update(expected, rollout, batch)
        losses.append(step_metrics["loss"])
    assert_near(new.params, expected.params)
    assert_near(new.opt_state, expected.opt_state)
    assert new.step == 3
    np.testing.assert_allclose(metrics["loss"], np.mean(losses), rtol=1e-4, atol=1e-6)
    assert metrics["ratio_max"] > 1.0


def test_log_probs_that_the_batch_brings_are_used_as_they_are(plain):
    built, update = plain
    state, (rollout, batch) = moved_state(built), rollout_and_batch()
    own = score(state.params, rollout).log_probs
    _, metrics = update(state, rollout, batch._replace(ref_log_probs=own))
    assert metrics["kl_max"] == 0.0
    _, metrics = update(state, rollout, batch._replace(old_log_probs=own - 0.1))
    np.testing.assert_allclose(metrics["ratio"], np.exp(0.1), rtol=1e-5)


@pytest.fixture(scope="module")
def everything_moves():
    """Adam, a reference that copies each step, a controller that always reacts."""
    controller = controllers.proportional(0.1, target=0.001)
    built = build(controller=controller, reference=copied_every(1), micro_batches=2)
    return built, built.update


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
def test_a_rejected_update_changes_nothing_but_two_counters(everything_moves, bad):
    built, update = everything_moves
    rollout, batch = rollout_and_batch()
    before, _ = update(moved_state(built), rollout, batch)
    broken = batch._replace(ref_log_probs=jnp.full(batch.mask.shape, bad))
    new, metrics = update(before, rollout, broken)
    assert metrics["rejected"] == 1.0
    assert (new.step, new.rejected) == (before.step + 1, 1)
    assert_same(new._replace(step=before.step, rejected=before.rejected, key=None), before._replace(key=None))
    again, _ = update(new, rollout, broken)
    assert again.rejected == 2
    good, metrics = update(again, rollout, batch)
    assert (good.rejected, metrics["rejected"], good.step) == (0, 0.0, before.step + 3)
    for leaf in jax.tree.leaves(good._replace(key=None)):
        assert np.isfinite(leaf).all()


def test_a_non_finite_gradient_is_rejected_though_the_loss_is_finite():
    @jax.custom_vjp
    def poisoned(values):
        return values

    poisoned.defvjp(lambda values: (values, None), lambda _, slope: (slope.at[0, 0, 0].set(jnp.nan),))

    def broken(params, rollout, **kwargs):
        return Scores(poisoned(score(params, rollout).log_probs))

    built = learner(broken, REWARD_ONLY, adam(0.1), controllers.constant(0.0), frozen())
    state = built.init(policy_params(), key=jax.random.key(0))
    new, metrics = compiled(built.update)(state, *rollout_and_batch())
    assert np.isfinite(metrics["loss"])
    assert (metrics["rejected"], new.rejected) == (1.0, 1)
    assert_same((new.params, new.opt_state), (state.params, state.opt_state))


@pytest.fixture(scope="module")
def reward_only():
    """A learner without KL term, and the keywords its policy was scored with."""
    calls = []

    def counted(params, rollout, **kwargs):
        calls.append(kwargs)
        return score(params, rollout, **kwargs)

    built = learner(counted, REWARD_ONLY, adam(0.1), controllers.constant(0.0), frozen())
    return built._replace(update=compiled(built.update)), calls


def test_a_batch_that_teaches_nothing_moves_nothing(reward_only):
    built, _ = reward_only
    rollout, batch = rollout_and_batch()
    batch = batch.check()
    state, _ = built.update(moved_state(built), rollout, batch)
    equal = batch._replace(rewards=jnp.full(batch.rewards.shape, 0.7))
    padding = batch._replace(valid=jnp.zeros(batch.rewards.shape, bool))
    unknown = batch._replace(rewards=jnp.full(batch.rewards.shape, jnp.nan))
    for nothing in (equal, padding, unknown):
        new, metrics = built.update(state, rollout, nothing._replace(task_rewards=nothing.rewards))
        assert_same((new.params, new.opt_state), (state.params, state.opt_state))
        assert (metrics["idle"], metrics["rejected"], metrics["loss"]) == (1.0, 0.0, 0.0)
        assert new.step == state.step + 1


def test_without_a_kl_term_no_reference_is_stored_or_scored(reward_only):
    built, calls = reward_only
    state = moved_state(built)
    assert state.ref_params is None
    calls.clear()
    _, metrics = built.update(state, *rollout_and_batch())
    assert calls == [{"entropy": False, "ref_params": None}]
    assert not any(name.startswith("kl") and name != "kl_loss" for name in metrics)
    assert metrics["beta"] == 0.0


def test_equal_rewards_still_move_towards_the_reference_through_the_kl_term(plain):
    built, update = plain
    state, (rollout, batch) = moved_state(built), rollout_and_batch()
    equal = batch._replace(rewards=jnp.full(batch.rewards.shape, 0.7))
    new, metrics = update(state, rollout, equal)
    assert metrics["gradient_norm"] > 0
    assert metrics["degenerate"] == 1.0
    masking = objective(
        *OBJECTIVE.parts[:2], OBJECTIVE.parts.reduction, kl=OBJECTIVE.parts.kl, degenerate=degenerate.mask()
    )
    masked = PLAIN(parts=masking)
    assert_same(masked.update(state, rollout, equal)[0].params, state.params)


def test_the_controller_is_fed_the_statistic_it_names_and_the_number_of_sequences(default, three_steps):
    rollout, batch = rollout_and_batch(prompts=4)
    batch = batch._replace(valid=jnp.ones(batch.rewards.shape, bool).at[3, 2].set(False))
    state, metrics = default.update(moved_state(default), rollout, batch)
    np.testing.assert_allclose(state.controller, [metrics["kl_per_sequence"], 11], rtol=1e-5)
    # Several steps: the first one's, whose samples are the policy's own; one update, so the sequences count once.
    state, _ = three_steps.update(moved_state(three_steps), rollout, batch)
    np.testing.assert_allclose(state.controller, [metrics["kl_per_token"], 11], rtol=1e-5)
    assert abs(metrics["kl_per_sequence"] - metrics["kl_per_token"]) > 0.1


def test_beta_is_the_controllers_and_rises_while_the_kl_is_above_target(everything_moves):
    built, update = everything_moves
    state, inputs = moved_state(built), rollout_and_batch()
    betas = []
    for _ in range(3):
        state, metrics = update(state._replace(ref_params=policy_params(seed=10)), *inputs)
        betas.append(float(metrics["beta"]))
    assert betas[0] == np.float32(0.1)
    assert betas[0] < betas[1] < betas[2]


def test_a_batch_without_tokens_is_no_evidence_about_the_kl(everything_moves):
    built, update = everything_moves
    rollout, batch = rollout_and_batch()
    state = moved_state(built)
    nothing = batch._replace(valid=jnp.zeros(batch.rewards.shape, bool))
    new, _ = update(state, rollout, nothing)
    assert built_beta(new) == built_beta(state)


def built_beta(state):
    return float(controllers.proportional(0.1, target=0.001).beta(state.controller))


def test_the_reference_is_copied_at_every_nth_optimizer_step():
    built = build(reference=copied_every(2))
    update = built.update
    state, inputs = moved_state(built), rollout_and_batch()
    first, _ = update(state, *inputs)
    assert_same(first.ref_params, state.ref_params)
    second, _ = update(first, *inputs)
    assert_same(second.ref_params, second.params)
    third, _ = update(second, *inputs)
    assert_same(third.ref_params, second.params)


def test_a_rollout_is_scored_by_the_reference_from_before_its_updates(three_steps):
    rollout, batch = rollout_and_batch()
    moving = build(reference=copied_every(2), updates_per_rollout=3)
    state = moved_state(moving)
    new, _ = moving.update(state, rollout, batch)
    expected, _ = three_steps.update(moved_state(three_steps), rollout, batch)
    assert_near(new.params, expected.params)
    assert (
        abs(new.ref_params["position"] - new.params["position"]).max()
        < abs(state.ref_params["position"] - new.params["position"]).max()
    )


def test_the_behaviour_policy_is_a_reference_without_parameters(default):
    built = build(reference=behaviour())
    state, (rollout, batch) = moved_state(built), rollout_and_batch()
    assert state.ref_params is None
    _, metrics = built.update(state, rollout, batch)
    _, expected = default.update(moved_state(default), rollout, batch._replace(ref_log_probs=rollout.log_probs))
    assert metrics["kl_mean"] == expected["kl_mean"] > 0


def test_full_vocabulary_kl_is_scored_with_the_references_parameters(full_kl):
    state, (rollout, batch) = moved_state(full_kl), rollout_and_batch()
    _, metrics = full_kl.update(state, rollout, batch)
    scores = score(state.params, rollout, ref_params=state.ref_params)
    per_sequence = np.sum(np.where(rollout.mask, scores.full_kl, 0), axis=-1)
    np.testing.assert_allclose(metrics["kl_mean"], per_sequence.mean(), rtol=1e-5)
    assert metrics["gradient_norm"] > 0


def test_entropy_is_measured_when_asked_for_and_changes_nothing(plain):
    built, update = plain
    state, inputs = moved_state(built), rollout_and_batch()
    new, metrics = PLAIN(measure_entropy=True).update(state, *inputs)
    assert 0 < metrics["entropy"] < np.log(VOCABULARY)
    assert "entropy" not in update(state, *inputs)[1]
    assert_near(new.params, update(state, *inputs)[0].params)


def test_the_loss_can_be_zero_while_the_gradient_is_not():
    # Completions of equal length whose advantages sum to zero: on policy the value says nothing.
    parts = objective(advantages.centred(), surrogates.importance_weighted(), reductions.constant_length(TOKENS))
    built = PLAIN(parts=parts)
    rollout, batch = rollout_and_batch()
    whole = jnp.ones_like(rollout.mask)
    _, metrics = built.update(moved_state(built), rollout._replace(mask=whole), batch._replace(mask=whole))
    np.testing.assert_allclose(metrics["loss"], 0.0, atol=1e-6)
    assert metrics["gradient_norm"] > 0.01


def test_steps_under_the_kl_term_alone_lower_the_exact_kl(full_kl):
    rollout, batch = rollout_and_batch()
    state, equal = moved_state(full_kl), batch._replace(rewards=jnp.zeros_like(batch.rewards))
    kls = []
    for _ in range(5):
        state, metrics = full_kl.update(state, rollout, equal)
        kls.append(float(metrics["kl_mean"]))
    assert kls == sorted(kls, reverse=True)
    assert kls[-1] < 0.9 * kls[0]


def test_a_state_can_be_made_and_donated_inside_jit():
    built = build(reference=copied_every(1))
    params = policy_params()
    state = compiled(lambda params, key: built.init(params, key=key))(params, jax.random.key(0))
    update = compiled(built.update.__wrapped__, donate_argnums=0)
    for _ in range(3):
        state, metrics = update(state, *rollout_and_batch())
    assert np.isfinite(metrics["loss"])
    assert_not_aliased(state.params, state.ref_params)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build(micro_batches=0), "micro_batches must be at least 1, got 0"),
        (lambda: build(updates_per_rollout=0), "updates_per_rollout must be at least 1, got 0"),
        (
            lambda: build(parts=REWARD_ONLY, reference=ema()),
            r"ema\(rate=0.6, every=512\) follows the policy, but the objective has no KL term",
        ),
        (
            lambda: build(controller=controllers.constant(0.0), reference=ema()),
            r"ema\(.*\) follows the policy, but beta is 0 for ever",
        ),
        (
            lambda: build(parts=REWARD_ONLY, reference=copied_every(3)),
            r"copied_every\(3\) follows the policy, but the objective has no KL term",
        ),
        (
            lambda: build(parts=REWARD_ONLY, controller=controllers.constant(0.1)),
            "has no effect, since the objective has no KL term",
        ),
        (lambda: build(controller=controllers.constant(0.0)), "build the objective with kl=None"),
        (
            lambda: build(
                parts=objective(*OBJECTIVE.parts[:2], OBJECTIVE.parts.reduction, kl=kl.full_vocabulary("loss")),
                reference=behaviour(),
            ),
            r"needs a reference policy, not behaviour\(\)",
        ),
    ],
)
def test_parts_that_contradict_each_other_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_policy_without_parameters_and_a_state_without_reference_are_refused():
    with pytest.raises(ValueError, match="no trainable parameters"):
        build().init({}, key=jax.random.key(0))
    built = build()
    with pytest.raises(ValueError, match="the state has no ref_params"):
        built.update(moved_state(built)._replace(ref_params=None), *rollout_and_batch())


def test_a_reference_that_returns_the_policy_itself_is_refused():
    lazy = frozen()._replace(init=lambda params: params)
    with pytest.raises(ValueError, match="its KL would be 0 for ever"):
        build(reference=lazy).init(policy_params(), key=jax.random.key(0))


def test_a_batch_of_another_shape_than_the_rollout_is_refused(plain):
    built, _ = plain
    rollout, _ = rollout_and_batch(prompts=4)
    _, batch = rollout_and_batch(prompts=3)
    with pytest.raises(AssertionError, match="shape"):
        built.update(moved_state(built), rollout, batch)
