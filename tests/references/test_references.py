"""The references themselves, against the numbers of other libraries' tests and finite differences."""

import math

import numpy as np
import pytest

from tests.references import kl, losses

ONES = [1, 1, 1]
A = [1.0, -1.0, 2.0]
OLD = [-1.0, -1.0, -1.0]
CURRENT = [-1.69315, -1.0, -0.59453]
SURROGATES = {
    "reinforce": (losses.reinforce, ()),
    "importance_weighted": (losses.importance_weighted, ()),
    "clipped": (losses.clipped, (0.2, 0.28)),
    "dual_clipped": (losses.dual_clipped, (0.2, 0.28, 3.0)),
    "cispo": (losses.cispo, (0.2, 0.28)),
    "cispo_above": (losses.cispo, (None, 0.28)),
    "gspo": (losses.gspo, (0.2, 0.28)),
    "gspo_token": (losses.gspo_token, (0.2, 0.28)),
    "sapo": (losses.sapo, (1.0, 1.05)),
}


def test_clipped_gives_the_numbers_of_nemo_rl():
    values, gradients = losses.clipped(CURRENT, OLD, A, ONES, 0.2, 0.2)
    np.testing.assert_allclose(values, [-0.5, 1, -2.4], atol=1e-5)
    np.testing.assert_allclose(np.mean(values), -0.6333, atol=5e-5)
    np.testing.assert_allclose(gradients, [-0.5, 1, 0], atol=1e-5)


def test_reinforce_and_the_on_policy_ratio_give_the_numbers_of_nemo_rl():
    values, gradients = losses.reinforce([-0.5, -1.0, -1.5], OLD, A, ONES)
    np.testing.assert_allclose(np.mean(values), 0.8333, atol=5e-5)
    np.testing.assert_allclose(gradients, [-1, 1, -2])
    values, gradients = losses.importance_weighted(CURRENT, CURRENT, A, ONES)
    np.testing.assert_allclose(np.mean(values), -0.6667, atol=5e-5)
    np.testing.assert_allclose(gradients, [-1, 1, -2])


def test_clipped_with_sampler_weights_gives_the_numbers_of_nemo_rl():
    weights = losses.ratios(OLD, [-0.5, -1.5, -0.8], ONES)
    np.testing.assert_allclose(weights, [0.6065, 1.6487, 0.8187], atol=5e-5)
    values, _ = losses.clipped(CURRENT, OLD, A, ONES, 0.2, 0.2)
    np.testing.assert_allclose(np.mean(np.array(weights) * values), -0.2065, atol=5e-5)


def test_dual_clip_gives_the_numbers_of_nemo_rl_and_skyrl():
    inputs = ([-1.69315, -1.0, -0.69741], [-1.0, -1.0, -3.0], [1.0, -1.0, -4.0], ONES)
    values, gradients = losses.dual_clipped(*inputs, 0.2, 0.2, 3.0)
    np.testing.assert_allclose(values, [-0.5, 1, 12], atol=1e-5)
    np.testing.assert_allclose(gradients, [-0.5, 1, 0], atol=1e-5)


def test_cispo_on_both_sides_gives_the_numbers_of_skyrl():
    values, _ = losses.cispo([-1.69315, -1.0, -0.69741], [-1.0, -1.0, -3.0], [1.0, -1.0, -4.0], ONES, 0.2, 0.2)
    np.testing.assert_allclose(np.sum(values), -2.9930, atol=1e-4)


def test_gspo_gives_the_numbers_of_nemo_rl():
    np.testing.assert_allclose(losses.geometric_mean_ratio(CURRENT, OLD, ONES), 0.9086, atol=5e-5)
    for form in (losses.gspo, losses.gspo_token):
        values, _ = form(CURRENT, OLD, A, ONES, 0.2, 0.2)
        np.testing.assert_allclose(np.mean(values), -0.6057, atol=5e-5)


