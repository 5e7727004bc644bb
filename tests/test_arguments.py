"""A factory passed uncalled is said to be one, where it is passed and not where it is used."""

import subprocess
import sys

import pytest

from grpo_jax.arguments import check_built, check_takes
from grpo_jax.losses import Reduction, mismatch, reductions

# In a process of its own: the tests' own check of signatures would object before the library does.
UNCALLED = """
import jax.numpy as jnp
import optax

import grpo_jax as gj
from grpo_jax import updates

BUILT = {
    "advantage": gj.advantages.centred(),
    "surrogate": gj.surrogates.clipped(),
    "reduction": gj.reductions.token_mean(),
}
built = gj.objective(**BUILT)
controllers = gj.kl.controllers
score = lambda *arguments, **options: None
learner = lambda **parts: updates.learner(
    **{"score": score, "objective": built, "optimizer": optax.sgd(1.0), "controller": controllers.constant(0),
       "reference": updates.frozen(), **parts}
)
CASES = {
    "objective: advantage is the function centred": lambda: gj.objective(
        **BUILT | {"advantage": gj.advantages.centred}
    ),
    "objective: surrogate is the function clipped": lambda: gj.objective(
        **BUILT | {"surrogate": gj.surrogates.clipped}
    ),
    "objective: reduction is the function token_mean": lambda: gj.objective(
        **BUILT | {"reduction": gj.reductions.token_mean}
    ),
    "objective: degenerate is the function keep": lambda: gj.objective(**BUILT, degenerate=gj.degenerate.keep),
    "objective: kl is the function penalty": lambda: gj.objective(**BUILT, kl=gj.kl.penalty),
    "objective: kl is the function k3": lambda: gj.objective(**BUILT, kl=gj.kl.k3),
    "objective: mismatch is the function masked_token": lambda: gj.objective(
        **BUILT, mismatch=gj.mismatch.masked_token
    ),
    "objective: off_policy is the function off_policy_sequences": lambda: gj.objective(
        **BUILT, off_policy=gj.mismatch.off_policy_sequences
    ),
    "objective: degenerate is 'keep', not a Degenerate": lambda: gj.objective(**BUILT, degenerate="keep"),
    "kl.penalty: importance is the function causal": lambda: gj.kl.penalty(
        gj.kl.k3, "loss", importance=gj.kl.importance.causal
    ),
    "kl.full_vocabulary: importance is the function causal_weights": lambda: gj.kl.full_vocabulary(
        "loss", importance=gj.kl.causal_weights
    ),
    "weighted_sum: inner is the function leave_one_out": lambda: gj.advantages.weighted_sum(
        (1, 2), gj.advantages.leave_one_out
    ),
    "then: adaptive is the function proportional": lambda: controllers.then(
        controllers.constant(1), 3, controllers.proportional
    ),
    "learner: controller is the function constant": lambda: learner(controller=controllers.constant),
    "learner: reference is the function frozen": lambda: learner(reference=updates.frozen),
    "learner: optimizer is the function adam": lambda: learner(optimizer=updates.adam),
    "learner: objective is the function objective": lambda: learner(objective=gj.objective),
}
for message, build in CASES.items():
    try:
        build()
    except TypeError as error:
        assert str(error).startswith(message), (message, error)
        assert "call it" in str(error) or "by its factory" in str(error), error
    else:
        raise AssertionError(f"accepted: {message}")
learner()
print(len(CASES), "said")
"""


def test_every_place_that_takes_a_part_says_that_a_factory_is_not_one():
    done = subprocess.run([sys.executable, "-c", UNCALLED], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "17 said\n"), done.stderr[-2000:]


def test_what_is_built_or_absent_is_accepted_and_anything_else_named():
    check_built("here", Reduction, reduction=reductions.token_mean(), other=None)
    check_takes("here", ("old", "sampler", "mask"), rule=mismatch.truncated_token(), other=None)
    with pytest.raises(
        TypeError, match=r"^here: rule is the function token_mean, not the Reduction that .*token_mean\("
    ):
        check_built("here", Reduction, rule=reductions.token_mean)
    with pytest.raises(TypeError, match="^here: rule is 3, not a Reduction; build one by its factory$"):
        check_built("here", Reduction, rule=3)
    with pytest.raises(TypeError, match=r"does not take \(old, sampler, mask\); .* call it: rule=truncated_token\("):
        check_takes("here", ("old", "sampler", "mask"), rule=mismatch.truncated_token)
