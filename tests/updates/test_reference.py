import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.updates import assert_not_aliased, behaviour, copied_every, ema, frozen, reference_scores
from tests.updates.builders import assert_near, assert_same, policy_params, rollout_and_batch, score

OLD, NEW = {"w": jnp.array([1.0, 2.0])}, {"w": jnp.array([3.0, -2.0])}


@pytest.mark.parametrize("reference", [frozen(), copied_every(3), ema()])
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_a_reference_starts_as_a_copy_with_memory_of_its_own(reference, transform):
    found = transform(reference.init)(OLD)
    assert_same(found, OLD)
    assert_not_aliased(OLD, found)


def test_a_frozen_reference_never_moves():
    for step in (1, 2, 1000):
        assert_same(frozen().update(OLD, NEW, jnp.int32(step)), OLD)


def test_a_copied_reference_becomes_the_policy_at_every_nth_step():
    update = jax.jit(copied_every(3).update)
    for step in range(1, 8):
        assert_same(update(OLD, NEW, jnp.int32(step)), NEW if step in (3, 6) else OLD)


def test_a_copy_is_no_alias_of_the_policy():
    assert_not_aliased(NEW, copied_every(1).update(OLD, NEW, jnp.int32(1)))
    assert_not_aliased(NEW, jax.jit(copied_every(1).update)(OLD, NEW, jnp.int32(1)))


def test_a_moving_average_takes_its_share_of_the_policy_at_every_nth_step():
    update = jax.jit(ema(rate=0.6, every=2).update)
    assert_same(update(OLD, NEW, jnp.int32(1)), OLD)
    assert_near(update(OLD, NEW, jnp.int32(2)), {"w": jnp.array([0.6 * 3 + 0.4 * 1, 0.6 * -2 + 0.4 * 2])}, rtol=1e-6)


def test_a_moving_average_keeps_the_dtype():
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), OLD)
    assert ema(every=1).update(half, half, jnp.int32(1))["w"].dtype == jnp.bfloat16


def test_the_behaviour_policy_stores_nothing():
    assert behaviour().init(OLD) is None
    assert behaviour().update(None, NEW, 1) is None
    assert not behaviour().needs_params


def test_only_a_reference_that_follows_the_policy_moves():
    assert [reference.moves for reference in (frozen(), behaviour(), copied_every(1), ema())] == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_reference_scores_are_those_of_its_parameters_without_a_gradient(micro_batches):
    rollout, batch = rollout_and_batch()
    scores = reference_scores(score, frozen(), micro_batches=micro_batches)
    params = policy_params(seed=3)
    assert_near(scores(params, rollout, batch), score(params, rollout).log_probs, atol=0, rtol=1e-6)
    slope = jax.grad(lambda params: jnp.sum(scores(params, rollout, batch)))(params)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(slope))


def test_the_behaviour_policys_scores_are_the_record_and_the_rollouts_where_it_is_unknown():
    rollout, batch = rollout_and_batch()
    scores = reference_scores(score, behaviour())
    assert_same(scores(None, rollout, batch), rollout.log_probs)
    record = jnp.full(batch.mask.shape, -0.5).at[1, 2].set(jnp.nan)
    found = scores(None, rollout, batch._replace(behaviour_log_probs=record))
    assert_same(found, record.at[1, 2].set(rollout.log_probs[1, 2]))


def test_a_reference_that_is_the_policy_itself_is_named():
    params = {"a": {"w": jnp.ones(3)}, "b": jnp.ones(2)}
    with pytest.raises(ValueError, match=r"the reference's \['c'\] is the policy's own \['a'\]\['w'\]"):
        assert_not_aliased(params, {"c": params["a"]["w"]})
    copy = jax.tree.map(jnp.copy, params)
    assert_not_aliased(params, copy)
    assert_not_aliased(params, None)
    with pytest.raises(ValueError, match=r"is the policy's own \['b'\]"):
        assert_not_aliased(params, {"a": copy["a"], "b": params["b"]})


def test_aliases_are_found_among_numpy_arrays_shards_and_tracers():
    array = np.ones(3)
    with pytest.raises(ValueError, match="KL would be 0 for ever"):
        assert_not_aliased([array], [array.view()])
    assert_not_aliased([array], [array.copy()])
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.device_put(jnp.arange(16.0), jax.NamedSharding(mesh, jax.P("data")))
    with pytest.raises(ValueError, match="KL would be 0 for ever"):
        assert_not_aliased(split, split)
    assert_not_aliased(split, jnp.copy(split))
    with pytest.raises(ValueError, match="KL would be 0 for ever"):
        jax.jit(lambda params: assert_not_aliased(params, params))(array)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: copied_every(0), "copied_every: steps must be at least 1 optimizer step, got 0"),
        (lambda: ema(every=-1), "ema: every must be at least 1 optimizer step, got -1"),
        (lambda: ema(rate=0.0), r"ema: rate must lie in \(0, 1\), got 0.0"),
        (lambda: ema(rate=1.0), r"copied_every\(steps\) is rate 1"),
        (lambda: ema(rate=float("nan")), "rate must lie"),
    ],
)
def test_settings_out_of_range_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
