"""Operations of traced programs."""

import jax
import jax.numpy as jnp

from grpo_jax.plan.operations import operations

X, W = jnp.ones((4, 8)), jnp.ones((8, 8))
ONE = 2 * 4 * 8 * 8


def count(function, *arguments, endless=1):
    return operations(jax.jit(function).trace(*arguments).jaxpr, endless)


def test_a_matrix_product_is_a_multiplication_and_an_addition_for_each_triple():
    assert count(lambda x, w: x @ w, X, W) == ONE
    assert count(lambda x: jnp.einsum("bij,bjk->bik", x, x), jnp.ones((3, 5, 5))) == 2 * 3 * 5**3


def test_a_scan_counts_once_per_step_and_nests():
    def layers(x, w):
        return jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, length=7)[0]

    assert count(layers, X, W) == 7 * ONE
    assert count(lambda x, w: jax.lax.map(lambda x: layers(x, w), jnp.stack([x] * 3)), X, W) == 21 * ONE


def test_what_the_backward_pass_computes_again_counts_again():
    def loss(w, x):
        step = lambda x, _: (jnp.tanh(x @ w), None)  # noqa: E731
        return jnp.sum(jax.lax.scan(step, x, length=7)[0])

    def saving(w, x):
        return jnp.sum(jax.lax.scan(jax.checkpoint(lambda x, _: (jnp.tanh(x @ w), None)), x, length=7)[0])

    assert count(jax.grad(loss), W, X) == 3 * 7 * ONE
    assert count(jax.grad(saving), W, X) == 4 * 7 * ONE


def test_a_loop_of_unknown_length_counts_as_often_as_is_said_and_a_choice_as_its_dearest():
    def until(x, w):
        return jax.lax.while_loop(lambda x: jnp.sum(x) < 9, lambda x: x @ w, x)

    assert count(until, X, W, endless=11) == 11 * ONE

    def either(x, w):
        return jax.lax.cond(jnp.sum(x) > 0, lambda x: x @ w @ w, lambda x: x @ w, x)

    assert count(either, X, W) == 2 * ONE
