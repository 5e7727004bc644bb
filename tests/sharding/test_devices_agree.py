"""One update of a real decoder on eight devices is the update on one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import advantages, kl
from grpo_jax.kl import controllers
from grpo_jax.losses import objective, reductions, surrogates
from grpo_jax.models import DecoderConfig, decoder, vocabulary
from grpo_jax.placement import places_on
from grpo_jax.sharding import batch_sharding, group_multiple, make_mesh, state_shardings
from grpo_jax.types import Batch, Prompts, Rollout
from grpo_jax.updates import adam, copied_every, learner, pad_groups
from tests.updates.builders import compiled

GROUPS, MEMBERS, PROMPT, TOKENS, VOCABULARY = 14, 2, 3, 3, 12
SHAPE = DecoderConfig(
    vocabulary_size=VOCABULARY,
    layers=1,
    width=16,
    heads=4,
    kv_heads=2,
    head_dim=4,
    hidden=24,
    scan_layers=True,
    logits_per_chunk=2 * MEMBERS * VOCABULARY,
)
POLICY = decoder(SHAPE)
OBJECTIVE = objective(
    advantages.leave_one_out(),
    surrogates.clipped(),
    reductions.token_mean(),
    kl=kl.penalty(kl.k3, placement="loss", allow_biased=True),
    entropy_coefficient=0.01,
)


def learner_of(policy):
    return learner(
        functools.partial(policy.score, temperature=0.7),
        OBJECTIVE,
        adam(1e-2, b1=0.0, b2=0.0, epsilon=1.0),
        controllers.constant(0.1),
        copied_every(1),
        micro_batches=2,
    )


LEARNER = learner_of(POLICY)
"""Adam without memory is g / (|g| + 1): its moment is the gradient, and rounding of small ones is not blown up."""


def inputs():
    random = np.random.default_rng(0)
    shape = (GROUPS, MEMBERS, TOKENS)
    mask = jnp.asarray(np.arange(TOKENS) < random.integers(1, TOKENS + 1, shape[:2])[..., None])
    prompt_mask = jnp.asarray(np.arange(PROMPT) >= random.integers(0, PROMPT, (GROUPS, 1)))
    rollout = Rollout(
        Prompts(jnp.asarray(random.integers(0, VOCABULARY, (GROUPS, PROMPT))), prompt_mask),
        jnp.asarray(random.integers(0, VOCABULARY, shape)),
        mask,
        jnp.zeros(shape),
        jnp.ones(shape[:2], bool),
    )
    return rollout, Batch(mask, jnp.asarray(random.normal(size=shape[:2]), jnp.float32)).check()


@compiled
def make_state():
    state = LEARNER.init(POLICY.init(key=jax.random.key(0)), key=jax.random.key(2))
    return state._replace(ref_params=POLICY.init(key=jax.random.key(1)))


def assert_near(found, wanted):
    """Every array agrees to 1e-5 of its largest entry."""

    def check(one, other):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * np.abs(other).max())

    jax.tree.map(check, found, wanted)


@pytest.fixture(scope="module", autouse=True)
def few_columns():
    """The vocabulary of twelve is read a few columns at a time, as a large one is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary, "LEAST", 2)
        yield


@pytest.fixture(scope="module")
def on_one_device():
    state, metrics = compiled(LEARNER.update)(make_state(), *inputs())
    return jax.device_get((state._replace(key=None), metrics))


@pytest.mark.parametrize(
    "spec",
    [
        "data=8",
        "data=4,fsdp=2",
        "data=2,fsdp=2,tensor=2",
        pytest.param("fsdp=8", marks=pytest.mark.slow),
        pytest.param("tensor=8", marks=pytest.mark.slow),
    ],
)
def test_eight_devices_give_the_loss_gradient_and_parameters_of_one(spec, on_one_device):
    mesh = make_mesh(spec)
    padded = pad_groups(inputs(), group_multiple(mesh, micro_batches=2))
    assert padded[1].valid.shape[0] == (14 if spec == "tensor=8" else 16)
    placement = state_shardings(mesh, POLICY.logical_axes(), jax.eval_shape(make_state))
    state = jax.device_put(make_state(), placement)
    batches = batch_sharding(mesh)
    pinned = learner_of(decoder(SHAPE, places_on(mesh)))
    update = compiled(
        pinned.update, in_shardings=(placement, batches, batches), out_shardings=(placement, None), donate_argnums=0
    )
    new, metrics = update(state, *jax.device_put(padded, batches))
    expected, expected_metrics = on_one_device
    for name, value in expected_metrics.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    gradient, expected_gradient = new.opt_state[1].mu, expected.opt_state[1].mu
    assert_near((gradient, new.params, new.ref_params), (expected_gradient, expected.params, expected.ref_params))
    for leaf, sharding in zip(jax.tree.leaves(new.params), jax.tree.leaves(placement.params), strict=True):
        assert leaf.sharding == sharding
    assert (spec == "data=8") == all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(new.params))
