"""The compiled steps: what they refuse, what they compute, and that the devices do not matter."""

import re
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import advantages, kl
from grpo_jax.components import build
from grpo_jax.experience import Collector, Experience
from grpo_jax.losses import Objective, degenerate, objective, reductions, surrogates
from grpo_jax.models import position_tabular
from grpo_jax.placement import score_with
from grpo_jax.plan.hlo import traffic
from grpo_jax.program import abstract_arguments, compile_program
from grpo_jax.rollouts import sampler
from grpo_jax.statistics import Mean
from grpo_jax.types import Batch, Prompts, Rollout
from grpo_jax.updates import frozen, reference_scores
from tests.runs import TINY, compiled
from tests.test_every_field import changed

KEY = jax.random.key(3)


class Step(NamedTuple):
    """A fresh policy, its experience, and what one update makes of it."""

    before: Any
    found: Experience
    after: Any
    metrics: dict


def test_one_temperature_divides_the_logits_of_sampler_policy_and_reference():
    """Logits (2, 0) at .6 give the first token a log-probability of -.035052 whoever asks, not -.126928 as at 1."""
    policy, params = position_tabular(2, 1), {"logits": jnp.array([[[2.0, 0.0]]])}
    config = replace(TINY, rollout=replace(TINY.rollout, temperature=0.6))
    generate = sampler(policy, build(config).strategy, 8, 1, (), 0)
    rollout = generate(params, Prompts(jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), bool)), key=KEY)
    score = score_with(policy.score, lambda base, params: params, config.rollout.temperature, None)
    batch = Batch(rollout.mask, jnp.zeros((1, 8)))
    known = (score(params, rollout).log_probs, reference_scores(score, frozen())(params, rollout, batch))
    for log_probs in (rollout.log_probs, *known):
        np.testing.assert_allclose(log_probs[rollout.tokens == 0], -0.035052, atol=1e-6)
    assert np.any(rollout.tokens == 0)
    # over the vocabulary: (2 sigmoid(2 / .6) - 1) (2 / .6) nats from the logits (0, 2)
    both = score(params, rollout, ref_params={"logits": 2 - params["logits"]})
    np.testing.assert_allclose(both.full_kl, 3.103700, rtol=1e-5)


def stepped(program, before, found=None, groups=8):
    """One update of a policy, from experience of its own where none is given."""
    params = placed_like(program, before)
    if found is None:
        collector = Collector(program.parts, program.generate, groups, program.rows, TINY.rollout.group_size, 0)
        found = collector.collect(params, 0, key=KEY)
    state, metrics = program.update(program.state(params, key=KEY), *program.place((found.rollout, found.batch)))
    return Step(before, found, jax.device_get(state.params), jax.device_get(metrics))


@pytest.fixture(scope="module")
def one_device():
    program = compiled(TINY)
    return stepped(program, jax.device_get(program.initial(key=KEY)))


def assert_near(one, other, rtol=1e-4, atol=1e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), one, other)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rollout.group_size": 1}, "rollout.group_size is 1: with one completion there is nothing to compare it"),
        ({"rollout.group_size": 0}, "rollout.group_size is 0"),
        ({"rollout.prompts": 0}, "rollout.prompts is 0; give at least 1"),
        ({"rollout.max_tokens": 0}, "rollout.max_tokens is 0; give at least 1"),
        ({"rollout.resample_rounds": -1}, "rollout.resample_rounds is -1; give at least 0"),
        ({"rollout.slots": 0}, "rollout.slots is 0; give at least 1 and fewer than the 32 completions"),
        ({"rollout.slots": 32}, "rollout.slots is 32; give at least 1 and fewer than the 32 completions"),
        ({"beta.value": -1.0}, "beta=-1.0"),
        ({"objective.kl": "none"}, "beta.value=0.02 has no effect with objective.kl=none"),
        ({"reference.kind": "ema", "beta.value": 0.0}, "reference.kind=ema has no effect with beta.value=0"),
        ({"task.digits": [3, 2]}, "empty task"),
        ({"warm_start.steps": -1}, "warm_start.steps is -1"),
        ({"warm_start.batch": 0}, "warm_start.batch is 0"),
        ({"warm_start.check_every": 0}, "warm_start.check_every is 0"),
        ({"warm_start.learning_rate": 0.0}, "warm_start.learning_rate is 0.0"),
        ({"warm_start.target": 0.0}, "warm_start.target is 0.0"),
        ({"warm_start.target": 1.1}, "warm_start.target is 1.1"),
        ({"evaluation.examples": 0}, "evaluation.examples is 0"),
        ({"evaluation.every": -1}, "evaluation.every is -1"),
        ({"update.max_rejected": 0}, "update.max_rejected is 0"),
        ({"update.micro_batches": 0}, "micro_batches must be at least 1, got 0"),
        ({"update.updates_per_rollout": 0}, "updates_per_rollout must be at least 1, got 0"),
        ({"steps": 0}, "steps is 0; give at least 1"),
        ({"seed": -1}, "seed is -1; give at least 0"),
        ({"checkpoint_every": 0}, "checkpoint_every is 0"),
        ({"keep_checkpoints": 0}, "keep_checkpoints is 0"),
        ({"keep_best": -1}, "keep_best is -1; give at least 0"),
        ({"keep_best": 1, "evaluation.every": 0}, "keep_best is 1, but no step is evaluated"),
        ({"keep_every": -2}, "keep_every is -2; give at least 0"),
        ({"keep_every": 3}, "keep_every is 3, but there is a checkpoint every 2 steps"),
        ({"gradient_share_every": -1}, "gradient_share_every is -1"),
        ({"certify_every": -1}, "certify_every is -1; give at least 0"),
        ({"certify_every": 1, "beta.value": 0.0}, "certify_every has no effect, since the objective has no KL term"),
        ({"certify_every": 1, "reference.kind": "behaviour"}, "certify_every needs the parameters of a reference"),
        ({"certify_every": 1, "rollout.prompts": 2}, "rollout.prompts is 2; give at least 3"),
        ({"mesh": "data=3"}, "mesh 'data=3' needs 3 devices, but there are 8"),
        ({"mesh": "data=4,fsdp=-1,tensor=3"}, "mesh 'data=4,fsdp=-1,tensor=3': 8 devices do not divide by 12"),
        ({"mesh": "rows=8"}, "unknown axis 'rows'"),
        ({"rollout.layout": "data=3"}, "rollout.layout: mesh 'data=3' needs 3 devices, but there are 8"),
        ({"rollout.layout": "data=4", "rollout.mesh": "data=4"}, "leave one of them out"),
        ({"objective.kl": "full", "reference.kind": "behaviour"}, "needs a reference policy, not behaviour()"),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_anything_is_computed(values, message, monkeypatch):
    monkeypatch.setattr(jax, "jit", lambda *_, **__: pytest.fail("compiled something"))
    with pytest.raises(ValueError, match=re.escape(message)):
        compile_program(changed(TINY, values))


