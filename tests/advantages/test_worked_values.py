"""Numbers worked by hand, asserted by other libraries' tests, or reported as faults against them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.advantages import (
    batch_whitened,
    centred,
    leave_one_out,
    leave_one_out_standardised,
    max_rl,
    separately_standardised,
    spread,
    standardised,
    weighted_sum,
)
from grpo_jax.advantages.group import deviations, standard_deviation

NAN = float("nan")


def advantages_of(advantage, rewards, mask=None):
    rewards = np.array(rewards, np.float32)
    mask = np.ones(len(rewards), bool) if mask is None else np.array(mask, bool)
    return np.asarray(jax.jit(advantage.compute)(rewards, mask))


def over_batch(advantage, rewards):
    def whole(rewards, mask):
        within = jax.vmap(advantage.compute)(rewards, mask)
        return within if advantage.across_batch is None else advantage.across_batch(within, mask)

    rewards = np.array(rewards, np.float32)
    return np.asarray(jax.jit(whole)(rewards, np.ones(rewards.shape[:2], bool)))


def assert_close(actual, expected, tolerance=1e-4):
    np.testing.assert_allclose(actual, np.asarray(expected, np.float32), rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [(standardised(1, 1e-4), [1.4997, -0.4999, -0.4999, -0.4999]), (standardised(0, 1e-9), [1.73205] + [-0.57735] * 3)],
)
def test_one_right_of_four_has_the_advantage_of_each_libraries_convention(advantage, expected):
    assert_close(advantages_of(advantage, [1, 0, 0, 0]), expected, 1e-5)


@pytest.mark.parametrize(
    ("advantage", "right", "wrong"),
    [(standardised(1, 1e-9), 1.2076, -0.7246), (centred(), 0.625, -0.375), (leave_one_out(), 0.7143, -0.4286)],
)
def test_three_right_of_eight_has_the_rederived_advantages(advantage, right, wrong):
    assert_close(advantages_of(advantage, [1, 0, 1, 0, 0, 1, 0, 0]), np.where([1, 0, 1, 0, 0, 1, 0, 0], right, wrong))


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [([1, 2, 3, 4], [-2, -2 / 3, 2 / 3, 2]), ([10, 20, 30], [-15, 0, 15]), ([1, 0, 0, 0], [1] + [-1 / 3] * 3)],
)
def test_leave_one_out_subtracts_the_mean_of_the_others(rewards, expected):
    assert_close(advantages_of(leave_one_out(), rewards), expected, 1e-5)


@pytest.mark.parametrize(("mask", "baseline"), [([1, 1, 0], [2, 1]), ([1, 1, 1], [5.5, 5, 4.5]), ([0, 1, 1], [6, 5])])
def test_leave_one_out_baselines_count_only_members_of_the_group_that_exist(mask, baseline):
    rewards = np.array([1, 2, 99]) if len(baseline) == 2 and mask[0] else np.array([4, 5, 6])
    expected = np.zeros(3)
    expected[np.array(mask, bool)] = rewards[np.array(mask, bool)] - np.array(baseline)
    assert_close(advantages_of(leave_one_out(), rewards, mask), expected, 1e-5)


@pytest.mark.parametrize("rewards", [[1, 2, 3], [4, 5, 6]])
def test_leave_one_out_standardised_divides_by_the_std_of_the_others(rewards):
    expected = [-1.5 / np.sqrt(0.5), 0, 1.5 / np.sqrt(0.5)]
    assert_close(advantages_of(leave_one_out_standardised(), rewards), expected, 1e-5)


@pytest.mark.parametrize("rewards", [[1, 0, 0, 0], [0, 1, 1, 1], [0, 0.1, 0.1, 0.1], [0.1, 0.7, 0.7, 0.7]])
def test_the_odd_one_out_is_not_divided_by_the_zero_std_of_the_others(rewards):
    odd = np.float32(rewards[0]) - np.float32(rewards[1])
    rest = -odd / 3 / (abs(odd) / np.sqrt(3))
    assert_close(advantages_of(leave_one_out_standardised(1e-9), rewards), [odd, rest, rest, rest], 1e-5)


def test_one_odd_reward_of_four_gets_one_and_not_a_million():
    assert_close(advantages_of(leave_one_out_standardised(1e-6), [1, 0, 0, 0]), [1] + [-0.57735] * 3, 1e-5)


def test_a_group_with_one_odd_member_is_informative_although_the_others_agree():
    for rewards in ([1.0, 0, 0, 0], [1.0, 1, 1, 0]):
        assert float(spread(jnp.array(rewards), jnp.ones(4, bool))) == 1
        assert np.all(advantages_of(leave_one_out(), rewards) != 0)


def test_masked_members_do_not_vote_in_the_unbiased_standardisation():
    actual = advantages_of(standardised(1, 0.0), [1, 1000, 2, 3, 6, NAN], [1, 0, 1, 1, 1, 1])
    assert_close(actual, [-0.9258, 0, -0.4629, 0, 1.3887, 0])


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [
        (centred(), [2 / 3, 0, -1 / 3, -1 / 3]),
        (standardised(1, 0.0), [1.1547, 0, -0.57735, -0.57735]),
        (leave_one_out(), [1, 0, -0.5, -0.5]),
    ],
)
def test_fully_masked_rows_do_not_vote(advantage, expected):
    assert_close(advantages_of(advantage, [1, 1, 0, 0], [1, 0, 1, 1]), expected)


def test_a_rejected_row_is_out_of_baseline_and_std():
    assert_close(advantages_of(standardised(1, 0.0), [1, 5, 0], [1, 0, 1]), [0.70711, 0, -0.70711])


def test_a_sibling_without_tokens_does_not_shift_the_baseline():
    assert np.all(advantages_of(centred(), [100, 1], [0, 1]) == 0)


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [(standardised(1, 1e-4), [0.57725, 0, -1.1545, 0.57725]), (leave_one_out(), [0.5, 0, -1, 0.5])],
)
def test_an_unscored_member_gets_zero_and_does_not_vote(advantage, expected):
    assert_close(advantages_of(advantage, [1, NAN, 0, 1]), expected)


@pytest.mark.parametrize(("ddof", "expected"), [(0, [-1, 0, 1]), (1, [-0.70711, 0, 0.70711])])
@pytest.mark.parametrize("bad", [NAN, float("inf"), -float("inf")])
def test_a_reward_that_is_not_finite_does_not_poison_its_group(ddof, expected, bad):
    assert_close(advantages_of(standardised(ddof, 0.0), [1, bad, 3]), expected)


def test_an_unscored_member_is_not_the_best_of_negative_siblings():
    assert_close(advantages_of(centred(), [-0.8, -0.5, NAN]), [-0.15, 0.15, 0], 1e-6)


@pytest.mark.parametrize("rewards", [[1, 1.00001], [2, 2.00001]])
def test_small_differences_are_standardised_with_epsilon_outside_the_root(rewards):
    assert_close(advantages_of(standardised(1, 1e-6), rewards), [-0.6196, 0.6196])


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [([2, 2], [0, 0]), ([1, 3], [-0.7071, 0.7071]), ([5, 5, 5, 5], [0] * 4), ([1, 1.01], [-0.7071, 0.7071])],
)
def test_groups_of_a_common_size_have_the_published_standardised_advantages(rewards, expected):
    assert_close(advantages_of(standardised(1, 1e-6), rewards), expected)


@pytest.mark.parametrize(
    ("rewards", "loo", "mean_only", "maximum_likelihood"),
    [([6, 3], [3, -3], [1.5, -1.5], [1 / 3, -1 / 3]), ([9, 12], [-3, 3], [-1.5, 1.5], [-1 / 7, 1 / 7])],
)
def test_two_members_have_the_published_advantages(rewards, loo, mean_only, maximum_likelihood):
    assert_close(advantages_of(leave_one_out(), rewards), loo, 1e-6)
    assert_close(advantages_of(centred(), rewards), mean_only, 1e-6)
    assert_close(advantages_of(max_rl(), rewards), maximum_likelihood, 1e-6)


@pytest.mark.parametrize(
    ("rewards", "expected"), [([1, 0, 0, 0], [3, -1, -1, -1]), ([0, 0], [0, 0]), ([1, 1], [0, 0]), ([1, -1], [0, 0])]
)
def test_max_rl_divides_by_the_mean_and_is_zero_where_that_is_zero(rewards, expected):
    assert_close(advantages_of(max_rl(), rewards), expected, 1e-6)


def test_max_rl_never_prefers_the_worse_answer():
    assert np.all(advantages_of(max_rl(), [-1, -3]) == 0)


def test_every_member_enters_the_mean():
    assert_close(advantages_of(centred(), [1, 0, 0, 0]), [0.75, -0.25, -0.25, -0.25], 1e-7)


def test_length_corrected_rewards_are_centred_with_their_own_mean():
    shaped = np.array([1.0, 0.8893, 0.8041, 0.1496])
    assert_close(advantages_of(centred(), shaped), shaped - shaped.mean(), 1e-6)


def test_the_std_of_scored_members_alone_is_one():
    rewards, mask = jnp.array([1.0, 2, 3, NAN]), jnp.array([True, True, True, False])
    assert float(standard_deviation(deviations(rewards, mask), mask, 1)) == pytest.approx(1.0)


def test_whitening_ignores_padding_in_mean_and_variance():
    mask = jnp.array([[True, False], [True, True]])
    differences = jnp.array([[1.0, 1e6], [3, 4]]) - 8 / 3
    actual = batch_whitened(0, 0.0).across_batch(differences, mask)
    assert_close(actual, [[-1.3363, 0], [0.2673, 1.0690]])


def test_whitening_divides_all_groups_by_one_deviation():
    actual = over_batch(batch_whitened(1, 0.0), [[1, 3], [0, 8]])
    assert_close(actual, np.array([[-1, 1], [-4, 4]]) / np.sqrt(34 / 3), 1e-6)


def test_weights_scale_the_rewards_before_they_are_summed():
    shaped = weighted_sum((0.7, 0.3), centred())
    assert_close(advantages_of(shaped, [[1, 0], [0, 0]]), [0.35, -0.35], 1e-6)
    assert float(shaped.spread(jnp.array([[1.0, 0], [0, 0]]), jnp.ones(2, bool))) == pytest.approx(0.7)


@pytest.mark.parametrize("factor", [1, 10])
def test_rewards_standardised_one_by_one_have_the_published_advantages_whatever_the_common_weight(factor):
    advantage = separately_standardised([factor] * 3, 1, 1e-6)
    assert_close(over_batch(advantage, [[[1, 1, 1], [1, -1, 0]]]), [[0.7071, -0.7071]])


def test_rewards_standardised_one_by_one_keep_apart_what_a_sum_confuses():
    rewards = [[[0, 0], [0, 1], [1, 0], [1, 1]], [[0, 0], [0, 0], [1, 0], [1, 0]]]
    separate = over_batch(separately_standardised((1, 1), 1, 0.0), rewards)
    each, one = np.array([-1, 0, 0, 1]) * np.sqrt(3), np.array([-1, -1, 1, 1]) * np.sqrt(3) / 2
    assert_close(separate, np.stack([each, one]) / np.sqrt((2 * 3 + 4 * 0.75) / 7), 1e-5)


def test_a_reward_that_only_one_member_has_contributes_nothing():
    advantage = separately_standardised((1, 1), 1, 0.0)
    assert_close(advantages_of(advantage, [[1, NAN], [0, 7]]), [0.7071, -0.7071])
    assert np.all(advantages_of(advantage, [[NAN, NAN], [0, 7]]) == 0)
