"""From token losses to one number: numbers of other libraries, a loop as oracle, any split, no leak."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax.losses import reductions
from tests.references import losses as reference

REDUCTIONS = {
    "token_mean": (reductions.token_mean(), reference.token_mean),
    "sequence_mean_of_token_mean": (reductions.sequence_mean_of_token_mean(), reference.sequence_mean_of_token_mean),
    "sequence_mean_of_token_sum": (reductions.sequence_mean_of_token_sum(), reference.sequence_mean_of_token_sum),
    "constant_length": (reductions.constant_length(10), functools.partial(reference.constant_length, length=10)),
}
VALUES = st.lists(st.floats(-9, 9, width=32), min_size=24, max_size=24)
MASKS = st.lists(st.booleans(), min_size=24, max_size=24)
SHAPE = (3, 2, 4)


def reduced(name, rows, mask):
    """The mean of completions given as rows, one completion per group."""
    values = jnp.asarray(rows, jnp.float32)[:, None]
    return REDUCTIONS[name][0].reduce(values, jnp.asarray(mask, bool)[:, None]).compute()


def test_skyrls_numbers():
    np.testing.assert_allclose(reduced("token_mean", [[1, 2, 3], [4, 5, 6]], [[1, 1, 0], [1, 1, 1]]), 3.6)
    np.testing.assert_allclose(reduced("sequence_mean_of_token_mean", [[1, 2], [3, 4]], [[1, 1], [1, 0]]), 2.25)
    np.testing.assert_allclose(reduced("constant_length", [[2, 3], [9, 12]], [[1, 1], [1, 0]]), 0.7, rtol=1e-6)


def test_open_instructs_numbers():
    rows, mask = [[1, 2, 3], [4, 5, 6]], [[1, 1, 0], [1, 0, 0]]
    np.testing.assert_allclose(reduced("sequence_mean_of_token_mean", rows, mask), 2.75)
    np.testing.assert_allclose(reduced("token_mean", rows, mask), 2.3333, rtol=1e-4)


def test_prime_rls_number():
    np.testing.assert_allclose(reduced("token_mean", [[0.1, 0.5, 0.2]], [[1, 0, 1]]), 0.15, rtol=1e-6)


def test_a_mean_over_micro_batches_is_the_mean_over_tokens_not_over_means():
    values = jnp.array([[[1.0, 2, 0, 0, 0]], [[3, 4, 5, 6, 7]]])
    mask = jnp.array([[[True, True, False, False, False]], [[True] * 5]])
    parts = [reductions.token_mean().reduce(values[i : i + 1], mask[i : i + 1]) for i in range(2)]
    assert parts[0].merge(parts[1]).compute() == 4
    assert jnp.mean(jnp.array([part.compute() for part in parts])) == 3.25


def test_a_completion_without_tokens_is_not_counted():
    for name in ("token_mean", "sequence_mean_of_token_mean"):
        assert reduced(name, [[1, 3], [5, 7]], [[1, 1], [0, 0]]) == 2
    assert reduced("sequence_mean_of_token_sum", [[1, 3], [5, 7]], [[1, 1], [0, 0]]) == 4


def test_padding_counts_in_no_reduction():
    assert reduced("sequence_mean_of_token_sum", [[1, 1, 5]], [[1, 1, 0]]) == 2
    assert reduced("token_mean", [[8, 8, 0, 0]], [[1, 1, 0, 0]]) == 8
    assert reduced("token_mean", [[1] + [9] * 9], [[1] + [0] * 9]) == 1


def test_kl_and_policy_terms_of_unequal_lengths_share_one_denominator():
    rows = [[1.0] + [0] * 8, [0.0] * 9]
    mask = [[1] + [0] * 8, [1] * 9]
    np.testing.assert_allclose(reduced("token_mean", rows, mask), 0.1)
    np.testing.assert_allclose(reduced("sequence_mean_of_token_mean", rows, mask), 0.5)


def test_a_masked_token_has_no_gradient_and_the_others_their_share():
    mask = jnp.array([[[True, False]], [[True, False]]])

    def mean(values):
        return reductions.token_mean().reduce(values, mask).compute()

    value, gradient = jax.value_and_grad(mean)(jnp.array([[[1.0, 100]], [[1, -50]]]))
    assert value == 1
    np.testing.assert_array_equal(gradient[:, 0], [[0.5, 0], [0.5, 0]])


@functools.cache
def compiled(name):
    reduce = REDUCTIONS[name][0].reduce

    def both(values, mask):
        def mean(values):
            pair = reduce(values, mask)
            return pair.compute(), pair

        gradient, pair = jax.grad(mean, has_aux=True)(values)
        return pair, gradient

    return jax.jit(both)


@pytest.mark.parametrize("name", REDUCTIONS)
@given(VALUES, MASKS)
def test_totals_and_counts_are_those_of_a_loop(name, values, mask):
    values, mask = np.reshape(np.float32(values), SHAPE), np.reshape(mask, SHAPE)
    total, count = REDUCTIONS[name][1](values, mask)
    pair, gradient = compiled(name)(jnp.asarray(values), jnp.asarray(mask))
    np.testing.assert_allclose(pair, (total, count), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(pair.compute(), reference.divided((total, count)), rtol=1e-5, atol=1e-5)
    assert np.all((np.asarray(gradient) != 0) == mask)


@pytest.mark.parametrize("name", REDUCTIONS)
@given(VALUES, MASKS, st.lists(st.booleans(), min_size=3, max_size=3))
def test_any_split_into_groups_merges_to_the_whole(name, values, mask, first):
    values, mask = jnp.reshape(jnp.float32(values), SHAPE), np.reshape(mask, SHAPE)
    chosen = np.array(first)[:, None, None]
    whole, _ = compiled(name)(values, jnp.asarray(mask))
    one, _ = compiled(name)(values, jnp.asarray(mask & chosen))
    other, _ = compiled(name)(values, jnp.asarray(mask & ~chosen))
    np.testing.assert_allclose(one.merge(other), whole, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
def test_masked_losses_leak_into_neither_value_nor_gradient(name, poison):
    mask = jnp.asarray(np.arange(24).reshape(SHAPE) % 3 != 0)
    values = jnp.arange(24.0).reshape(SHAPE)
    clean, poisoned = (compiled(name)(v, mask) for v in (values, jnp.where(mask, values, poison)))
    jax.tree.map(np.testing.assert_array_equal, clean, poisoned)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_batch_without_tokens_has_loss_zero_and_gradient_zero(name):
    pair, gradient = compiled(name)(jnp.full(SHAPE, jnp.nan), jnp.zeros(SHAPE, bool))
    assert pair.compute() == 0
    np.testing.assert_array_equal(gradient, 0)


def test_scales_differ_by_the_length():
    rows, mask = [[1.0] * 4] * 3, [[1] * 4] * 3
    assert [float(reduced(name, rows, mask)) for name in REDUCTIONS] == pytest.approx([1, 1, 4, 0.4])


@pytest.mark.parametrize("length", [0, -3, float("nan"), float("inf"), 0.5])
def test_a_constant_length_below_one_is_refused(length):
    with pytest.raises(ValueError, match=f"length is {length}; give the generation budget, >= 1"):
        inspect.unwrap(reductions.constant_length)(length)
