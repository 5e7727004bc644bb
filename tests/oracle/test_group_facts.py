"""What groups do to the gradient, as numbers: baselines, normalisation, masking, resampling, by listing all groups."""

import numpy as np
import pytest

from grpo_jax import kl
from grpo_jax.advantages import centred, leave_one_out, max_rl, standardised
from grpo_jax.losses import degenerate, objective, reductions, surrogates
from grpo_jax.models import position_tabular
from grpo_jax.oracle import enumerated, expectation, multisets, tables
from grpo_jax.oracle.exact import gradients_of_groups
from grpo_jax.oracle.instance import Instance

POLICY = {"logits": np.array([[[0.96, -0.26, -1.08, -1.17, -0.46]]])}
REFERENCE = {"logits": np.array([[[1.10, -0.12, -0.71, -0.83, -0.48]]])}
REWARDS = np.array([1.0, 0, 0, 1, 0])
FIVE = tables(Instance(enumerated(position_tabular(5, 1), 1, ()), POLICY, REFERENCE, POLICY, REWARDS))
GROUPS = multisets(5, 4)
LIVE = np.ptp(REWARDS[GROUPS.members], axis=1) > 0
WEIGHTS = np.prod(FIVE.probabilities[GROUPS.members], axis=1) * GROUPS.multiplicity
DEGENERATE = float(np.sum(WEIGHTS[~LIVE]))
SUCCESS = float(np.sum(FIVE.probabilities * REWARDS))


def build(advantage=None, rule=None, term=None):
    return objective(
        advantage or leave_one_out(),
        surrogates.reinforce(),
        reductions.sequence_mean_of_token_sum(),
        kl=term or kl.penalty(kl.k1),
        degenerate=rule or degenerate.keep(),
    )


def error(gradient, target):
    return np.linalg.norm(gradient - FIVE.targets[target]) / np.linalg.norm(FIVE.targets[target])


def test_the_instance_is_the_one_whose_numbers_are_known():
    np.testing.assert_allclose(SUCCESS, 0.62652, atol=5e-6)
    np.testing.assert_allclose(DEGENERATE, 0.17353, atol=5e-6)
    difference = np.sum(FIVE.scores.log_probs, axis=1) - np.sum(FIVE.ref_log_probs, axis=1)
    np.testing.assert_allclose(np.sum(FIVE.probabilities * difference), 0.0050594, atol=5e-8)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_leave_one_out_is_unbiased_and_the_self_included_mean_shrinks_by_one_member(size):
    groups = multisets(5, size)
    assert error(expectation(build(leave_one_out()), FIVE, groups).reward, "reward") < 1e-13
    shrunk = expectation(build(centred()), FIVE, groups).reward
    np.testing.assert_allclose(shrunk, (size - 1) / size * FIVE.targets["reward"], atol=1e-14)


def test_the_baselines_differ_in_variance_by_the_square_of_the_same_factor():
    ours, theirs = (expectation(build(each), FIVE, GROUPS).reward_variance for each in (leave_one_out(), centred()))
    np.testing.assert_allclose(theirs, (3 / 4) ** 2 * ours, rtol=1e-12)


def factor(advantage, size):
    """By how much the gradient of a 0/1 reward is that of the probability of success."""
    gradient = expectation(build(advantage), FIVE, multisets(5, size)).reward
    target = FIVE.targets["reward"]
    along = gradient @ target / (target @ target)
    np.testing.assert_allclose(gradient, along * target, atol=1e-13)
    return along


def test_division_by_the_std_follows_the_arcsine_as_groups_grow():
    # 2 arcsin sqrt(p) has the slope 1 / sqrt(p (1 - p)).
    limit = 1 / np.sqrt(SUCCESS * (1 - SUCCESS))
    factors = [factor(standardised(ddof=0, epsilon=0), size) for size in (2, 4, 8, 16)]
    errors = [abs(each / limit - 1) for each in factors]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.05


@pytest.mark.parametrize("size", [2, 3, 6])
def test_maximum_likelihood_follows_the_logarithm_cut_off_at_the_group_size(size):
    # The slope of -sum_{k<G} (1-p)^k / k.
    expected = sum((1 - SUCCESS) ** (k - 1) for k in range(1, size))
    np.testing.assert_allclose(factor(max_rl(), size), expected, rtol=1e-12)


def test_masking_biases_the_kl_gradient_by_thirteen_per_cent_and_leaves_the_reward():
    kept, masked = (expectation(build(rule=rule), FIVE, GROUPS) for rule in (degenerate.keep(), degenerate.mask("all")))
    assert error(kept.kl, "reverse") < 1e-12
    np.testing.assert_allclose(error(masked.kl, "reverse"), 0.130, atol=5e-4)
    assert error(masked.reward, "reward") < 1e-13


def test_live_denominators_bias_by_fourteen_per_cent_as_batches_grow():
    # In one group alone the denominator does not show; in a large batch it is the share of live groups.
    alone = expectation(build(rule=degenerate.mask("live")), FIVE, GROUPS)
    np.testing.assert_allclose(error(alone.kl / (1 - DEGENERATE), "reverse"), 0.144, atol=5e-4)


def test_resampling_conditions_on_live_groups_and_so_is_masking_with_live_denominators():
    (weights, gradients), *_ = gradients_of_groups(build(), FIVE, GROUPS)
    conditional = weights * LIVE / np.sum(weights[LIVE])
    reward, penalty = np.einsum("m,bmd->bd", conditional, gradients)
    np.testing.assert_allclose(error(penalty, "reverse"), 0.144, atol=5e-4)
    # The reward's gradient keeps its direction and grows by the share of groups that are thrown away.
    np.testing.assert_allclose(reward, FIVE.targets["reward"] / (1 - DEGENERATE), atol=1e-13)


@pytest.mark.parametrize(("beta", "size"), [(0.1, 0.760), (0.01, 0.701), (0.001, 0.398)])
def test_kl_fused_before_the_std_moves_equal_groups_at_unit_scale_whatever_beta(beta, size):
    fused = build(standardised(), term=kl.penalty(kl.k1, "reward", allow_biased=True))
    apart = build(standardised())
    moved = ~LIVE & (np.ptp(GROUPS.members, axis=1) > 0)
    shares = WEIGHTS[moved] / np.sum(WEIGHTS[moved])
    sizes = []
    for built in (fused, apart):
        (_, gradients), *_ = gradients_of_groups(built, FIVE, GROUPS, beta)
        assert not gradients[0][moved].any()
        # Members with the same action have the same advantage, so the sum of sizes is the mean of all |A|.
        sizes.append(np.sum(shares * np.sum(np.abs(beta * gradients[1][moved]), axis=1)))
    np.testing.assert_allclose(sizes[0], size, atol=5e-4)
    assert sizes[1] < 0.2 * beta
