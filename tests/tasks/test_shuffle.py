import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax.tasks.shuffle import hashed, permuted, unordered_pair


@pytest.mark.parametrize("size", [1, 2, 3, 5, 55, 1010])
def test_every_place_of_a_permutation_is_taken_once(size):
    assert sorted(permuted(np.arange(size), size, hashed(7))) == list(range(size))


@given(st.integers(1, 4 * 10**17), st.integers(0, 2**62), st.data())
def test_a_large_permutation_stays_in_its_range_and_has_no_collisions(size, seed, data):
    places = np.array(sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=20))))
    values = permuted(places, size, hashed(seed))
    assert values.min() >= 0
    assert values.max() < size
    assert len(set(values.tolist())) == len(places)


def test_keys_give_different_permutations_row_by_row():
    places, keys = np.tile(np.arange(100), 2), hashed(3, np.repeat([0, 1], 100))
    together = permuted(places, 100, keys)
    first = permuted(np.arange(100), 100, hashed(3, 0))
    second = permuted(np.arange(100), 100, hashed(3, 1))
    np.testing.assert_array_equal(together, np.concatenate([first, second]))
    assert np.mean(first == second) < 0.1


def test_all_permutations_of_three_are_about_equally_likely():
    orders = [tuple(permuted(np.arange(3), 3, hashed(seed)).tolist()) for seed in range(1200)]
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == 6
    assert sum((count - 200) ** 2 / 200 for count in counts) < 20.5  # chi-square, 5 degrees of freedom, p = .001


def test_hashes_depend_on_the_order_of_the_words():
    assert hashed(1, 2)[0] != hashed(2, 1)[0]
    np.testing.assert_array_equal(hashed(1, np.arange(4)), np.concatenate([hashed(1, i) for i in range(4)]))


def test_hashes_have_balanced_bits():
    bits = np.unpackbits(hashed(np.arange(4096)).view(np.uint8)).reshape(4096, 64)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.04  # five standard deviations


@given(st.integers(0, 9 * 10**8 - 1), st.data())
def test_the_rank_of_a_pair_gives_the_pair_back(high, data):
    low = data.draw(st.sampled_from(sorted({0, high // 2, high})))
    ranks = np.array([high * (high + 1) // 2 + low])
    found = unordered_pair(ranks)
    assert (int(found[0][0]), int(found[1][0])) == (low, high)
