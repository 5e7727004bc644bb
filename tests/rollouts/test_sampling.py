"""Choosing tokens: the right frequencies, the edges of the inverse CDF, and restricted supports."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.rollouts import categorical, greedy
from grpo_jax.rollouts.sampling import BLOCK, inverse_cdf

LONG = 3 * BLOCK + 17
BELOW_ONE = 1 - 2.0**-23
SEARCH = jax.jit(inverse_cdf)


def frequencies(strategy, logits, draws):
    keys = jax.random.split(jax.random.key(0), draws)
    tokens = jax.jit(jax.vmap(lambda key: strategy.choose(logits / strategy.temperature, key=key)))(keys)
    return np.bincount(np.asarray(tokens), minlength=logits.size)


def chi_square(counts, probabilities):
    """The statistic over its degrees of freedom: 1 +- sqrt(2 / df) when counts follow the probabilities."""
    expected = counts.sum() * probabilities
    return np.sum((counts - expected) ** 2 / expected) / (len(counts) - 1)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("size", [12, LONG])
def test_frequencies_follow_the_softmax(size, temperature):
    logits = 0.5 * jax.random.normal(jax.random.key(1), (size,))
    probabilities = np.asarray(jax.nn.softmax(logits / temperature))
    counts = frequencies(categorical(temperature), logits, 20_000)
    assert abs(chi_square(counts, probabilities) - 1) < 4 * np.sqrt(2 / size)


def by_loop(weights, uniform):
    """First index whose exact running sum exceeds its share, in float64."""
    running, target = 0.0, uniform * np.sum(weights, dtype=np.float64)
    for index, weight in enumerate(weights):
        running += float(weight)
        if running > target:
            return index
    return int(np.flatnonzero(weights)[-1])


@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, 0.5]), min_size=9, max_size=9).filter(any), st.integers(0, 2**10 - 1))
def test_a_short_row_is_searched_exactly(weights, step):
    uniform = step / 2**10
    assert SEARCH(jnp.array(weights), jnp.float32(uniform)) == by_loop(weights, uniform)


@given(st.integers(0, 10**6), st.integers(0, 2**12 - 1))
@settings(max_examples=40)
def test_a_long_row_is_searched_exactly_in_two_levels(seed, step):
    weights = np.random.default_rng(seed).integers(0, 3, LONG).astype(np.float32)
    weights[: 2 * BLOCK] *= seed % 2
    uniform = step / 2**12
    assert SEARCH(jnp.asarray(weights), jnp.float32(uniform)) == by_loop(weights, uniform)


@pytest.mark.parametrize("size", [7, LONG])
@pytest.mark.parametrize("uniform", [0.0, 2.0**-23, 0.5, BELOW_ONE, 1.0])
def test_a_token_without_mass_is_never_chosen(size, uniform):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        weights = (rng.random(size) * (rng.random(size) < 0.3)).astype(np.float32)
        weights[rng.integers(size)] = 1e-6
        assert weights[SEARCH(jnp.asarray(weights), jnp.float32(uniform))] > 0


@pytest.mark.parametrize("size", [1, 7, LONG])
def test_the_first_and_the_last_token_can_be_chosen(size):
    weights = jnp.ones(size)
    assert SEARCH(weights, jnp.float32(0)) == 0
    assert SEARCH(weights, jnp.float32(BELOW_ONE)) == size - 1
    for only in (0, size // 2, size - 1):
        for uniform in (0.0, BELOW_ONE):
            assert SEARCH(jnp.zeros(size).at[only].set(0.1), jnp.float32(uniform)) == only


def test_extreme_logits_choose_the_only_possible_token():
    for size in (5, LONG):
        counts = frequencies(categorical(), jnp.full(size, -jnp.inf).at[3].set(-1e30), 50)
        assert counts[3] == 50


@pytest.mark.parametrize(
    ("restriction", "kept"),
    [
        ({"top_k": 2}, 2),
        ({"top_p": 0.8}, 2),
        ({"top_p": 0.81}, 3),
        ({"top_k": 3, "top_p": 0.8}, 2),
        ({"top_k": 99}, 4),
        ({"top_p": 1.0}, 4),
    ],
)
def test_a_restricted_choice_follows_the_renormalised_probabilities(restriction, kept):
    probabilities = np.array([0.05, 0.3, 0.5, 0.15])
    allowed = np.argsort(-probabilities)[:kept]
    counts = frequencies(categorical(**restriction), jnp.log(jnp.asarray(probabilities, jnp.float32)), 20_000)
    assert counts[allowed].sum() == counts.sum()
    expected = probabilities[allowed] / probabilities[allowed].sum()
    np.testing.assert_allclose(counts[allowed] / counts.sum(), expected, atol=0.015)


def test_top_k_of_one_and_a_tiny_top_p_are_greedy():
    logits = jax.random.normal(jax.random.key(3), (30,))
    for strategy in (categorical(top_k=1), categorical(top_p=1e-6), greedy()):
        assert frequencies(strategy, logits, 20)[int(jnp.argmax(logits))] == 20


def test_greedy_takes_the_first_of_equals_at_temperature_one():
    assert greedy().temperature == 1.0
    assert greedy().choose(jnp.array([0.0, 2.0, 2.0]), key=jax.random.key(0)) == 1


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
    ],
)
def test_a_wrong_number_is_refused_by_name_and_value(wrong, named):
    with pytest.raises(ValueError, match=named):
        categorical(**wrong)
