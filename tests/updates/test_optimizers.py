import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from grpo_jax.updates import adam, adamw, guarded_step, trainable_only, warmed_up
from grpo_jax.updates.optimizers import require_trainable
from tests.updates.builders import assert_same

PARAMS = {"kernel": jnp.array([1.0, -2.0]), "bias": jnp.array(0.5)}
GRADIENT = {"kernel": jnp.array([3.0, 0.0]), "bias": jnp.array(4.0)}


def taken(optimizer, gradient=GRADIENT, loss=1.0, steps=1, params=PARAMS):
    opt_state = optimizer.init(params)
    for _ in range(steps):
        step = guarded_step(optimizer, params, opt_state, gradient, jnp.float32(loss))
        params, opt_state = step.params, step.opt_state
    return step


def test_the_rate_rises_linearly_and_then_stays():
    schedule = warmed_up(0.8, 4)
    np.testing.assert_allclose([schedule(n) for n in range(6)], [0.2, 0.4, 0.6, 0.8, 0.8, 0.8], rtol=1e-6)
    assert warmed_up(0.8, 0)(0) == warmed_up(0.8, 1)(0) == np.float32(0.8)


def test_the_first_step_of_adam_is_the_rate_along_each_sign():
    # 1 - b2 is exact in float32 for 0.5, not for 0.999.
    step = taken(adam(0.1, b2=0.5))
    np.testing.assert_allclose(step.params["kernel"], [0.9, -2.0], rtol=1e-6)
    np.testing.assert_allclose(step.params["bias"], 0.4, rtol=1e-6)
    assert step.gradient_norm == 5.0
    assert not step.rejected
    assert not step.idle


def test_two_steps_of_adam_are_those_of_the_paper():
    gradients, m, v, expected = [0.3, -0.1], 0.0, 0.0, 1.0
    optimizer = adam(0.1, warmup_steps=2, max_norm=math.inf, b1=0.8, b2=0.9, epsilon=1e-3)
    params, state = jnp.float32(1.0), optimizer.init(jnp.float32(1.0))
    for n, gradient in enumerate(gradients):
        m, v = 0.8 * m + 0.2 * gradient, 0.9 * v + 0.1 * gradient**2
        rate = 0.1 * (n + 1) / 2
        expected -= rate * m / (1 - 0.8 ** (n + 1)) / (math.sqrt(v / (1 - 0.9 ** (n + 1))) + 1e-3)
        params, state, *_ = guarded_step(optimizer, params, state, jnp.float32(gradient), jnp.float32(0.0))
    np.testing.assert_allclose(params, expected, rtol=1e-6)


def test_clipping_bounds_what_adam_remembers_and_the_norm_is_reported_before_it():
    step = taken(adam(0.1, max_norm=0.5, b1=0.0))
    moments = step.opt_state[1].mu
    np.testing.assert_allclose(optax.tree.norm(moments), 0.5, rtol=1e-6)
    assert step.gradient_norm == 5.0


def test_weight_decay_pulls_parameters_without_gradient_towards_zero():
    step = taken(adamw(0.1, weight_decay=0.01))
    np.testing.assert_allclose(step.params["kernel"][1], -2.0 * (1 - 0.1 * 0.01), rtol=1e-6)
    without, plain = taken(adamw(0.1, weight_decay=0.0)), taken(adam(0.1))
    assert_same(without.params, plain.params)


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_step_with_anything_not_finite_changes_nothing(bad, where):
    gradient = GRADIENT if where == "loss" else GRADIENT | {"bias": jnp.float32(bad)}
    optimizer = adamw(0.1)
    before = optimizer.init(PARAMS)
    step = guarded_step(optimizer, PARAMS, before, gradient, jnp.float32(bad if where == "loss" else 0.0))
    assert step.rejected
    assert_same((step.params, step.opt_state), (PARAMS, before))


def test_a_result_that_is_not_finite_is_rejected_though_the_gradient_was():
    step = taken(optax.sgd(3e38), gradient={"kernel": jnp.array([1.0, 1e3]), "bias": jnp.array(0.0)})
    assert step.rejected
    assert_same(step.params, PARAMS)


def test_a_gradient_of_exactly_zero_moves_nothing_though_there_is_momentum():
    optimizer = adamw(0.1)
    first = taken(optimizer)
    zeros = jax.tree.map(jnp.zeros_like, PARAMS)
    second = guarded_step(optimizer, first.params, first.opt_state, zeros, jnp.float32(0.0))
    assert second.idle
    assert not second.rejected
    assert_same((second.params, second.opt_state), (first.params, first.opt_state))


def test_a_step_takes_the_place_of_what_was_before_it():
    optimizer, params = adam(0.1), {str(number): jnp.ones((256, 256)) for number in range(8)}
    step = jax.jit(
        lambda params, opt_state, gradient: guarded_step(optimizer, params, opt_state, gradient, jnp.float32(1)),
        donate_argnums=(0, 1),
    )
    memory = step.lower(params, optimizer.init(params), params).compile().memory_analysis()
    size = sum(leaf.nbytes for leaf in params.values())
    assert memory.alias_size_in_bytes >= 3 * size, "parameters and both moments"
    assert memory.temp_size_in_bytes < 0.5 * size, "no second gradient, parameters or moments"


def test_only_trainable_parameters_move_and_count_for_clipping():
    step = taken(trainable_only(adam(0.1, max_norm=0.5, b1=0.0), lambda path: path == "kernel"))
    np.testing.assert_allclose(step.params["kernel"], [0.9, -2.0], rtol=1e-6)
    assert step.params["bias"] == 0.5
    moments = [leaf for leaf in jax.tree.leaves(step.opt_state) if leaf.shape == (2,)]
    np.testing.assert_allclose(moments[0], [0.5, 0.0], rtol=1e-6)


def test_no_trainable_parameters_is_an_error():
    with pytest.raises(ValueError, match="no trainable parameters: is_trainable is False for every path"):
        trainable_only(adam(0.1), lambda path: path == "Kernel").init(PARAMS)
    for empty in ({}, {"a": None}, {"a": jnp.zeros((0, 3))}):
        with pytest.raises(ValueError, match="no trainable parameters"):
            require_trainable(empty)
    with pytest.raises(ValueError, match=r"\['count'\] has dtype int32, which no gradient can move"):
        require_trainable(PARAMS | {"count": jnp.int32(3)})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: adam(0.0), "learning_rate must be positive and finite, got 0.0"),
        (lambda: adam(-1e-6), "learning_rate must be positive"),
        (lambda: adam(math.nan), "learning_rate must be positive"),
        (lambda: adam(math.inf), "learning_rate must be positive"),
        (lambda: adam(0.1, warmup_steps=-1), "steps must not be negative, got -1"),
        (lambda: adam(0.1, max_norm=0.0), "max_norm must be positive, got 0.0"),
        (lambda: adam(0.1, max_norm=math.nan), "max_norm must be positive"),
        (lambda: adam(0.1, b1=1.0), r"b1 must lie in \[0, 1\), got 1.0"),
        (lambda: adamw(0.1, b2=-0.1), r"b2 must lie in \[0, 1\), got -0.1"),
        (lambda: adamw(0.1, epsilon=0.0), "epsilon must be positive"),
        (lambda: adamw(0.1, weight_decay=-0.1), "weight_decay must be 0 or positive, got -0.1"),
    ],
)
def test_settings_out_of_range_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
