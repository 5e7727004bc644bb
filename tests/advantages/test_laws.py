"""What holds for every advantage: exact zeros, masked members without influence, symmetries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import grpo_jax.advantages as gja
from tests.references import advantages as reference

G, K, P = 6, 2, 8
SINGLE = {
    "centred": gja.centred(),
    "standardised": gja.standardised(),
    "standardised without epsilon": gja.standardised(0, 0.0),
    "leave_one_out": gja.leave_one_out(),
    "leave_one_out_standardised": gja.leave_one_out_standardised(),
    "max_rl": gja.max_rl(),
    "batch_whitened": gja.batch_whitened(),
    "from_function": gja.from_function(lambda rewards, mask: rewards / jnp.std(rewards)),
}
SEVERAL = {
    "weighted_sum": gja.weighted_sum((0.7, -0.3), gja.standardised(1, 1e-9)),
    "separately_standardised": gja.separately_standardised((0.7, -0.3), 1, 1e-9),
}


def over_batch(advantage):
    """All groups of a batch, compiled: mapped, then whatever the advantage does across the batch."""

    def whole(rewards, mask):
        within = jax.vmap(advantage.compute)(rewards, mask)
        return within if advantage.across_batch is None else advantage.across_batch(within, mask)

    return jax.jit(whole)


COMPUTE = {name: jax.jit(advantage.compute) for name, advantage in (SINGLE | SEVERAL).items()}
SPREAD = jax.jit(gja.spread)
SUMMED = gja.weighted_sum((0.7, -0.3), gja.centred())
SUM, SPREAD_OF_SUM = jax.jit(SUMMED.compute), jax.jit(SUMMED.spread)
WHITENED = over_batch(gja.batch_whitened(1, 1e-4))
ORACLES = {
    "centred": reference.centred,
    "standardised": lambda rewards, mask: reference.standardised(rewards, mask, 1, 1e-4),
    "standardised without epsilon": lambda rewards, mask: reference.standardised(rewards, mask, 0, 0.0),
    "leave_one_out": reference.leave_one_out,
    "leave_one_out_standardised": lambda rewards, mask: reference.leave_one_out_standardised(rewards, mask, 1e-6),
    "max_rl": reference.max_rl,
    "batch_whitened": reference.centred,
}

values = st.one_of(
    st.sampled_from([0.0, 0.1, 0.7, 1.0, float("nan"), float("inf")]), st.integers(0, 10**6).map(lambda n: n / 1e4)
)
groups = st.lists(values, min_size=G, max_size=G).map(np.float32)
groups_of_several = st.lists(st.tuples(values, values), min_size=G, max_size=G).map(np.float32)
masks = st.lists(st.booleans(), min_size=G, max_size=G).map(lambda mask: np.array(mask, bool))


def shaped_like(name, group):
    """The group's rewards, for advantages of several rewards twice and opposed."""
    return np.stack([group, 1 - group], axis=1) if name in SEVERAL else group


@pytest.mark.parametrize("name", SINGLE | SEVERAL)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_identical_rewards_give_exactly_zero(name, value):
    group = np.full((G, K) if name in SEVERAL else G, value, np.float32)
    assert np.all(np.asarray(COMPUTE[name](group, np.ones(G, bool))) == 0)


@pytest.mark.parametrize("name", SINGLE | SEVERAL)
@pytest.mark.parametrize(("value", "size"), [(0.1, 8), (0.7, 16)])
def test_identical_rewards_that_binary_cannot_hold_give_exactly_zero(name, value, size):
    group = np.full((size, K) if name in SEVERAL else size, value, np.float32)
    assert np.all(np.asarray(COMPUTE[name](group, np.ones(size, bool))) == 0)


@pytest.mark.parametrize("advantage", [gja.batch_whitened(), gja.separately_standardised((1, 1))])
def test_groups_of_identical_rewards_stay_exactly_zero_beside_informative_ones(advantage):
    rewards = np.float32([[0.1] * 3, [0.1, 0.7, 0.3], [0.7] * 3])
    rewards = np.stack([rewards, rewards], axis=2) if "separately" in advantage.name else rewards
    actual = np.asarray(over_batch(advantage)(rewards, np.ones((3, 3), bool)))
    assert np.all(actual[[0, 2]] == 0)
    assert np.all(actual[1] != 0)


@pytest.mark.parametrize("name", SINGLE | SEVERAL)
@pytest.mark.parametrize("members", [[], [3]])
def test_groups_with_fewer_than_two_members_give_exactly_zero(name, members):
    mask = np.isin(np.arange(G), members)
    group = shaped_like(name, np.float32([0.3, 0.1, 0.7, 0.2, 0.9, 0.5]))
    assert np.all(np.asarray(COMPUTE[name](group, mask)) == 0)
    assert float((SINGLE | SEVERAL)[name].spread(jnp.array(group), jnp.array(mask))) == 0


@pytest.mark.parametrize("name", [name for name in SINGLE if not name.startswith("leave_one_out")])
def test_a_group_of_one_gives_zero_and_not_its_reward(name):
    assert np.asarray(SINGLE[name].compute(jnp.array([0.7]), jnp.array([True]))) == [0]