def test_beta_zero_stores_no_reference_and_computes_none():
    without, regular = compile_program(changed(TINY, {"beta.value": 0.0})), compile_program(TINY)
    assert without.shapes.ref_params is None
    assert jax.tree.map(jnp.shape, regular.shapes.ref_params) == jax.tree.map(jnp.shape, regular.shapes.params)
    shape = (regular.rows, 4, 3)
    mask, width = jnp.ones(shape, bool), (regular.rows, regular.parts.task.max_prompt_tokens)
    prompts = Prompts(jnp.zeros(width, jnp.int32), jnp.ones(width, bool))
    rollout = Rollout(prompts, jnp.zeros(shape, jnp.int32), mask, jnp.zeros(shape), mask[..., 0])
    batch = Batch(mask, jnp.zeros(shape[:2]), mask[..., 0])

    def products(function, *arguments):
        return str(jax.make_jaxpr(function)(*arguments)).count("dot_general")

    forward = products(lambda params: regular.score(params, rollout).log_probs, regular.shapes.params)
    with_reference = products(regular.update, regular.shapes, rollout, batch)
    assert with_reference - products(without.update, without.shapes, rollout, batch) == forward > 0


@pytest.mark.parametrize(
    "values",
    [
        {"mesh": "data=8"},
        {"mesh": "data=4,fsdp=2", "rollout.slots": 16},
        {"mesh": "fsdp=8", "rollout.layout": "data=-1,tensor=2"},
    ],
)
def test_eight_devices_sample_and_learn_what_one_does(values, one_device):
    program = compiled(changed(TINY, values), devices=8)
    assert len(program.shapes.params["embedding"].sharding.device_set) == 8
    step = stepped(program, one_device.before)
    np.testing.assert_array_equal(step.found.rollout.tokens, one_device.found.rollout.tokens)
    np.testing.assert_array_equal(step.found.batch.rewards, one_device.found.batch.rewards)
    assert step.metrics.keys() == one_device.metrics.keys()
    assert_near(step.metrics, one_device.metrics)
    # Adam divides by the gradient's size, so where that is rounding the step may have either sign.
    assert_near(step.after, one_device.after, atol=2 * TINY.update.learning_rate / TINY.update.warmup_steps)
    assert np.abs(step.after["embedding"] - step.before["embedding"]).max() > 0


def test_a_layout_of_its_own_gathers_weights_once_for_all_tokens_and_rounds_only_what_is_rounded_anyway():
    spread = changed(TINY, {"mesh": "fsdp=2", "model.dtype": "bfloat16"})
    found, moved = {}, {}
    for layout in (None, "data=2"):
        program = compiled(changed(spread, {"rollout.layout": layout}), devices=2)
        shapes = program.shapes.params, abstract_arguments(program, 4).prompts, jax.eval_shape(lambda: KEY)
        text = program.generate.compiled.trace(*shapes).lower().compile().as_text()
        moved[layout] = sum(kind.sent for kind in traffic(text, 3).collectives.values())
        collector = Collector(program.parts, program.generate, 8, program.rows, TINY.rollout.group_size, 0)
        params = jax.tree.map(lambda leaf: leaf + 0.01, program.initial(key=KEY))  # scales that bfloat16 would round
        found[layout] = collector.collect(params, 0, key=KEY).rollout
    assert moved["data=2"] < moved[None] / 2
    np.testing.assert_array_equal(found[None].tokens, found["data=2"].tokens)
    np.testing.assert_allclose(found[None].log_probs, found["data=2"].log_probs, rtol=1e-6)


