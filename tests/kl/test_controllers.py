"""Controllers of beta: worked values, loops as oracles, bounds, directions, recovery and succession."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax.kl.controllers import (
    clipped_proportional,
    constant,
    linear_warmup,
    proportional,
    proportional_integral,
    then,
    tight_then_loose,
)
from tests.references import controllers as reference

UPDATES, SAMPLES = 40, 64.0
ADAPTIVE = {
    "proportional": proportional(0.05, 0.5, 0.3, floor=0.001, ceiling=2.0),
    "clipped_proportional": clipped_proportional(0.05, 0.5, 256, floor=0.001, ceiling=2.0),
    "proportional_integral": proportional_integral(0.05, 0.5, 2, floor=0.001, ceiling=2.0),
}
SCHEDULES = {
    "constant": constant(0.05),
    "linear_warmup": linear_warmup(0.05, 0.001, 7),
    "tight_then_loose": tight_then_loose(0.1, 0.01, 7),
}
SUCCESSIONS = {f"then {name}": then(SCHEDULES["tight_then_loose"], 9, ADAPTIVE[name]) for name in ADAPTIVE}
ALL = ADAPTIVE | SCHEDULES | SUCCESSIONS
ORACLES = {
    "proportional": lambda kls: reference.proportional(0.05, 0.5, 0.3, 0.001, 2.0, kls),
    "clipped_proportional": lambda kls: reference.clipped_proportional(0.05, 0.5, 256, 0.001, 2.0, kls, SAMPLES),
    "proportional_integral": lambda kls: reference.proportional_integral(0.05, 0.5, 2, 0.001, 2.0, kls),
}


def trace_of(controller):
    """The betas before and after each update, as one compiled scan over the measured KLs."""

    def step(state, kl):
        state = controller.update(state, kl, jnp.float32(SAMPLES))
        return state, controller.beta(state)

    def trace(kls):
        state = controller.init()
        return jnp.concatenate([controller.beta(state)[None], jax.lax.scan(step, state, kls)[1]])

    return jax.jit(trace)


TRACES = {name: trace_of(controller) for name, controller in ALL.items()}
kl_values = st.one_of(
    st.floats(-1, 5, width=32), st.sampled_from([0.0, 0.5, 1e30, -1e30, 3.4e38, float("nan"), float("inf")])
)
kl_traces = st.lists(kl_values, min_size=UPDATES, max_size=UPDATES).map(np.float32)


def after(controller, *kls, samples=1):
    """The beta after updates with these KLs."""
    state = controller.init()
    for kl in kls:
        state = controller.update(state, jnp.float32(kl), jnp.int32(samples))
    return float(controller.beta(state))


def test_clipped_proportional_has_the_published_value():
    assert after(clipped_proportional(0.2, 0.1, 100), 0.2, samples=10) == pytest.approx(0.204)


def test_clipped_proportional_counts_completions_and_not_updates():
    controller = clipped_proportional(0.2, 0.1, 100)
    assert after(controller, 0.2, samples=20) == pytest.approx(0.208)
    assert after(controller, 0.2, 0.2, samples=10) == pytest.approx(0.204 * 1.02)


def test_a_batch_far_larger_than_the_horizon_does_not_turn_beta_negative():
    assert after(clipped_proportional(0.2, 0.1, 100), 0.0, samples=1000) == pytest.approx(1e-6)
    assert after(clipped_proportional(0.2, 0.1, 100, floor=0.01), 0.0, samples=1000) == pytest.approx(0.01)


def test_beta_leaves_the_floor_again():
    controller = clipped_proportional(0.2, 0.1, 100)
    assert after(controller, 0.0, 1.0, samples=1000) == pytest.approx(3e-6)


def test_clipped_proportional_clips_the_relative_error_to_a_fifth():
    assert after(clipped_proportional(1.0, 0.1, 10), 1e6) == pytest.approx(1.02)
    assert after(clipped_proportional(1.0, 0.1, 10), 0.0) == pytest.approx(0.98)
    assert after(clipped_proportional(1.0, 0.1, 10), 0.11) == pytest.approx(1.01)


def test_proportional_adds_alpha_times_the_error_in_nats():
    assert after(proportional(0.1, 0.5, 0.2), 1.5) == pytest.approx(0.12)
    assert after(proportional(0.1, 0.5, 0.3), 0.0) == pytest.approx(0.1 * 0.85)
    assert after(proportional(0.1, 0.5, 0.1), 1.5, 0.5) == pytest.approx(0.11)


def test_a_gain_of_a_fifth_suits_a_kl_of_one_nat_and_another_target_needs_another_gain():
    assert after(proportional(0.1, 1.0, 0.2), 2.0) == pytest.approx(0.12)  # a fifth up at twice the target,
    assert after(proportional(0.1, 1.0, 0.2), 0.0) == pytest.approx(0.08)  # and a fifth down at no KL at all
    assert after(proportional(0.1, 5.0, 0.2), 10.0) == pytest.approx(0.2)
    assert after(proportional(0.1, 5.0, 0.2), 0.0) == pytest.approx(1e-6)
    assert after(proportional(0.1, 0.05, 0.2), 0.1) == pytest.approx(0.101)
    assert after(proportional(0.1, 0.05, 0.2), *[0.1] * 69) < 0.2 < after(proportional(0.1, 0.05, 0.2), *[0.1] * 70)
    assert after(proportional(0.1, 0.05, 0.2 / 0.05), 0.1) == pytest.approx(0.12)


def test_proportional_never_turns_negative_however_far_kl_is_below_a_large_target():
    assert after(proportional(0.1, 8.0, 0.3, statistic="nats_per_sequence"), 0.0) == pytest.approx(1e-6)


def test_proportional_integral_adds_both_terms_of_the_article():
    controller = proportional_integral(0.1, 0.5, 100)
    first = 0.1 * (1 + 0.1 * 0.25 / 0.5 + 0.01 * 0.25 / (100 * 0.5))
    second = first * (1 + 0.1 * -0.1 / 0.5 + 0.01 * 0.15 / (100 * 0.5))
    assert after(controller, 0.75) == pytest.approx(first, rel=1e-6)
    assert after(controller, 0.75, 0.4) == pytest.approx(second, rel=1e-6)


@pytest.mark.parametrize(("kl", "bound"), [(1e6, 10.0), (0.0, 1e-6)])
def test_proportional_integral_stays_within_the_articles_bounds(kl, bound):
    assert after(proportional_integral(0.1, 0.05, 100), *[kl] * 150) == pytest.approx(bound)


@pytest.mark.parametrize("excursion", [20, 2000])
@pytest.mark.parametrize("horizon", [2, 1000])
def test_after_an_excursion_of_any_length_beta_recovers_in_a_bounded_number_of_steps(excursion, horizon):
    controller = proportional_integral(0.05, 0.5, horizon, ceiling=1.0)
    recovery = int(np.ceil(np.log(1.0 / 0.05) / -np.log(0.95)))
    betas = trace_of(controller)(np.float32([5.0] * excursion + [0.0] * recovery))
    assert float(betas[excursion]) == 1.0
    assert np.all(np.diff(betas[excursion:]) < 0)
    assert float(betas[-1]) <= 0.05


def test_the_accumulated_error_stays_within_half_the_proportional_gain():
    controller = proportional_integral(0.05, 0.5, 3)
    state = controller.init()
    for _ in range(40):
        state = jax.jit(controller.update)(state, jnp.float32(0.0), 1)
        state = state._replace(beta=jnp.float32(0.05))
    assert float(state.integral) == pytest.approx(-5 * 3 * 0.5)


@pytest.mark.parametrize(("beta", "kl", "sign"), [(1.0, 2.0, -1), (0.001, 0.1, 1)])
def test_an_error_that_pushes_a_resting_beta_outward_is_not_accumulated(beta, kl, sign):
    controller = proportional_integral(beta, 0.5, 100, floor=0.001, ceiling=1.0)
    outward = controller.update(controller.init(), jnp.float32(kl), 1)
    assert float(outward.integral) == 0
    inward = controller.update(controller.init(), jnp.float32(1.0 - kl if kl < 0.5 else 0.25), 1)
    assert np.sign(float(inward.integral)) == sign


@pytest.mark.parametrize("name", ADAPTIVE)
@given(kl_traces)
def test_betas_equal_those_of_a_loop(name, kls):
    np.testing.assert_allclose(TRACES[name](kls), ORACLES[name](kls.tolist()), rtol=2e-4)


@pytest.mark.parametrize("name", ALL)
@given(kl_traces)
def test_beta_stays_within_its_bounds_whatever_is_measured(name, kls):
    betas = np.asarray(TRACES[name](kls))
    assert np.all(np.isfinite(betas))
    assert np.all((betas >= np.float32(0.001)) & (betas <= np.float32(2.0)))


@pytest.mark.parametrize("name", ADAPTIVE)
@given(st.floats(-1, 5, width=32), st.floats(0.002, 1.0))
def test_kl_above_the_target_raises_beta_and_below_lowers_it(name, kl, beta):
    controller = ADAPTIVE[name]
    start = UPDATE[name, "start"](controller.init(), jnp.float32(beta))
    change = float(controller.beta(UPDATE[name, "update"](start, kl, SAMPLES))) - float(controller.beta(start))
    if abs(kl - 0.5) > 1e-3:
        assert np.sign(change) == np.sign(kl - 0.5)


UPDATE = {(name, "update"): jax.jit(controller.update) for name, controller in ALL.items()}
UPDATE |= {(name, "start"): jax.jit(controller.start_from) for name, controller in ADAPTIVE.items()}


@pytest.mark.parametrize("name", ADAPTIVE)
@pytest.mark.parametrize("kl", [float("nan"), float("inf"), -float("inf")])
def test_a_kl_that_is_not_finite_leaves_the_state_unchanged(name, kl):
    state = UPDATE[name, "update"](ADAPTIVE[name].init(), 0.7, SAMPLES)
    after_it = UPDATE[name, "update"](state, kl, SAMPLES)
    jax.tree.map(np.testing.assert_array_equal, after_it, state)


@pytest.mark.parametrize("name", [*SCHEDULES, *SUCCESSIONS])
def test_steps_are_counted_whether_or_not_kl_is_finite(name):
    finite, broken = np.full(UPDATES, 0.5, np.float32), np.full(UPDATES, np.nan, np.float32)
    np.testing.assert_allclose(TRACES[name](broken), TRACES[name](finite), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "start", "end"),
    [("constant", 0.05, 0.05), ("linear_warmup", 0.001, 0.05), ("tight_then_loose", 0.1, 0.01)],
)
def test_schedules_run_straight_from_start_to_end_and_then_stay(name, start, end):
    betas = TRACES[name](np.zeros(UPDATES, np.float32))
    np.testing.assert_allclose(betas, reference.line(start, end, 7, UPDATES), rtol=1e-5)
    np.testing.assert_array_equal(betas[7:], np.float32(end))


def test_the_articles_schedules_are_the_defaults():
    warmup, loosening = linear_warmup(0.05), tight_then_loose()
    for controller, start, middle, end, steps in (
        (warmup, 0.001, 0.0255, 0.05, 100),
        (loosening, 0.1, 0.055, 0.01, 500),
    ):
        betas = np.asarray(trace_of(controller)(np.zeros(steps + 1, np.float32)))
        assert betas[[0, steps // 2, steps, steps + 1]] == pytest.approx([start, middle, end, end], rel=1e-5)


def test_a_schedule_does_not_start_again_after_two_thousand_million_updates():
    controller = linear_warmup(0.05)
    state = controller.init()._replace(step=jnp.int32(2**31 - 1))
    assert float(controller.beta(controller.update(state, 0.0, 1))) == pytest.approx(0.05)


@pytest.mark.parametrize("name", ADAPTIVE)
@given(kl_traces)
def test_the_second_controller_starts_from_the_last_beta_of_the_first(name, kls):
    betas = np.asarray(TRACES[f"then {name}"](kls))
    np.testing.assert_allclose(betas[:10], reference.line(0.1, 0.01, 7, 9), rtol=1e-5)
    handed = then(constant(0.01), 1, ADAPTIVE[name])
    expected = np.asarray(SUCCEEDED.setdefault(name, trace_of(handed))(np.concatenate([kls[:1], kls[9:], kls[:8]])))
    np.testing.assert_allclose(betas[9:], expected[1 : UPDATES - 7], rtol=1e-5)


SUCCEEDED = {}


def test_the_handed_over_beta_is_brought_within_the_bounds_of_the_second():
    assert after(then(constant(5.0), 1, proportional(0.1, 0.5, ceiling=1.0)), 0.5) == 1.0
    assert after(then(constant(0.0), 1, proportional(0.1, 0.5, floor=0.01)), 0.5) == pytest.approx(0.01)


def test_an_error_accumulated_before_the_hand_over_is_forgotten():
    controller = then(proportional_integral(0.1, 0.5, 1), 3, proportional_integral(0.1, 0.5, 1))
    before, handed = after(controller, 2.0, 2.0), after(controller, 2.0, 2.0, 0.5)
    assert before < handed, "the first still acts on what it accumulated"
    assert after(controller, 2.0, 2.0, 0.5, 0.5) == pytest.approx(handed)


def test_a_beta_handed_over_comes_with_nothing_accumulated():
    controller = proportional_integral(0.1, 0.5, 1)
    state = controller.update(controller.init(), jnp.float32(2.0), 1)
    assert float(state.integral) == 1.5
    handed = controller.start_from(state, jnp.float32(0.3))
    assert (float(handed.beta), float(handed.integral)) == (pytest.approx(0.3), 0)


def test_a_succession_hands_the_beta_it_is_given_to_its_first_controller():
    inner = then(proportional(0.1, 0.5, 0.2), 2, constant(0.7))
    assert after(then(constant(0.3), 1, inner), 0.5) == pytest.approx(0.3)
    assert after(then(constant(0.3), 1, inner), 0.5, 1.5) == pytest.approx(0.36)
    assert after(then(constant(0.3), 1, inner), 0.5, 1.5, 1.5) == pytest.approx(0.7)


def test_a_schedule_may_follow_a_schedule():
    controller = then(linear_warmup(0.1, 0.0, 4), 4, tight_then_loose(0.1, 0.05, 2))
    betas = trace_of(controller)(np.zeros(8, np.float32))
    np.testing.assert_allclose(betas, [0, 0.025, 0.05, 0.075, 0.1, 0.075, 0.05, 0.05, 0.05], rtol=1e-5)


@pytest.mark.parametrize("nest_first", [True, False])
def test_successions_may_be_nested_either_way(nest_first):
    rise, fall, adapt = linear_warmup(0.1, 0.02, 4), tight_then_loose(0.1, 0.05, 2), proportional(0.3, 1.0, 0.1)
    nested = then(then(rise, 4, fall), 7, adapt) if nest_first else then(rise, 4, then(fall, 3, adapt))
    betas = trace_of(nested)(np.full(9, 2.0, np.float32))
    expected = [0.02, 0.04, 0.06, 0.08, 0.1, 0.075, 0.05, 0.05, 0.055, 0.0605]
    np.testing.assert_allclose(betas, expected, rtol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_compiled_and_eager_updates_agree_and_keep_shapes_and_dtypes(name):
    controller = ALL[name]
    state = controller.init()
    eager, compiled = controller.update(state, 0.7, 8), UPDATE[name, "update"](state, 0.7, 8)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), eager, compiled)
    described = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (state, eager, compiled)]
    assert described[0] == described[1] == described[2]
    assert {leaf.dtype for leaf in jax.tree.leaves(state)} <= {jnp.dtype("float32"), jnp.dtype("int32")}
    assert controller.beta(state).dtype == jnp.float32


@pytest.mark.parametrize("name", ALL)
def test_a_change_of_kl_or_samples_never_compiles_again(name):
    controller = ALL[name]
    update = jax.jit(controller.update)
    state = update(controller.init(), jnp.float32(0.1), jnp.int32(4))
    before = update._cache_size()
    update(update(state, jnp.float32(7.0), jnp.int32(9)), jnp.float32(0.2), jnp.int32(1))
    assert update._cache_size() == before


def test_many_controllers_may_be_mapped():
    controller = ADAPTIVE["proportional"]
    kls = jnp.array([0.1, 0.5, 2.0])
    states = jax.vmap(lambda kl: controller.update(controller.init(), kl, 1))(kls)
    np.testing.assert_allclose(states.beta, [after(controller, kl) for kl in kls], rtol=1e-6)
