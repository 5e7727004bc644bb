"""Statistics become numbers; what was never measured is absent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax.metrics import finalise, is_timing
from grpo_jax.statistics import Maximum, Mean, Moments, maximum_of, mean_of, moments_of


def test_each_kind_of_statistic_has_its_names():
    values, mask = jnp.array([1.0, 3.0, 100.0]), jnp.array([True, True, False])
    numbers = finalise(
        {
            "loss": mean_of(values, mask),
            "reward": moments_of(values, mask),
            "kl": maximum_of(values, mask),
            "ratio_max": maximum_of(values, mask),
            "beta": jnp.float32(0.5),
            "seconds": 2.0,
        }
    )
    assert numbers == {
        "loss": 2.0,
        "reward_mean": 2.0,
        "reward_std": 1.0,
        "kl_max": 3.0,
        "ratio_max": 3.0,
        "beta": 0.5,
        "seconds": 2.0,
    }
    assert all(type(value) is float for value in numbers.values())


def test_a_statistic_over_nothing_is_left_out():
    values, nothing = jnp.array([1.0, jnp.nan]), jnp.zeros(2, bool)
    empty = {"a": mean_of(values, nothing), "b": moments_of(values, nothing), "c": maximum_of(values, nothing)}
    assert finalise(empty) == {}


def test_a_measured_value_that_is_not_finite_stays():
    numbers = finalise({"loss": Mean(jnp.float32(jnp.nan), jnp.float32(2)), "peak": Maximum(jnp.float32(jnp.inf))})
    assert np.isnan(numbers["loss"])
    assert numbers["peak_max"] == np.inf


@given(st.lists(st.lists(st.floats(-100, 100, width=32), max_size=5), min_size=1, max_size=4))
def test_merged_parts_give_the_numbers_of_the_whole(parts):
    arrays = [np.array(part, np.float32) for part in parts]
    whole = np.concatenate(arrays).astype(np.float64)

    def merged(make):
        statistics = [make(jnp.asarray(array), jnp.ones(array.shape, bool)) for array in arrays]
        total = statistics[0]
        for statistic in statistics[1:]:
            total = total.merge(statistic)
        return total

    numbers = finalise({"x": merged(moments_of), "y": merged(mean_of), "z": merged(maximum_of)})
    if not whole.size:
        assert numbers == {}
        return
    expected = {"x_mean": whole.mean(), "x_std": whole.std(), "y": whole.mean(), "z_max": whole.max()}
    assert numbers.keys() == expected.keys()
    for name, value in expected.items():
        assert numbers[name] == pytest.approx(value, rel=1e-5, abs=1e-4)


def test_statistics_from_inside_jit_give_the_same_numbers():
    def statistics(values):
        mask = values > 0
        return {"a": mean_of(values, mask), "b": moments_of(values, mask), "c": maximum_of(values, mask)}

    values = jnp.array([-1.0, 2.0, 5.0])
    assert finalise(jax.jit(statistics)(values)) == finalise(statistics(values))


def test_moments_of_a_constant_have_no_deviation():
    assert finalise({"x": Moments(jnp.float32(3), jnp.float32(0.1), jnp.float32(0))})["x_std"] == 0


def test_only_measures_of_the_clock_count_as_timing():
    assert all(is_timing(name) for name in ("seconds", "seconds_rollout", "tokens_per_second"))
    assert not any(is_timing(name) for name in ("second_reward", "loss", "seconds2"))
