"""What controllers declare, and the errors that name value, place and remedy."""

import re

import jax.numpy as jnp
import pytest

from grpo_jax.kl.controllers import (
    clipped_proportional,
    constant,
    linear_warmup,
    proportional,
    proportional_integral,
    then,
    tight_then_loose,
)

NAN, INF = float("nan"), float("inf")
FACTORIES = {
    "proportional": lambda beta=0.1, target=0.5, **rest: proportional(beta, target, **rest),
    "clipped_proportional": lambda beta=0.1, target=0.5, horizon=100, **rest: clipped_proportional(
        beta, target, horizon, **rest
    ),
    "proportional_integral": lambda beta=0.1, target=0.5, horizon=100, **rest: proportional_integral(
        beta, target, horizon, **rest
    ),
}


@pytest.mark.parametrize("place", FACTORIES)
@pytest.mark.parametrize("name", ["beta", "target", "floor", "ceiling"])
@pytest.mark.parametrize("value", [-0.1, 0, NAN, INF, -INF, 1e-50, 1e39])
def test_shared_arguments_that_are_not_positive_and_finite_are_refused(place, name, value):
    with pytest.raises(ValueError, match=rf"{place}: {name}={re.escape(str(value))} must be positive and finite.*; .+"):
        FACTORIES[place](**{name: value})


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("proportional", "alpha"),
        ("clipped_proportional", "horizon"),
        ("proportional_integral", "horizon"),
        ("proportional_integral", "proportional_gain"),
        ("proportional_integral", "integral_gain"),
    ],
)
@pytest.mark.parametrize("value", [-1, 0, NAN, INF])
def test_gains_and_horizons_that_are_not_positive_and_finite_are_refused(place, name, value):
    with pytest.raises(ValueError, match=rf"{place}: {name}={re.escape(str(value))} must be positive and finite.*; .+"):
        FACTORIES[place](**{name: value})


@pytest.mark.parametrize("place", FACTORIES)
def test_bounds_in_the_wrong_order_are_refused(place):
    with pytest.raises(ValueError, match=f"{place}: floor=2.0 exceeds ceiling=1.0; exchange them"):
        FACTORIES[place](floor=2.0, ceiling=1.0)


@pytest.mark.parametrize("place", FACTORIES)
@pytest.mark.parametrize("beta", [0.01, 3.0])
def test_a_first_beta_outside_the_bounds_is_refused(place, beta):
    with pytest.raises(ValueError, match=rf"{place}: beta={beta} is outside \[0.05, 1.0\]; move it or the bounds"):
        FACTORIES[place](beta, floor=0.05, ceiling=1.0)


@pytest.mark.parametrize("place", FACTORIES)
def test_a_first_beta_on_a_bound_is_accepted(place):
    for beta in (0.05, 1.0):
        controller = FACTORIES[place](beta, floor=0.05, ceiling=1.0)
        assert float(controller.beta(controller.init())) == pytest.approx(beta)


@pytest.mark.parametrize("beta", [-0.1, NAN, INF, 1e-50])
def test_a_constant_beta_is_zero_or_positive_in_float32(beta):
    with pytest.raises(ValueError, match=rf"constant: beta={beta} must be 0, or positive and finite.*0 switches"):
        constant(beta)


@pytest.mark.parametrize(
    "build", [lambda steps: linear_warmup(0.1, 0.01, steps), lambda s: tight_then_loose(1, 0.1, s)]
)
@pytest.mark.parametrize("steps", [0, -5, 2**31])
def test_schedules_of_no_length_are_refused(build, steps):
    with pytest.raises(ValueError, match=f"(linear_warmup|tight_then_loose): steps={steps} must be .*1 or more"):
        build(steps)


@pytest.mark.parametrize("steps", [0, -1])
def test_a_succession_needs_at_least_one_update_before_the_hand_over(steps):
    with pytest.raises(ValueError, match=f"then: steps={steps} must be a whole number of updates"):
        then(constant(0.1), steps, constant(0.2))


