"""The check that dropped groups have no gradient: it holds, it sees a planted one, and it works inside jit."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.losses import Objective, assert_degenerate_gradients_are_zero, log_prob_gradient
from tests.losses.composed import BETA, OBJECTIVES, example, result_of


class Leaky(Objective):
    """An objective that adds the log-probs of every token to its loss, those of dropped groups too."""

    def __call__(self, scores, batch, beta):
        loss, metrics = super().__call__(scores, batch, beta)
        return loss + 1e-12 * jnp.sum(scores.log_probs), metrics


class LeakyEntropy(Objective):
    """An objective that gives dropped groups an entropy bonus."""

    def __call__(self, scores, batch, beta):
        loss, metrics = super().__call__(scores, batch, beta)
        return loss - 1e-12 * jnp.sum(scores.entropy), metrics


def check(objective):
    def checked(scores, batch):
        assert_degenerate_gradients_are_zero(objective, scores, batch, BETA)
        return jnp.zeros(())

    return checked


def leaking(kind, name):
    return kind(**vars(OBJECTIVES[name]))


def test_a_planted_gradient_is_found():
    with pytest.raises(AssertionError):
        check(leaking(Leaky, "grpo"))(*example("grpo"))


def test_inside_jit_the_check_holds():
    for name in ("dapo", "rloo"):
        chex.chexify(jax.jit(check(OBJECTIVES[name])), async_check=False)(*example(name))


@pytest.mark.parametrize(("kind", "name"), [(Leaky, "dapo"), (LeakyEntropy, "rloo")])
def test_inside_jit_a_planted_gradient_is_found(kind, name):
    with pytest.raises(AssertionError):
        chex.chexify(jax.jit(check(leaking(kind, name))), async_check=False)(*example(name))


def test_the_gradient_of_the_log_probs_is_that_of_the_objective():
    scores, batch = example("grpo")
    found = log_prob_gradient(OBJECTIVES["grpo"], scores, batch, BETA)
    np.testing.assert_allclose(found, result_of("grpo")[1].log_probs, rtol=1e-5, atol=1e-7)
