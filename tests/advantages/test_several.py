"""Several rewards of each member: missing ones, agreement up to rounding, and which groups are degenerate."""

import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.advantages import centred, separately_standardised, standardised, weighted_sum

NAN = float("nan")
TWO = jnp.ones(2, bool)


def test_a_missing_reward_drops_out_of_its_members_sum():
    rewards = jnp.array([[1.0, 2], [3, NAN], [NAN, 5], [NAN, NAN]])
    actual = weighted_sum((1, 10), centred()).compute(rewards, jnp.ones(4, bool))
    np.testing.assert_allclose(actual, _centred([21, 3, 50]), rtol=1e-6)


def _centred(sums):
    return np.append(np.array(sums) - np.mean(sums), 0).astype(np.float32)


@pytest.mark.parametrize("rewards", [[[0.2, 0.9], [0.5, 0.2]], [[0.4, 0.9], [0.7, 0.2]], [[0.6, 0.8], [0.9, 0.1]]])
def test_sums_that_agree_up_to_rounding_make_a_degenerate_group(rewards):
    rewards = jnp.array(rewards)
    plain = jnp.sum(rewards * jnp.array([[0.7, 0.3]]), axis=1)
    assert plain[0] != plain[1], "this example no longer rounds"
    advantage = weighted_sum((0.7, 0.3), standardised(1, 1e-9))
    assert float(advantage.spread(rewards, TWO)) == 0
    assert np.all(np.asarray(advantage.compute(rewards, TWO)) == 0)


def test_sums_that_differ_by_more_than_rounding_are_informative():
    rewards = jnp.array([[0.2, 0.9], [0.2, 0.9001]])
    advantage = weighted_sum((0.7, 0.3), standardised(1, 1e-9))
    np.testing.assert_allclose(advantage.compute(rewards, TWO), [-0.70711, 0.70711], rtol=1e-3)


def test_a_group_whose_rewards_cancel_is_degenerate_for_their_sum_and_not_one_by_one():
    rewards = jnp.array([[1.0, 0], [0, 1]])
    assert float(weighted_sum((1, 1), centred()).spread(rewards, TWO)) == 0
    assert float(separately_standardised((1, 1)).spread(rewards, TWO)) == 1


def test_the_spread_of_rewards_taken_one_by_one_is_the_largest():
    rewards = jnp.array([[1.0, 0, NAN], [1, 4, 9]])
    assert float(separately_standardised((1, 1, 1)).spread(rewards, TWO)) == 4


def test_the_sum_inherits_what_is_done_with_it():
    inner = standardised()
    outer = weighted_sum((1, 2), inner)
    assert (outer.linear, outer.reward_target, outer.across_batch) == (False, inner.reward_target, None)
    assert inner.name in outer.name
    assert weighted_sum((1, 2), centred()).linear


def test_one_reward_of_each_member_is_taken_as_already_summed():
    rewards = jnp.array([1.0, 3.0])
    advantage = weighted_sum((5, 7), centred())
    np.testing.assert_array_equal(advantage.compute(rewards, TWO), [-1, 1])
    assert float(advantage.spread(rewards, TWO)) == 2


@pytest.mark.parametrize("build", [lambda w: weighted_sum(w, centred()), separately_standardised])
@pytest.mark.parametrize("weights", [(), (0.0, 0.0), (1.0, NAN), (float("inf"),)])
def test_weights_that_leave_no_reward_are_refused(build, weights):
    with pytest.raises(ValueError, match="weights=.*(finite|leave no reward)"):
        build(weights)


@pytest.mark.parametrize("advantage", [weighted_sum((1, 2, 3), centred()), separately_standardised((1, 2, 3))])
def test_a_weight_too_many_is_an_error_that_says_how_many(advantage):
    with pytest.raises(ValueError, match="2 rewards of each member but 3 weights; give one weight per reward"):
        advantage.compute(jnp.ones((4, 2)), jnp.ones(4, bool))