def test_dual_clip_and_cispo_of_given_ratios_give_the_numbers_of_slime():
    log_ratios = np.log([2.0, 2.0, 0.5])
    values, _ = losses.dual_clipped(log_ratios, [0.0] * 3, [2.0, -2.0, 2.0], ONES, 0.2, 0.2, 1.5)
    np.testing.assert_allclose(values, [-2.4, 3, -1], atol=1e-12)
    advantages = [1.0, -0.5, 2.0, -1.0]
    log_ratios = np.log([1.0, 1.14, 1.56, 0.4])
    _, gradients = losses.cispo(log_ratios, [0.0] * 4, advantages, [1] * 4, 0.2, 0.28)
    np.testing.assert_allclose(gradients, -np.array([1, 1.14, 1.28, 0.8]) * advantages, atol=1e-12)
    _, gradients = losses.cispo(log_ratios, [0.0] * 4, advantages, [1] * 4, None, 0.28)
    np.testing.assert_allclose(gradients, -np.array([1, 1.14, 1.28, 0.4]) * advantages, atol=1e-12)


@pytest.mark.parametrize(
    ("log_ratio", "tau", "gate"),
    [(0, 1.0, 2), (0, 1.05, 1.905), (0, 2.0, 1), (0.5, 1.0, 2.626889), (0.5, 2.0, 1.570808)],
)
def test_the_gate_of_sapo_gives_the_numbers_of_areal(log_ratio, tau, gate):
    values, gradients = losses.sapo([log_ratio], [0.0], [1.0], [1], tau, 99.0)
    np.testing.assert_allclose(values, [-gate], atol=5e-4)
    if log_ratio == 0:
        np.testing.assert_allclose(gradients, [-1], atol=1e-12)
    values, _ = losses.sapo([log_ratio], [0.0], [-1.0], [1], 99.0, tau)
    np.testing.assert_allclose(values, [gate], atol=5e-4)


def test_reductions_give_the_numbers_of_skyrl():
    values, mask = [[[1, 2, 3], [4, 5, 6]]], [[[1, 1, 0], [1, 1, 1]]]
    assert losses.divided(losses.token_mean(values, mask)) == pytest.approx(3.6)
    assert losses.divided(losses.token_mean(values, [[[0] * 3] * 2])) == 0
    ragged = [[[1, 1], [1, 0]]]
    assert losses.divided(losses.sequence_mean_of_token_mean([[[1, 2], [3, 4]]], ragged)) == pytest.approx(2.25)
    assert losses.divided(losses.sequence_mean_of_token_sum([[[2, 3], [9, 12]]], ragged)) == pytest.approx(7)
    assert losses.divided(losses.constant_length([[[2, 3], [9, 12]]], ragged, 10)) == pytest.approx(0.7)


def test_merging_and_empty_rows_give_the_numbers_of_openrlhf():
    pieces = [losses.token_mean([[[1, 2]]], [[[1, 1]]]), losses.token_mean([[[3, 4, 5, 6, 7]]], [[[1] * 5]])]
    assert losses.divided([sum(column) for column in zip(*pieces, strict=True)]) == pytest.approx(4.0)
    rows, mask = [[[5, 7], [1, 3]]], [[[0, 0], [1, 1]]]
    assert losses.divided(losses.sequence_mean_of_token_mean(rows, mask)) == pytest.approx(2.0)


def test_masked_means_give_the_numbers_of_open_instruct():
    values, mask = [[[1, 2, 3], [4, 5, 6]]], [[[1, 1, 0], [1, 0, 0]]]
    assert losses.divided(losses.sequence_mean_of_token_mean(values, mask)) == pytest.approx(2.75)
    assert losses.divided(losses.token_mean(values, mask)) == pytest.approx(2.3333, abs=5e-5)
    for reduction in (losses.token_mean, losses.sequence_mean_of_token_mean, losses.sequence_mean_of_token_sum):
        assert losses.divided(reduction(values, [[[0] * 3] * 2])) == 0


