"""Bad input, user-written advantages, and what every advantage declares."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

import grpo_jax.advantages as gja

INFORMATIVE = jnp.array([1.0, 0.0, 0.5])
ALL = jnp.ones(3, bool)


@pytest.mark.parametrize("advantage", [gja.leave_one_out(), gja.leave_one_out_standardised()])
def test_leave_one_out_of_a_group_of_one_is_an_error_with_a_remedy(advantage):
    with pytest.raises(ValueError, match="leave_one_out.*group of 1 .*group size of 2 or more"):
        jax.jit(advantage.compute)(jnp.array([1.0]), jnp.array([True]))


@pytest.mark.parametrize(
    "build", [gja.standardised, gja.batch_whitened, lambda *a: gja.separately_standardised((1,), *a)]
)
@pytest.mark.parametrize("arguments", [(2, 1e-4), (-1, 1e-4), (1, -1e-4), (1, float("nan")), (1, float("inf"))])
def test_arguments_of_a_standardisation_outside_their_range_are_refused(build, arguments):
    with pytest.raises(ValueError, match=r"(standardised|whitened): (ddof|epsilon)=.* must be .*"):
        build(*arguments)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan"), float("inf")])
def test_leave_one_out_standardised_needs_a_positive_epsilon(epsilon):
    with pytest.raises(ValueError, match=f"epsilon={epsilon} must be positive and finite.*1e-6"):
        gja.leave_one_out_standardised(epsilon)


@pytest.mark.parametrize("name", ["centred", "standardised", "leave_one_out", "max_rl", "batch_whitened"])
def test_forgetting_to_map_over_groups_is_an_error_and_not_a_broadcast(name):
    with pytest.raises((TypeCheckError, AssertionError)):
        getattr(gja, name)().compute(jnp.ones((2, 3)), jnp.ones((2, 3), bool))


@pytest.mark.parametrize("mask", [jnp.ones(2, bool), jnp.ones(3), jnp.ones((3, 1), bool)])
def test_a_mask_of_another_shape_or_type_is_an_error(mask):
    with pytest.raises((TypeCheckError, AssertionError)):
        gja.centred().compute(INFORMATIVE, mask)


def test_a_users_function_never_sees_what_masked_members_hold():
    seen = []
    advantage = gja.from_function(lambda rewards, mask: seen.append(rewards) or rewards - jnp.sum(rewards))
    advantage.compute(jnp.array([1.0, jnp.nan, 5.0]), jnp.array([True, True, False]))
    np.testing.assert_array_equal(seen[0], [1, 0, 0])


def test_a_users_function_is_used_as_written_where_the_group_is_informative():
    def against_half(rewards, mask):
        return jnp.where(mask, rewards - 0.5, 7)

    advantage = gja.from_function(against_half, linear=False, reward_target="E[R]")
    np.testing.assert_array_equal(advantage.compute(INFORMATIVE, jnp.array([True, True, False])), [0.5, -0.5, 0])
    assert (advantage.name, advantage.reward_target, advantage.linear) == ("against_half", "E[R]", False)


def test_a_users_function_of_another_shape_is_an_error_that_names_it():
    def mean_only(rewards, mask):
        return jnp.mean(rewards)

    with pytest.raises(ValueError, match=r"'mean_only' returned shape \(\) for rewards of shape \(3,\)"):
        gja.from_function(mean_only).compute(INFORMATIVE, ALL)


def test_an_advantage_built_without_the_guard_may_act_on_equal_rewards():
    fixed = gja.Advantage("fixed baseline", lambda rewards, mask: rewards - 0.5, False, "E[R]")
    np.testing.assert_array_equal(fixed.compute(jnp.ones(3), ALL), [0.5] * 3)
    assert float(fixed.spread(jnp.ones(3), ALL)) == 0


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_rewards_of_low_precision_are_computed_in_float32(dtype):
    actual = gja.standardised(1, 0.0).compute(INFORMATIVE.astype(dtype), ALL)
    chex.assert_type(actual, jnp.float32)
    np.testing.assert_allclose(actual, [1, -1, 0], atol=1e-6)


PER_PROMPT = "E[R] of each prompt, times a positive factor that differs from prompt to prompt"


@pytest.mark.parametrize(
    ("advantage", "linear", "target"),
    [
        (gja.centred(), True, "(G-1)/G * E[R]"),
        (gja.leave_one_out(), True, "E[R]"),
        (gja.standardised(), False, "another utility"),
        (gja.leave_one_out_standardised(), False, PER_PROMPT),
        (gja.max_rl(), False, "another utility"),
        (gja.separately_standardised((1, 1)), False, "another utility"),
        (gja.batch_whitened(), False, "(G-1)/G * E[R], divided by the batch's std"),
    ],
)
def test_every_advantage_declares_linearity_and_target(advantage, linear, target):
    assert (advantage.linear, advantage.reward_target) == (linear, target)


def test_names_tell_hyperparameters_apart():
    assert gja.standardised(1, 1e-4).name != gja.standardised(0, 1e-4).name != gja.standardised(0, 1e-6).name
    assert gja.weighted_sum((1, 2), gja.centred()).name != gja.weighted_sum((2, 1), gja.centred()).name


def test_the_parts_are_instances_of_their_protocols():
    whitened = gja.batch_whitened()
    assert isinstance(whitened.compute, gja.GroupAdvantage)
    assert isinstance(whitened.across_batch, gja.AcrossBatch)
    assert isinstance(whitened.spread, gja.Spread)
