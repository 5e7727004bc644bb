"""A packed rollout has the scores and gradients of the same rollout with its padding, on one device and on eight."""

import dataclasses
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import advantages, kl
from grpo_jax.losses import objective, reductions, surrogates
from grpo_jax.models import DecoderConfig, count_model, decoder, lora, prefix_tabular
from grpo_jax.sharding import batch_sharding, make_mesh
from grpo_jax.types import Batch, Packing, Prompts, Rollout
from grpo_jax.updates import pack

V, P, G, T, L = 11, 4, 4, 8, 5
CONFIG = DecoderConfig(V, layers=1, width=16, heads=4, kv_heads=2, head_dim=4, hidden=24)
WINDOWED = dataclasses.replace(CONFIG, layers=2, windowed=(False, True), window=3)
OBJECTIVE = objective(
    advantages.leave_one_out(),
    surrogates.clipped(),
    reductions.token_mean(),
    kl=kl.full_vocabulary(placement="both"),
    entropy_coefficient=0.1,
)


def rollout_of(seed=0):
    """Ragged completions with holes, prompts padded on either side, and a group of padding."""
    random = np.random.default_rng(seed)
    prompts = np.zeros((P, L), bool)
    prompts[0, 2:], prompts[1, :3], prompts[2, 1:4] = True, True, True
    mask = np.arange(T) < random.integers(1, T, (P, G))[..., None]
    mask &= random.random(mask.shape) < 0.8
    mask[0, 0] = np.arange(T) < 6
    mask[3] = False
    tokens = random.integers(0, V, (P, L)), random.integers(0, V, mask.shape)
    prompts, tokens = Prompts(np.int32(tokens[0]), prompts), np.int32(tokens[1])
    return Rollout(prompts, tokens, mask, np.zeros(mask.shape, np.float32), mask.any(-1)).check()


def policy_of(config):
    """The policy, its parameters and a reference's."""
    policy = decoder(config)
    init = jax.jit(lambda key: policy.init(key=key))
    return policy, init(jax.random.key(0)), init(jax.random.key(1))


@cache
def found_by(config, rank=None):
    """What is compiled per config: scores, and the gradient of an objective of which every score is a part."""
    policy, params, ref_params = policy_of(config)
    adapters = None if rank is None else lora(params, policy.logical_axes(), rank)
    trained = params if adapters is None else jax.tree.map(jnp.ones_like, adapters.init(key=jax.random.key(2)))
    batch = Batch(rollout_of().mask, jnp.asarray(np.random.default_rng(1).normal(size=(P, G)), jnp.float32))

    def loss(trained, rollout):
        own = trained if adapters is None else adapters.merge(params, trained)
        scores = policy.score(own, rollout, 0.7, entropy=True, ref_params=ref_params)
        prepared = batch._replace(mask=rollout.mask, ref_log_probs=scores.log_probs - 0.1)
        return OBJECTIVE(scores, prepared, 0.3)[0] + jnp.sum(jnp.sin(scores.log_probs) / 50), scores

    return partial(jax.jit(jax.value_and_grad(loss, has_aux=True)), trained)


CASES = {
    "windows, a few logits at a time": (
        dataclasses.replace(
            WINDOWED, logits_per_chunk=3 * P * G * V, attention_logits_per_chunk=3 * P * G * 4 * (T + L)
        ),
        None,
    ),
    "scanned and recomputed layers with adapters": (
        dataclasses.replace(WINDOWED, scan_layers=True, remat_layers=True),
        2,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_packed_equals_unpacked_in_scores_and_gradient(case):
    run, rollout = found_by(*CASES[case]), rollout_of()
    packed = pack(rollout, T).check()
    _, bins, width = packed.packing.members.shape
    assert bins < G
    assert width < T
    ((loss, scores), gradient), ((expected_loss, expected), expected_gradient) = run(packed), run(rollout)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=2e-6), scores, expected)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=2e-6), gradient, expected_gradient)
    assert max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(gradient)) > 1e-2
    for leaf in jax.tree.leaves(scores):
        np.testing.assert_array_equal(np.asarray(leaf)[~rollout.mask], 0)


@pytest.fixture(scope="module")
def score():
    policy, params, _ = policy_of(CONFIG)
    return jax.jit(lambda rollout: policy.score(params, rollout, 1.0).log_probs)


@pytest.fixture(scope="module")
def shaped():
    """A packing of one shape for any mask of the tests below: a bin a completion."""
    empty = np.zeros((P, G, T), np.int32)

    def as_it_stands(rollout):
        members, steps = np.indices((G, T))
        last = np.where(rollout.mask, np.arange(T), -1).max(-1)
        stands = np.arange(T) <= last[..., None]
        return rollout._replace(
            packing=Packing(np.int32(np.where(stands, members[None] + 1, empty)), np.int32(steps[None] + empty))
        )

    return as_it_stands


def test_nothing_is_read_across_completions_or_from_where_none_stands(score):
    rollout = pack(rollout_of(), T)
    before = score(rollout)
    tokens = rollout.tokens.copy()
    tokens[0, 1] = (tokens[0, 1] + 1) % V
    stands = np.cumsum(rollout.mask[..., ::-1], axis=-1)[..., ::-1] > 0
    tokens[~stands] = 10**6
    steps = np.where(rollout.packing.members > 0, rollout.packing.steps, 77).astype(np.int32)
    after = score(rollout._replace(tokens=tokens, packing=rollout.packing._replace(steps=steps)))
    differs = np.array(before != after)
    assert differs[0, 1].any()
    differs[0, 1] = False
    assert not differs.any()


def test_a_wrong_packing_scores_its_group_as_nan_and_no_other(score, shaped):
    rollout = shaped(rollout_of())
    right = np.asarray(score(rollout))
    assert np.isfinite(right).all()
    members = rollout.packing.members.copy()
    members[1, 0] = members[1, 1]
    found = np.asarray(score(rollout._replace(packing=rollout.packing._replace(members=members))))
    assert np.isnan(found[1]).all()
    np.testing.assert_array_equal(found[[0, 2, 3]], right[[0, 2, 3]])


def test_policies_that_are_tables_score_a_packed_rollout_as_it_stands():
    rollout = rollout_of()
    rollout = rollout._replace(tokens=rollout.tokens % 2)
    for policy in (prefix_tabular(2, T), count_model()):
        params = policy.init(key=jax.random.key(0))
        for entropy in (False, True):
            both = (jax.tree.map(jnp.asarray, each) for each in (rollout, pack(rollout, 2)))
            plain, packed = (policy.score(params, each, 1.0, entropy=entropy) for each in both)
            jax.tree.map(np.testing.assert_array_equal, plain, packed)


def test_eight_devices_score_their_own_groups_packed_and_send_each_other_nothing():
    policy, params, _ = policy_of(CONFIG)
    rollout = pack(jax.tree.map(lambda leaf: np.concatenate([leaf, leaf[::-1]]), rollout_of()), 4)
    groups = batch_sharding(make_mesh("data=8"))
    score = lambda rollout: policy.score(params, rollout, 1.0).log_probs  # noqa: E731
    compiled = jax.jit(score, in_shardings=groups, out_shardings=groups).lower(rollout).compile()
    assert not any(word in compiled.as_text() for word in ("all-gather", "all-to-all", "collective", "all-reduce"))
    np.testing.assert_allclose(compiled(jax.device_put(rollout, groups)), jax.jit(score)(rollout), atol=2e-6)
