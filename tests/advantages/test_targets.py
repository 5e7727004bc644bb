"""The gradient each advantage declares, against the exact mean over all groups of a small policy."""

import itertools

import jax
import numpy as np
import pytest

import grpo_jax.advantages as gja


def expected_gradient(advantage, rewards, logits, size):
    """The mean over groups of ``mean_i A_i grad log pi(y_i)``, all groups of that size enumerated."""
    probabilities = np.exp(logits) / np.exp(logits).sum()
    actions = np.array(list(itertools.product(range(len(logits)), repeat=size)))
    values = np.asarray(jax.jit(jax.vmap(advantage.compute))(rewards[actions], np.ones(actions.shape, bool)))
    scores = np.eye(len(logits))[actions] - probabilities
    return np.einsum("n,ng,nga->a", probabilities[actions].prod(axis=1), values, scores) / size, probabilities


@pytest.mark.parametrize("size", [2, 3, 4])
def test_linear_advantages_follow_the_expected_reward_by_their_declared_factor(size):
    rewards, logits = np.float32([1, 0.2, -0.5]), np.array([0.2, -0.3, 0.5])
    for advantage, factor in ((gja.leave_one_out(), 1), (gja.centred(), (size - 1) / size)):
        actual, probabilities = expected_gradient(advantage, rewards, logits, size)
        expected = factor * probabilities * (rewards - probabilities @ rewards)
        np.testing.assert_allclose(actual, expected, atol=1e-7)
        assert advantage.reward_target == ("E[R]" if factor == 1 else "(G-1)/G * E[R]")


@pytest.mark.parametrize("size", [2, 3, 4])
def test_max_rl_follows_the_log_likelihood_of_success_cut_off_after_all_members_but_one(size):
    rewards, logits = np.float32([1, 0, 0]), np.array([0.2, -0.3, 0.5])
    actual, probabilities = expected_gradient(gja.max_rl(), rewards, logits, size)
    success = probabilities[0]
    slope = sum((1 - success) ** (k - 1) for k in range(1, size))
    np.testing.assert_allclose(actual, slope * probabilities * (rewards - success), atol=1e-6)


@pytest.mark.parametrize("size", [3, 4])
def test_leave_one_out_standardised_follows_the_expected_reward_of_a_prompt_by_a_factor_of_that_prompt(size):
    advantage, factors = gja.leave_one_out_standardised(), []
    for logits in (np.array([0.2, -0.3, 0.5]), np.array([2.0, -1.0, -1.0])):
        rewards = np.float32([1, 0.2, -0.5])
        actual, probabilities = expected_gradient(advantage, rewards, logits, size)
        exact = probabilities * (rewards - probabilities @ rewards)
        factors.append(actual @ exact / (exact @ exact))
        np.testing.assert_allclose(actual, factors[-1] * exact, atol=1e-6)
    assert min(factors) > 0
    assert abs(factors[0] / factors[1] - 1) > 0.1
    assert advantage.reward_target.startswith("E[R] of each prompt, times a positive factor")


def test_standardised_advantages_follow_another_utility_than_the_expected_reward():
    rewards, logits = np.float32([1, 0.2, -0.5]), np.array([0.2, -0.3, 0.5])
    actual, probabilities = expected_gradient(gja.standardised(), rewards, logits, 3)
    expected = probabilities * (rewards - probabilities @ rewards)
    cosine = actual @ expected / np.linalg.norm(actual) / np.linalg.norm(expected)
    assert cosine < 0.999