def test_prompts_that_do_not_fit_the_mesh_are_padded_and_change_nothing(one_device):
    unpadded, padded = compiled(changed(TINY, {"rollout.prompts": 6})), compiled(TINY)
    assert (unpadded.rows, padded.rows) == (6, 8)
    step = stepped(padded, one_device.before, groups=6)
    found = step.found
    assert found.rollout.tokens.shape[0] == 8
    assert not found.batch.valid[6:].any()
    assert not found.rollout.mask[6:].any()
    np.testing.assert_array_equal(found.rollout.tokens[:6], one_device.found.rollout.tokens[:6])
    existing = found._replace(**jax.tree.map(lambda leaf: leaf[:6], {"rollout": found.rollout, "batch": found.batch}))
    assert_near(step.metrics, stepped(unpadded, one_device.before, existing).metrics)
    assert compile_program(changed(TINY, {"rollout.prompts": 6, "mesh": "data=8"})).rows == 8
    assert (
        compile_program(changed(TINY, {"rollout.prompts": 9, "mesh": "data=8", "update.micro_batches": 2})).rows == 16
    )


def test_micro_batches_change_nothing_but_rounding(one_device):
    program = compiled(changed(TINY, {"update.micro_batches": 2}))
    assert_near(stepped(program, one_device.before, one_device.found).metrics, one_device.metrics)


@pytest.mark.parametrize(
    "mesh", ["", pytest.param("data=4,fsdp=2", marks=pytest.mark.slow)], ids=lambda mesh: mesh or "one device"
)
def test_a_certificate_of_a_batch_finds_what_is_declared_wherever_it_is_computed(mesh, one_device):
    """After one update the policy is off its reference; the batch is padded from six groups to eight."""
    program = compiled(changed(TINY, {"certify_every": 1, "mesh": mesh}), devices=8 if mesh else 1)
    step = stepped(program, one_device.before, groups=6)
    fresh = program.state(placed_like(program, one_device.before), key=KEY)
    moved = fresh._replace(params=placed_like(program, one_device.after))
    placed = program.place((step.found.rollout, step.found.batch))
    same = jax.device_get(program.certificate(fresh, *placed))
    # on several devices, blocks with fewer groups than devices are scored together, the reference device by device
    assert same.variance.value <= (1e-10 if mesh else 0)
    assert np.isnan([same.relative_bias.value, same.cosine.value]).all()
    found = jax.device_get(program.certificate(moved, *placed))
    assert found.groups == 6
    assert found.variance.value > 0
    assert found.squared_bias.low == 0
    assert found.effective_sample_size == 1
    host = jax.device_put((moved, step.found.rollout, step.found.batch), jax.devices()[0])
    plain = compiled(changed(TINY, {"certify_every": 1})).certificate(*host)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


def placed_like(program, params):
    return jax.tree.map(lambda leaf, like: jax.device_put(leaf, like.sharding), params, program.shapes.params)


class Leaky(Objective):
    """An objective whose loss reads the log-probs of masked tokens."""

    def accumulate(self, scores, batch, beta):
        mean, metrics = super().accumulate(scores, batch, beta)
        leak = jnp.sum(scores.log_probs, where=~batch.mask)
        return Mean(mean.total + 1e-3 * leak, mean.count), metrics


def masking(kind=Objective):
    made = objective(
        advantages.leave_one_out(),
        surrogates.clipped(),
        reductions.constant_length(3),
        kl=kl.penalty(kl.k1, placement="to_go"),
        degenerate=degenerate.mask(),
    )
    return kind(made.parts, made.target, made.off_policy_target, made.notes)


def test_invariants_hold_of_a_sound_objective_and_fail_where_a_gradient_is_planted(one_device):
    config = replace(TINY, check_invariants=True)
    sound, planted = compiled(config, masking()), compiled(config, masking(Leaky))
    params = jax.tree.map(jnp.asarray, one_device.before)
    state = sound.state(params, key=KEY)
    placed = sound.place((one_device.found.rollout, one_device.found.batch))
    assert not one_device.found.batch.mask.all()
    sound.check(state, *placed)
    with pytest.raises(AssertionError):
        planted.check(state, *placed)


def test_an_objective_of_ones_own_takes_the_place_of_the_configured_one():
    own = masking()
    assert compile_program(TINY, own).parts.objective is own
    plain = objective(advantages.leave_one_out(), surrogates.reinforce(), reductions.token_mean())
    with pytest.raises(ValueError, match="has no effect, since the objective has no KL term"):
        compile_program(TINY, plain)
    assert compile_program(changed(TINY, {"beta.value": 0.0}), plain).shapes.ref_params is None