def test_schedules_in_the_wrong_direction_name_the_one_for_the_other():
    with pytest.raises(ValueError, match="linear_warmup: start=0.1 exceeds target=0.05; to fall use tight_then_loose"):
        linear_warmup(0.05, 0.1)
    with pytest.raises(ValueError, match="tight_then_loose: start=0.01 is below end=0.1; to rise use linear_warmup"):
        tight_then_loose(0.01, 0.1)


@pytest.mark.parametrize("value", [-0.1, 0, NAN, INF])
def test_schedules_end_with_a_positive_beta(value):
    with pytest.raises(ValueError, match=f"linear_warmup: target={value} must be positive"):
        linear_warmup(value)
    with pytest.raises(ValueError, match=f"tight_then_loose: end={value} must be positive"):
        tight_then_loose(0.1, value)


@pytest.mark.parametrize("value", [-0.1, NAN])
def test_a_warmup_does_not_start_below_zero(value):
    with pytest.raises(ValueError, match=f"linear_warmup: start={value} must be 0, or positive"):
        linear_warmup(0.1, value)


@pytest.mark.parametrize("place", FACTORIES)
def test_every_adaptive_controller_names_its_statistic(place):
    assert FACTORIES[place]().statistic == "nats_per_token"
    controller = FACTORIES[place](statistic="nats_per_sequence")
    assert controller.statistic == "nats_per_sequence"
    assert "0.5 nats per sequence" in controller.description


def test_a_mean_per_token_would_lower_the_beta_of_a_target_per_sequence():
    controller = proportional(0.1, 0.1, statistic="nats_per_sequence")
    wrong, right = (controller.update(controller.init(), jnp.float32(kl), 1).beta for kl in (0.01, 0.4))
    assert float(wrong) < 0.1 < float(right)


def test_the_statistic_of_a_succession_is_the_adaptive_ones():
    adaptive = proportional(0.1, 5.0, statistic="nats_per_sequence")
    assert then(tight_then_loose(), 500, adaptive).statistic == "nats_per_sequence"
    assert then(then(linear_warmup(0.1), 100, tight_then_loose()), 600, adaptive).statistic == "nats_per_sequence"
    assert then(adaptive, 10, constant(0.1)).statistic == "nats_per_sequence"


def test_two_adaptive_controllers_in_different_units_are_refused():
    one, other = proportional(0.1, 0.5), proportional(0.1, 5.0, statistic="nats_per_sequence")
    with pytest.raises(ValueError, match="fed nats_per_token and the other nats_per_sequence; state both targets"):
        then(one, 10, other)


@pytest.mark.parametrize(
    ("controller", "always_zero"),
    [
        (constant(0.0), True),
        (constant(0), True),
        (constant(0.1), False),
        (linear_warmup(0.1, 0.0), False),
        (proportional(0.1, 0.5), False),
        (then(constant(0.0), 10, constant(0.0)), True),
        (then(constant(0.0), 10, linear_warmup(0.1)), False),
        (then(linear_warmup(0.1), 10, constant(0.0)), False),
    ],
)
def test_a_controller_says_whether_beta_can_ever_be_other_than_zero(controller, always_zero):
    assert controller.always_zero is always_zero


def test_only_controllers_that_read_kl_are_adaptive():
    adaptive = proportional(0.1, 0.5)
    assert adaptive.adaptive
    assert then(constant(0.1), 3, adaptive).adaptive
    assert then(adaptive, 3, constant(0.1)).adaptive
    assert not then(constant(0.1), 3, linear_warmup(0.1)).adaptive


def test_descriptions_tell_the_rule_and_its_numbers():
    text = then(tight_then_loose(), 500, proportional_integral(0.01, 0.05, 100)).description
    assert text == (
        "beta 0.1 to 0.01 over 500 updates; after 500 updates proportional-integral, gains 0.1 and 0.01, horizon 100 "
        "updates, to a KL of 0.05 nats per token, from beta 0.01, within [1e-06, 10]"
    )