@pytest.mark.parametrize("name", ORACLES)
@given(groups, masks)
def test_values_equal_those_of_a_loop_over_members(name, group, mask):
    expected = np.array(ORACLES[name](group, mask))
    tolerance = 2e-5 * max(1e-6, np.max(np.abs(expected)))
    np.testing.assert_allclose(COMPUTE[name](group, mask), expected, rtol=1e-5, atol=tolerance)


@given(groups_of_several, masks)
def test_the_weighted_sum_equals_that_of_a_loop_over_rewards(group, mask):
    sums = reference.weighted_sum(group, (0.7, -0.3))
    expected = np.array(reference.centred(sums, mask))
    np.testing.assert_allclose(SUM(group, mask), expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(SPREAD_OF_SUM(group, mask), reference.spread(sums, mask), rtol=1e-5, atol=1e-4)


@given(groups_of_several, masks)
def test_rewards_standardised_one_by_one_equal_a_loop_over_rewards(group, mask):
    expected = reference.separately_standardised(group, mask, (0.7, -0.3), 1, 1e-9)
    np.testing.assert_allclose(COMPUTE["separately_standardised"](group, mask), expected, rtol=1e-5, atol=2e-5)


@given(groups, masks)
def test_the_spread_is_the_range_of_the_members_that_count(group, mask):
    np.testing.assert_allclose(SPREAD(group, mask), reference.spread(group, mask), rtol=1e-6)


@given(st.lists(groups, min_size=3, max_size=3), st.lists(masks, min_size=3, max_size=3))
def test_whitening_equals_a_loop_that_also_subtracts_the_batch_mean(batch, mask):
    batch, mask = np.stack(batch), np.stack(mask) & np.isfinite(np.stack(batch))
    within = [reference.centred(group, member) for group, member in zip(batch, mask, strict=True)]
    np.testing.assert_allclose(WHITENED(batch, mask), reference.whitened(within, mask, 1, 1e-4), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("name", SINGLE | SEVERAL)
@given(group=groups, mask=masks, junk=groups)
def test_what_stands_at_masked_members_changes_neither_value_nor_gradient(name, group, mask, junk):
    other = np.where(mask, group, junk)
    one, two = shaped_like(name, group), shaped_like(name, other)
    np.testing.assert_array_equal(COMPUTE[name](one, mask), COMPUTE[name](two, mask))
    gradients = [np.asarray(GRADIENT[name](rewards, mask)) for rewards in (one, two)]
    np.testing.assert_array_equal(*gradients)
    absent = ~(mask & np.isfinite(group))
    assert np.all(np.asarray(COMPUTE[name](one, mask))[absent] == 0)
    if name != "from_function":
        assert np.all(np.isfinite(gradients[0]))
        assert np.all(gradients[0][absent] == 0)


GRADIENT = {
    name: jax.jit(jax.grad(lambda rewards, mask, f=f: jnp.sum(f(rewards, mask) * jnp.arange(1.0, G + 1))))
    for name, f in COMPUTE.items()
}


@pytest.mark.parametrize("name", SINGLE | SEVERAL)
@given(group=groups, mask=masks)
def test_appending_masked_members_changes_nothing(name, group, mask):
    if name == "from_function":
        mask = mask & False
    group = shaped_like(name, group)
    wide = np.concatenate([group, np.full_like(group[:2], 7)])
    wide_mask = np.concatenate([mask, [False, False]])
    actual = np.asarray(COMPUTE[name](wide, wide_mask))
    np.testing.assert_allclose(actual[:G], COMPUTE[name](group, mask), rtol=1e-6, atol=1e-6)
    assert np.all(actual[G:] == 0)


@pytest.mark.parametrize("name", SINGLE | SEVERAL)
def test_permuting_members_permutes_advantages(name):
    group, order = shaped_like(name, np.float32([0.3, 0.1, 0.7, 0.2, 0.9, 0.5])), np.array([5, 2, 0, 1, 4, 3])
    mask = np.array([True, True, False, True, True, True]) | (name == "from_function")
    actual = np.asarray(COMPUTE[name](group[order], mask[order]))
    np.testing.assert_allclose(actual, np.asarray(COMPUTE[name](group, mask))[order], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in ORACLES if name != "max_rl"])
@pytest.mark.parametrize("level", [-3.0, 2.0**20])
def test_adding_a_constant_to_all_rewards_changes_nothing(name, level):
    group, mask = np.float32([0.25, 0.5, 0.75, 0.125, 1, 0]), np.ones(G, bool)
    np.testing.assert_allclose(COMPUTE[name](group + np.float32(level), mask), COMPUTE[name](group, mask), rtol=1e-6)


@pytest.mark.parametrize("name", ["standardised without epsilon", "max_rl"])
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e3, 1e30])
def test_advantages_relative_to_the_groups_scale_ignore_the_unit_of_reward(name, scale):
    group, mask = np.float32([0.25, 0.5, 0.75, 0.125, 1, 0]), np.ones(G, bool)
    np.testing.assert_allclose(COMPUTE[name](group * np.float32(scale), mask), COMPUTE[name](group, mask), rtol=1e-5)