@pytest.mark.parametrize("name", SURROGATES)
def test_gradients_agree_with_finite_differences(name):
    """Where part of the loss is detached, that part is held fixed by hand."""
    function, hyperparameters = SURROGATES[name]
    rng = np.random.default_rng(3)
    lp, old = -rng.exponential(size=6), -rng.exponential(size=6)
    advantages, mask = rng.normal(size=6), [1, 1, 0, 1, 1, 0]
    advantages = np.full(6, advantages[0]) if name == "gspo" else advantages
    _, gradients = function(lp, old, advantages, mask, *hyperparameters)

    def total(at):
        if name == "gspo_token":
            ratio = losses.geometric_mean_ratio(lp, old, mask)
            moved = math.log(ratio) + at - lp
            return sum(losses.clipped(moved, [0.0] * 6, advantages, mask, *hyperparameters)[0])
        if name.startswith("cispo"):
            weights = np.clip(np.exp(lp - old), 0.0 if name == "cispo_above" else 0.8, 1.28)
            return -float(np.sum(weights * advantages * at * mask))
        return sum(function(at, old, advantages, mask, *hyperparameters)[0])

    for t in range(6):
        step = 1e-6 * np.eye(6)[t]
        assert gradients[t] == pytest.approx((total(lp + step) - total(lp - step)) / 2e-6, abs=1e-7)
    assert gradients[2] == gradients[5] == 0


@pytest.mark.parametrize("name", SURROGATES)
def test_masked_tokens_contribute_nothing_whatever_they_hold(name):
    function, hyperparameters = SURROGATES[name]
    inputs = [[-1.0, -0.5, -2.0], [-1.2, -0.4, -2.0], [0.5, -1.0, 0.7]]
    spoilt = [[row[0], float("nan"), row[2]] for row in inputs]
    mask = [1, 0, 1]
    assert function(*inputs, mask, *hyperparameters) == function(*spoilt, mask, *hyperparameters)
    values, gradients = function(*inputs, [0, 0, 0], *hyperparameters)
    assert values == gradients == [0, 0, 0]


def test_the_sign_of_the_advantage_decides_what_counts_as_clipped():
    """As in huggingface/trl#3144."""
    log_ratios = np.log([1.5, 1.5, 0.5, 0.5, 1.0, 1.5])
    flags = losses.is_clipped(log_ratios, [0.0] * 6, [1, -1, 1, -1, 1, 1], [1, 1, 1, 1, 1, 0], 0.2, 0.2)
    assert flags == [True, False, False, True, False, False]


@pytest.mark.parametrize(
    ("rewards", "mask", "tolerance", "expected"),
    [
        ([0.7] * 16, [1] * 16, 0.0, True),
        ([1, 0, 0, 0], [1] * 4, 0.0, False),
        ([1, 0, 0, 0], [0, 1, 1, 1], 0.0, True),
        ([1, 0, 0, 0], [1, 0, 0, 0], 0.0, True),
        ([1, math.nan, math.nan, math.nan], [1] * 4, 0.0, True),
        ([1, math.nan, 0, math.nan], [1] * 4, 0.0, False),
        ([1, 1.005], [1, 1], 0.01, True),
        ([[1, 0], [1, 1]], [1, 1], 0.0, False),
        ([[1, 0], [1, 0]], [1, 1], 0.0, True),
        ([[math.nan, 0], [1, math.nan]], [1, 1], 0.0, True),
    ],
)
def test_degenerate_groups_are_those_whose_counted_rewards_are_equal(rewards, mask, tolerance, expected):
    assert losses.is_degenerate(rewards, mask, tolerance) == expected


def test_estimators_give_the_numbers_of_nemo_rl():
    us = [-1, 14, 29]
    np.testing.assert_allclose([kl.k2(u) for u in us], [0.5, 98, 420.5])
    np.testing.assert_allclose([kl.k3(u) for u in us], [0.7183, 13, 28], atol=5e-5)
    assert [kl.absolute(u) for u in us] == [1, 14, 29]


def test_a_masked_reference_contributes_nothing():
    terms = kl.per_token(kl.k3, [0, -1, -2], [-1, -1, -1], ONES)
    np.testing.assert_allclose(terms, [0.368, 0, 0.718], atol=5e-4)
    values = kl.per_token(kl.k1, [0.2, 0.3, 0.5, 0.7], [0.1, 0.2, 0.4, float("nan")], [1, 1, 1, 0])
    np.testing.assert_allclose(values, [0.1, 0.1, 0.1, 0], atol=1e-12)


