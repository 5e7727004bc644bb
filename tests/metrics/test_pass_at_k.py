"""Pass@k against counting by hand, and its interval against Wilson's formula and repeated samples."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax.metrics import pass_at_k, proportion


@given(st.integers(1, 7), st.data())
def test_it_is_the_share_of_subsets_with_a_right_completion(samples, data):
    k, right = data.draw(st.integers(1, samples)), data.draw(st.integers(0, samples))
    completions = [True] * right + [False] * (samples - right)
    subsets = list(itertools.combinations(completions, k))
    expected = sum(map(any, subsets)) / len(subsets)
    np.testing.assert_allclose(pass_at_k(np.array([right]), samples, k), [expected], rtol=1e-12)


def test_worked_values():
    np.testing.assert_allclose(pass_at_k(np.array([0, 1, 2, 4]), 4, 1), [0, 0.25, 0.5, 1])
    np.testing.assert_allclose(pass_at_k(np.array([0, 1, 2, 3]), 4, 2), [0, 0.5, 5 / 6, 1])


@pytest.mark.parametrize(("right", "samples", "k"), [([0], 4, 5), ([0], 4, 0), ([5], 4, 1), ([-1], 4, 1)])
def test_what_cannot_be_is_refused(right, samples, k):
    with pytest.raises(ValueError, match=f"pass@{k} from|outside 0..4"):
        pass_at_k(np.array(right), samples, k)


def test_the_interval_of_zeros_and_ones_is_wilsons():
    found = proportion(np.array([1.0] * 8 + [0.0] * 2))
    # 8 of 10, z 1.96: (0.8 + 0.19207) / 1.38415 -+ 1.96 sqrt(0.016 + 0.0096036) / 1.38415
    np.testing.assert_allclose(found[:3], [0.8, 0.49016, 0.94332], atol=2e-4)
    assert proportion(np.ones(10)).low == pytest.approx(10 / (10 + 1.96**2), abs=1e-4)
    assert proportion(np.zeros(10)).low == 0


@pytest.mark.parametrize("chances", [(0.02, 0.1), (0.2, 0.9), (0.9, 0.999)])
def test_the_interval_covers_the_true_chance_about_95_times_in_100(chances):
    draws, problems, samples, k = np.random.default_rng(0), 60, 8, 3
    low, high = chances
    truth = np.mean([1 - (1 - p) ** k for p in np.linspace(low, high, 20001)])
    covered = 0
    for _ in range(600):
        right = draws.binomial(samples, draws.uniform(low, high, problems))
        found = proportion(pass_at_k(right, samples, k))
        covered += found.low <= truth <= found.high
    assert 0.92 <= covered / 600 <= 0.99


@pytest.mark.parametrize("values", [[], [0.5, 1.2], [float("nan")]])
def test_values_outside_the_unit_interval_are_refused(values):
    with pytest.raises(ValueError, match="must be at least one number"):
        proportion(np.array(values))