@pytest.mark.parametrize("name", [*ORACLES, *SEVERAL])
@pytest.mark.parametrize("size", [1e-30, 1e-7, 0.1, 1e7, 1e30])
def test_extreme_rewards_give_finite_advantages(name, size):
    for group in ([0] + [size] * 5, [size] + [0] * 5, [1] + [1 + size] * 5, [-size] * 3 + [size] * 3):
        actual = np.asarray(COMPUTE[name](shaped_like(name, np.float32(group)), np.ones(G, bool)))
        assert np.all(np.isfinite(actual))


@pytest.mark.parametrize(("value", "size"), [(0.1, 9), (0.7, 17), (0.7, 200)])
def test_the_leave_one_out_std_of_equal_others_is_zero_for_any_value(value, size):
    rewards = np.float32([0] + [value] * (size - 1))
    actual = np.asarray(COMPUTE["leave_one_out_standardised"](rewards, np.ones(size, bool)))
    assert actual[0] == pytest.approx(-value, rel=1e-5)
    assert np.all(np.abs(actual) < 1)


@pytest.mark.parametrize("name", ["centred", "leave_one_out", "batch_whitened", "standardised"])
@given(groups, masks)
def test_advantages_of_a_group_sum_to_zero(name, group, mask):
    actual = np.asarray(COMPUTE[name](group, mask))
    assert abs(actual.sum()) <= 1e-5 * max(1, np.abs(actual).max())


@pytest.mark.parametrize("advantage", [gja.centred(), gja.leave_one_out(), gja.weighted_sum((1, 2), gja.centred())])
def test_linear_advantages_may_have_a_return_subtracted_before_or_after(advantage):
    assert advantage.linear
    rewards, mask = jnp.array([0.3, 0.1, 0.7, 0.2, 0.9, 0.5]), jnp.array([True] * 5 + [False])
    returns = jnp.array([0.5, -0.25, 0.125, 2, 1, 3])
    together = advantage.compute(rewards + returns, mask)
    np.testing.assert_allclose(together, advantage.compute(rewards, mask) + advantage.compute(returns, mask), atol=1e-6)


@pytest.mark.parametrize("name", [name for name in SINGLE | SEVERAL if not (SINGLE | SEVERAL)[name].linear])
def test_advantages_declared_nonlinear_are_so(name):
    advantage = (SINGLE | SEVERAL)[name]
    one, two = np.float32([[0.3, 0.1, 0.7, 0.2, 0.9, 0.5]]), np.float32([[0.5, 0.25, 0.125, 2, 1, 3]])
    one, two = (np.stack([x, x**2], axis=2) if name in SEVERAL else x for x in (one, two))
    whole, mask = over_batch(advantage), np.ones((1, G), bool)
    assert np.max(np.abs(whole(one + two, mask) - whole(one, mask) - whole(two, mask))) > 0.01


def test_the_derivative_of_centred_rewards_is_the_centring_matrix():
    mask = np.array([True, True, False, True, False, True])
    rewards = np.float32([0.3, 0.1, np.nan, 0.2, 0.9, 0.5])
    expected = np.diag(mask.astype(float)) - np.outer(mask, mask) / 4
    np.testing.assert_allclose(jax.jacobian(COMPUTE["centred"])(rewards, mask), expected, atol=1e-7)


@pytest.mark.parametrize("name", ["standardised", "leave_one_out_standardised", "max_rl", *SEVERAL])
def test_derivatives_equal_finite_differences(name):
    group, mask = np.float32([0.3, 0.1, 0.7, 0.2, 0.9, 0.5]), np.array([True] * 5 + [False])
    group = np.stack([group, group[::-1] ** 2], axis=1) if name in SEVERAL else group
    jax.test_util.check_grads(
        lambda r: COMPUTE[name](r, mask), (group,), 1, modes=["rev"], rtol=2e-2, atol=2e-2, eps=1e-3
    )


@pytest.mark.parametrize("name", SINGLE | SEVERAL)
def test_mapping_compiling_and_eight_devices_change_nothing(name):
    advantage = (SINGLE | SEVERAL)[name]
    rewards = np.random.default_rng(0).normal(size=(P, G)).astype(np.float32)
    rewards = np.stack([rewards, rewards**2], axis=2) if name in SEVERAL else rewards
    mask = np.random.default_rng(1).random((P, G)) > 0.2
    one_by_one = np.stack([COMPUTE[name](*group) for group in zip(rewards, mask, strict=True)])
    if advantage.across_batch is not None:
        one_by_one = advantage.across_batch(jnp.array(one_by_one), jnp.array(mask))

    whole = over_batch(advantage)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    on_devices = jax.device_put((rewards, mask), NamedSharding(mesh, PartitionSpec("data")))
    np.testing.assert_allclose(whole(rewards, mask), one_by_one, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(whole(*on_devices), one_by_one, rtol=1e-5, atol=1e-6)