def test_token_and_sequence_estimates_differ_except_for_k1():
    lp, ref = [0.1, 0.3], [0.0, 0.0]
    assert kl.per_sequence(kl.k1, lp, ref, [1, 1]) == pytest.approx(0.4)
    assert kl.per_sequence(kl.k2, lp, ref, [1, 1]) == pytest.approx(0.08)
    assert sum(kl.per_token(kl.k2, lp, ref, [1, 1])) == pytest.approx(0.05)
    assert kl.to_go([0.1, 0.3, 9.0], [1, 1, 0]) == pytest.approx([0.4, 0.3, 0])


def test_weights_of_prefixes_and_of_what_includes_the_token():
    log_ratios = [math.log(2), math.log(3), 0.0]
    assert kl.causal_weights(log_ratios) == pytest.approx([2, 6, 6])
    assert kl.prefix_weights(log_ratios) == pytest.approx([1, 2, 6])


@pytest.mark.parametrize("name", kl.ESTIMATORS)
@pytest.mark.parametrize("u", [-3.0, -0.1, 0.2, 4.0])
def test_slopes_agree_with_finite_differences(name, u):
    value, slope = kl.ESTIMATORS[name]
    assert slope(u) == pytest.approx((value(u + 1e-6) - value(u - 1e-6)) / 2e-6, rel=1e-7)


THETA, REFERENCE = [0.2, -0.3, 0.5], [0.5, 0.3, 0.2]
REVERSE, FORWARD = [-0.188597, -0.112169, 0.300767], [-0.16175, -0.094841, 0.25659]


@pytest.mark.parametrize(
    ("pull", "expected"),
    [
        (kl.k1_slope, [0, 0, 0]),
        (kl.k2_slope, REVERSE),
        (kl.k3_slope, FORWARD),
        (lambda u: kl.k1(u) + kl.k1_slope(u), REVERSE),
        (lambda u: kl.k3(u) + kl.k3_slope(u), REVERSE),
        (lambda u: kl.k2(u) + kl.k2_slope(u), [-0.229131, -0.13761, 0.366742]),
    ],
)
def test_expected_gradients_of_three_actions(pull, expected):
    """On-policy: path-wise in the loss, then with the differentiable ratio."""
    policy = kl.softmax(THETA)
    assert kl.exact(policy, REFERENCE) == pytest.approx(0.166746, abs=5e-7)
    us = [math.log(a / b) for a, b in zip(policy, REFERENCE, strict=True)]
    np.testing.assert_allclose(kl.expected_gradient(THETA, policy, [pull(u) for u in us]), expected, atol=6e-7)


def test_expected_gradients_of_three_actions_off_policy():
    policy, sampler = kl.softmax(THETA), kl.softmax([0.6, -0.1, 0.0])
    us = [math.log(a / b) for a, b in zip(policy, REFERENCE, strict=True)]
    rho = [a / b for a, b in zip(policy, sampler, strict=True)]
    assert sum(m * u for m, u in zip(sampler, us, strict=True)) == pytest.approx(-0.061844, abs=5e-7)
    np.testing.assert_allclose(kl.expected_gradient(THETA, sampler, [1.0] * 3), [0.1507, 0.0376, -0.1883], atol=5e-5)
    for slope, expected in [
        (kl.k2_slope, [-0.170155, -0.079568, 0.249723]),
        (kl.k3_slope, [-0.167751, -0.072178, 0.239929]),
    ]:
        np.testing.assert_allclose(kl.expected_gradient(THETA, sampler, [slope(u) for u in us]), expected, atol=6e-7)
    for value, slope in (kl.ESTIMATORS["k1"], kl.ESTIMATORS["k3"]):
        pulls = [r * (value(u) + slope(u)) for r, u in zip(rho, us, strict=True)]
        np.testing.assert_allclose(kl.expected_gradient(THETA, sampler, pulls), REVERSE, atol=6e-7)
