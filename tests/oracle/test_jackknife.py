"""Statistics from inner products against the same from the stored gradients themselves."""

import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.kl import Target
from grpo_jax.oracle.blocks import Products
from grpo_jax.oracle.jackknife import findings, mean_product, one_group_variance
from grpo_jax.oracle.measured import as_row
from grpo_jax.oracle.references import basis
from grpo_jax.oracle.student import t_quantile

GRADIENTS = np.random.default_rng(0).normal(size=(7, 3, 5)) / 3 + np.array(
    [[1.0, -1, 0, 0.5, 0], [2, 2, 1, 0, 1], [1, 2, 2, 0, 1]]
)
KL, UNIT = (1.0, 0.5, 0.0), (0.0, 0.5, 0.0)


def products_of(gradients):
    """Gradients ``[B, n, D]`` as a measurement would give them, in blocks of three groups."""
    own = np.einsum("bid,bjd->bij", gradients, gradients)
    sums = np.einsum("bid,jd->bij", gradients, gradients.sum(axis=0))
    neighbours = np.einsum("bid,bjd->bij", gradients[1:], gradients[:-1])
    along = gradients[:, None, :, 0]
    found = (own, sums, neighbours, along, np.full(len(gradients), 3.0), np.array([6.0, 5.0, 8.0]), 0.1)
    return Products(*(jnp.asarray(each, jnp.float32) for each in found))


def without_each(gradients):
    return [np.delete(gradients, block, axis=0) for block in range(len(gradients))]


def naive_product(one, other):
    """The mean product of different blocks' gradients."""
    every = one @ other.T
    return (every.sum() - np.trace(every)) / (len(one) * (len(one) - 1))


def combined(gradients, coefficients):
    return np.einsum("i,bid->bd", coefficients, gradients)


@pytest.mark.parametrize("pair", [(KL, KL), (KL, UNIT), ((1.0, 0.0, 2.0), (0.3, -1.0, 0.0))])
def test_products_with_blocks_left_out_are_those_of_the_gradients_that_remain(pair):
    found = mean_product(products_of(GRADIENTS), *pair)
    expected = [
        naive_product(*(combined(left, each) for each in pair)) for left in (GRADIENTS, *without_each(GRADIENTS))
    ]
    np.testing.assert_allclose([found.whole, *found.without], expected, rtol=1e-4)


def test_the_variance_is_the_trace_of_the_covariance_and_so_with_blocks_left_out():
    found = one_group_variance(products_of(GRADIENTS), KL)
    expected = [
        3 * np.trace(np.cov(combined(left, KL).T)) for left in (GRADIENTS, *without_each(GRADIENTS))
    ]  # the mean over three groups has a third of it
    np.testing.assert_allclose([found.whole, *found.without], expected, rtol=1e-4)


def test_intervals_are_the_jackknifes_of_the_stored_gradients():
    found = findings(products_of(GRADIENTS), basis(Target(reverse=0.5)))

    def cosine(left):
        kl, unit = combined(left, KL), combined(left, UNIT)
        return naive_product(kl, unit) / np.sqrt(naive_product(kl, kl) * naive_product(unit, unit))

    left_out = np.array([cosine(left) for left in without_each(GRADIENTS)])
    half = t_quantile(6) * np.sqrt(6 / 7 * np.sum(np.square(left_out - left_out.mean())))
    np.testing.assert_allclose(found.cosine.value, cosine(GRADIENTS), rtol=1e-4)
    assert found.cosine.low <= cosine(GRADIENTS) - half + 1e-5
    assert found.cosine.high >= min(cosine(GRADIENTS) + half, 1) - 1e-5
    squares = [naive_product(left[:, 1] / 2, left[:, 1] / 2) for left in without_each(GRADIENTS)]
    half = t_quantile(6) * np.sqrt(6 / 7 * np.sum(np.square(squares - np.mean(squares))))
    np.testing.assert_allclose(found.squared_unit.high - found.squared_unit.value, half, rtol=1e-3)
    first = combined(GRADIENTS, KL)[:, 0]
    np.testing.assert_allclose(found.projections.value, first.mean(keepdims=True), rtol=1e-5)
    half = t_quantile(6) * first.std(ddof=1) / np.sqrt(7)
    np.testing.assert_allclose(found.projections.high - found.projections.value, [half], rtol=1e-4)
    assert found.groups == 21
    np.testing.assert_allclose(found.effective_sample_size, 25 / 48)


def test_the_interval_of_a_bias_holds_what_the_estimate_is_and_0_where_there_is_none():
    noise = np.random.default_rng(1).normal(size=(16, 1, 40))
    unit = np.ones((16, 1, 40)) + 0 * noise
    none = findings(products_of(np.concatenate([noise, unit, unit], axis=1)), basis(Target(reverse=1.0)))
    assert none.relative_bias.low == 0
    assert none.relative_bias.high < none.resolution < 0.5
    clear = findings(products_of(np.concatenate([noise + 1, unit, unit], axis=1)), basis(Target(reverse=1.0)))
    assert 0.8 < clear.relative_bias.low < 1 < clear.relative_bias.high < 1.2


def test_what_the_noise_hides_is_no_number():
    noise = np.random.default_rng(2).normal(size=(6, 3, 5))
    found = findings(products_of(noise[:, :2]), basis(Target()))
    assert np.isnan(found.relative_bias.value)
    assert np.isnan(found.resolution)
    assert as_row(found).keys() == {"certificate_variance"}
    nothing = findings(products_of(0 * noise), basis(Target(reverse=1.0)))
    assert as_row(nothing) == {"certificate_variance": 0.0}
    equal = products_of(GRADIENTS)._replace(apart=jnp.float32(1e-7))
    assert as_row(findings(equal, basis(Target(reverse=0.5)))).keys() == {"certificate_variance"}
    whole = as_row(findings(products_of(GRADIENTS), basis(Target(reverse=0.5))))
    ends = [f"certificate_{name}{end}" for name in ("cosine", "relative_bias") for end in ("", "_low", "_high")]
    assert list(whole) == ["certificate_variance", *ends]


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.7062), (2, 4.30265), (3, 3.18245), (7, 2.36462), (15, 2.13145), (30, 2.04227), (120, 1.97993)],
)
def test_students_quantiles_are_those_of_the_tables(freedom, expected):
    assert t_quantile(freedom) == pytest.approx(expected, abs=1e-5)


def test_students_quantiles_at_another_level():
    assert t_quantile(5, 0.99) == pytest.approx(4.03214, abs=1e-5)


@pytest.mark.parametrize(
    ("target", "follows", "count"),
    [
        (Target(), "reverse", 2),
        (Target(reverse=2.0), "reverse", 3),
        (Target(forward=1.0), "forward", 3),
        (Target(reverse=1.0, local_forward=-1.0), "reverse - local_forward", 3),
        (Target(forward=1.0).without("a reason"), "reverse", 3),
    ],
)
def test_a_basis_adds_up_to_the_gradient(target, follows, count):
    chosen = basis(target)
    assert chosen.follows.name == follows
    assert {len(each) for each in chosen[1:]} == {count}
    declares = 0.0 if target.name == "zero" else 1.0
    np.testing.assert_allclose(chosen.mean, np.add(chosen.difference, np.multiply(declares, chosen.unit)))
