"""The decoder against loops in NumPy, and the laws of padding, sharing, scanning, chunking and decoding."""

import dataclasses
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from jax.test_util import check_grads

from grpo_jax.models import DecoderConfig, decoder
from grpo_jax.types import Prompts, Rollout
from tests.references import decoder as reference

V, P, G, T, L = 11, 3, 2, 5, 4
CONFIG = DecoderConfig(V, layers=1, width=16, heads=4, kv_heads=2, head_dim=4, hidden=24)
DEEP = dataclasses.replace(CONFIG, layers=2)
POLICY = decoder(CONFIG)
INIT = jax.jit(lambda key: POLICY.init(key=key))
PARAMS, REF_PARAMS = INIT(jax.random.key(0)), INIT(jax.random.key(1))
LENGTHS = (4, 2, 3)
ENDS = np.array([[5, 3], [1, 5], [4, 2]])


@cache
def scored(config):
    """Scores of a rollout with entropy and, given a reference, KL; compiled once per config."""
    policy = decoder(config)

    def score(params, rollout, temperature, ref_params):
        return policy.score(params, rollout, temperature, entropy=True, ref_params=ref_params)

    return jax.jit(score)


@cache
def gradient_of(config):
    """Value and gradient, with respect to policy and reference, of a weighted sum of all scores."""
    policy = decoder(config)

    def total(params, rollout, ref_params):
        scores = policy.score(params, rollout, 0.7, entropy=True, ref_params=ref_params)
        weights = jnp.arange(1.0, 1 + rollout.mask.size).reshape(rollout.mask.shape)
        return jnp.sum(weights * (scores.log_probs + 0.3 * scores.entropy + 0.2 * scores.full_kl)) / rollout.mask.size

    return jax.jit(jax.value_and_grad(total, (0, 2)))


SCORE, GRADIENT = scored(CONFIG), gradient_of(CONFIG)


def rollout_of(width=L, left=True, seed=0, junk=0):
    """A rollout with ragged prompts and completions; ``junk`` stands at every masked position."""
    rng = np.random.default_rng(seed)
    prompts, completions = rng.integers(0, V, (P, L)), rng.integers(0, V, (P, G, T))
    tokens, mask = np.full((P, width), junk), np.zeros((P, width), bool)
    for row, length in enumerate(LENGTHS):
        columns = slice(width - length, width) if left else slice(0, length)
        tokens[row, columns], mask[row, columns] = prompts[row, :length], True
    kept = np.arange(T) < ENDS[..., None]
    completions = np.where(kept, completions, junk)
    as_tokens = partial(jnp.asarray, dtype=jnp.int32)
    return Rollout(
        Prompts(as_tokens(tokens), jnp.asarray(mask)),
        as_tokens(completions),
        jnp.asarray(kept),
        jnp.zeros((P, G, T)),
        jnp.asarray(ENDS < T),
    ).check()


def expected(config, params, rollout, temperature):
    """Distributions [P G T V] by loops; rows past the end stay uniform."""
    result = np.full((P, G, T, V), 1 / V)
    for p in range(P):
        prompt = np.asarray(rollout.prompts.tokens[p])[np.asarray(rollout.prompts.mask[p])]
        for g in range(G):
            completion = np.asarray(rollout.tokens[p, g])[: ENDS[p, g]]
            result[p, g, : len(completion)] = reference.distributions(params, config, prompt, completion, temperature)
    return result


@pytest.mark.parametrize("changes", [{}, {"layers": 2, "tied_head": False, "scan_layers": True, "kv_heads": 1}])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_scores_equal_loops_over_tokens_heads_and_keys(changes, temperature):
    config = dataclasses.replace(CONFIG, **changes)
    init = jax.jit(lambda key: decoder(config).init(key=key))
    params, ref_params = init(jax.random.key(2)), init(jax.random.key(3))
    rollout = rollout_of()
    scores = scored(config)(params, rollout, temperature, ref_params)
    ours, theirs = (expected(config, which, rollout, temperature) for which in (params, ref_params))
    log_probs = np.take_along_axis(np.log(ours), np.asarray(rollout.tokens)[..., None], axis=-1)[..., 0]
    mask = np.asarray(rollout.mask)
    np.testing.assert_allclose(scores.log_probs, np.where(mask, log_probs, 0), atol=2e-5)
    np.testing.assert_allclose(scores.entropy, np.where(mask, -np.sum(ours * np.log(ours), -1), 0), atol=2e-5)
    full_kl = np.sum(ours * np.log(ours / theirs), -1)
    np.testing.assert_allclose(scores.full_kl, np.where(mask, full_kl, 0), atol=2e-5)
    assert scores.log_probs.dtype == scores.entropy.dtype == scores.full_kl.dtype == jnp.float32


@pytest.mark.parametrize(("width", "left"), [(4, False), (9, True), (9, False)])
def test_padding_side_and_width_change_nothing(width, left):
    plain = SCORE(PARAMS, rollout_of(), 1.0, REF_PARAMS)
    padded = SCORE(PARAMS, rollout_of(width, left), 1.0, REF_PARAMS)
    jax.tree.map(partial(np.testing.assert_allclose, atol=2e-6), plain, padded)


@pytest.mark.parametrize("junk", [V - 1, -7, 10**6])
def test_what_stands_at_masked_positions_is_never_read(junk):
    clean, dirty = rollout_of(), rollout_of(junk=junk)
    assert np.any(np.asarray(clean.tokens) != np.asarray(dirty.tokens))
    jax.tree.map(
        np.testing.assert_array_equal, SCORE(PARAMS, clean, 1.0, REF_PARAMS), SCORE(PARAMS, dirty, 1.0, REF_PARAMS)
    )
    left, right = GRADIENT(PARAMS, clean, REF_PARAMS), GRADIENT(PARAMS, dirty, REF_PARAMS)
    jax.tree.map(np.testing.assert_array_equal, left, right)


def stacked(params):
    """Parameters of unrolled layers as scanned layers keep them."""
    layers = [params["blocks"][f"layer_{index}"] for index in range(DEEP.layers)]
    return {**params, "blocks": jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)}


def test_scanned_layers_equal_unrolled_ones_in_value_and_gradient_when_recomputed():
    rollout, params = rollout_of(), jax.jit(lambda key: decoder(DEEP).init(key=key))(jax.random.key(0))

    def value_and_gradient(config, params):
        policy = decoder(config)
        total = lambda params: jnp.sum(policy.score(params, rollout, 1.0).log_probs)  # noqa: E731
        return jax.jit(jax.value_and_grad(total))(params)

    scanned, unrolled = (
        value_and_gradient(dataclasses.replace(DEEP, remat_layers=True, scan_layers=scan_layers), start)
        for scan_layers, start in ((True, stacked(params)), (False, params))
    )
    compare = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(compare, scanned, (unrolled[0], stacked(unrolled[1])))


def test_chunks_of_positions_change_nothing_and_avoid_the_whole_logits():
    positions = 2
    chunked = dataclasses.replace(CONFIG, logits_per_chunk=positions * P * G * V)
    compare = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(compare, *(f(PARAMS, rollout_of(), REF_PARAMS) for f in (GRADIENT, gradient_of(chunked))))
    largest = lambda f: max(_sizes_ending_in(V, jax.make_jaxpr(f)(PARAMS, rollout_of(), REF_PARAMS).jaxpr))  # noqa: E731
    assert largest(GRADIENT) == P * G * T * V
    assert largest(gradient_of(chunked)) == max(positions * P * G * V, CONFIG.width * V)


def test_chunks_of_queries_change_nothing_in_prompt_and_completions():
    # two queries of every prompt at a time, and one of every completion
    chunked = dataclasses.replace(CONFIG, attention_logits_per_chunk=2 * P * CONFIG.heads * L)
    compare = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(compare, *(f(PARAMS, rollout_of(), REF_PARAMS) for f in (GRADIENT, gradient_of(chunked))))


def test_the_memory_of_a_long_sequence_falls_with_the_chunk():
    prompts = Prompts(jnp.zeros((1, 8), jnp.int32), jnp.ones((1, 8), bool))
    mask = jnp.ones((1, 1, 512), bool)
    rollout = Rollout(prompts, jnp.zeros(mask.shape, jnp.int32), mask, jnp.zeros(mask.shape), mask[..., 0])

    def temporaries(queries):
        size = queries * CONFIG.heads * (512 + 8)
        policy = decoder(dataclasses.replace(CONFIG, remat_layers=True, attention_logits_per_chunk=size))
        total = lambda params: jnp.sum(policy.score(params, rollout, 1.0).log_probs)  # noqa: E731
        return jax.jit(jax.grad(total)).lower(PARAMS).compile().memory_analysis().temp_size_in_bytes

    whole, chunked = temporaries(512), temporaries(32)
    logits = 4 * CONFIG.heads * 512 * 520
    assert whole > logits
    assert chunked < logits / 3


def _sizes_ending_in(width, jaxpr):
    """Sizes of all float arrays whose last axis is ``width``, in every nested computation."""
    for equation in jaxpr.eqns:
        yield from (
            v.aval.size for v in equation.outvars if v.aval.shape[-1:] == (width,) and v.aval.dtype == "float32"
        )
        for inner in jaxprs_in_params(equation.params):
            yield from _sizes_ending_in(width, inner)


def test_a_group_shares_its_prompts_keys_instead_of_repeating_them():
    prompts = Prompts(jnp.zeros((2, 64), jnp.int32), jnp.ones((2, 64), bool))
    rows, length = (2, 40), 1
    rollout = Rollout(prompts, jnp.zeros((*rows, length), jnp.int32), jnp.ones((*rows, length), bool), *[None] * 2)
    jaxpr = jax.make_jaxpr(lambda p: POLICY.score(p, rollout, 1.0))(PARAMS).jaxpr
    repeated = 2 * 40 * CONFIG.kv_heads * CONFIG.head_dim * 64
    assert max(_sizes_ending_in(64, jaxpr)) < repeated


@pytest.mark.parametrize("scan_layers", [False, True])
def test_decoding_step_by_step_gives_the_scores(scan_layers):
    rollout = rollout_of()
    policy = decoder(dataclasses.replace(DEEP, scan_layers=scan_layers))
    params = jax.jit(lambda key: policy.init(key=key))(jax.random.key(0))
    prefix, decode = jax.jit(policy.prefill)(params, rollout.prompts), jax.jit(policy.decode)
    np.testing.assert_array_equal(prefix.lengths, LENGTHS)
    logits, cache = jnp.broadcast_to(prefix.logits[:, None], (P, G, V)), policy.empty_cache(P, G, T)
    log_probs = []
    for t in range(T):
        log_probs.append(np.take_along_axis(jax.nn.log_softmax(logits), rollout.tokens[..., t, None], -1)[..., 0])
        logits, cache = decode(params, prefix, cache, rollout.tokens[..., t], jnp.full((P, G), t), jnp.int32(t))
    decoded = np.where(rollout.mask, np.stack(log_probs, -1), 0)
    scores = jax.jit(policy.score)(params, rollout, 1.0)
    np.testing.assert_allclose(decoded, scores.log_probs, atol=1e-5)


def test_a_token_changes_only_what_follows_it_in_its_own_completion():
    rollout = rollout_of()
    changed = rollout._replace(tokens=rollout.tokens.at[0, 0, 2].add(1) % V)
    before, after = (SCORE(PARAMS, x, 1.0, REF_PARAMS).entropy for x in (rollout, changed))
    differs = np.array(before != after)
    assert differs[0, 0, 3:].all()
    differs[0, 0, 3:] = False
    assert not differs.any()


def test_a_masked_token_before_an_unmasked_one_is_read_but_not_scored():
    rollout = rollout_of()
    holed = rollout._replace(mask=rollout.mask.at[0, 0, 1].set(False))
    whole, hole = (np.array(SCORE(PARAMS, x, 1.0, REF_PARAMS).log_probs) for x in (rollout, holed))
    assert hole[0, 0, 1] == 0
    whole[0, 0, 1] = 0
    np.testing.assert_array_equal(whole, hole)


def test_a_reference_with_the_same_parameters_is_at_kl_zero():
    scores = SCORE(PARAMS, rollout_of(), 1.0, PARAMS)
    np.testing.assert_array_equal(scores.full_kl, 0)
    repeated = SCORE(PARAMS, rollout_of(), 1.0, PARAMS)
    np.testing.assert_array_equal(scores.log_probs, repeated.log_probs)


def test_recomputed_layers_save_less_for_the_backward_pass():
    rollout = rollout_of()

    def saved(config):
        policy = decoder(config)
        total = lambda params: jnp.sum(policy.score(params, rollout, 1.0).log_probs)  # noqa: E731
        params = jax.eval_shape(lambda: policy.init(key=jax.random.key(0)))
        return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(lambda p: jax.vjp(total, p)[1], params)))

    assert saved(dataclasses.replace(DEEP, remat_layers=True)) < saved(DEEP) / 2


def test_no_gradient_reaches_the_reference():
    _, (ours, theirs) = GRADIENT(PARAMS, rollout_of(), REF_PARAMS)
    assert all(jnp.any(leaf != 0) for leaf in jax.tree.leaves(ours))
    assert all(jnp.all(leaf == 0) for leaf in jax.tree.leaves(theirs))


def test_gradients_agree_with_finite_differences_through_prompt_and_completions():
    rollout = rollout_of()

    def total(params):
        scores = POLICY.score(params, rollout, 0.9, entropy=True, ref_params=REF_PARAMS)
        return jnp.sum(scores.log_probs + scores.entropy + scores.full_kl) / 10

    check_grads(jax.jit(total), (PARAMS,), order=1, modes=["rev"], eps=1e-3, atol=2e-2, rtol=2e-2)


def test_a_padding_group_stays_finite_in_value_and_gradient():
    rollout = rollout_of()
    prompts = rollout.prompts._replace(mask=rollout.prompts.mask.at[1].set(False))
    rollout = rollout._replace(prompts=prompts, mask=rollout.mask.at[1].set(False))
    value, gradient = GRADIENT(PARAMS, rollout, REF_PARAMS)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    np.testing.assert_array_equal(SCORE(PARAMS, rollout, 1.0, REF_PARAMS).log_probs[1], 0)
    assert np.isfinite(jax.jit(POLICY.prefill)(PARAMS, prompts).logits).all()


def test_bfloat16_blocks_stay_near_float32_and_score_in_float32():
    config = dataclasses.replace(CONFIG, dtype="bfloat16")
    scores = scored(config)(PARAMS, rollout_of(), 1.0, REF_PARAMS)
    assert scores.log_probs.dtype == jnp.float32
    assert jax.tree.leaves(decoder(config).empty_cache(P, G, T))[0].dtype == jnp.bfloat16
    np.testing.assert_allclose(scores.log_probs, SCORE(PARAMS, rollout_of(), 1.0, REF_PARAMS).log_probs, atol=0.1)


@pytest.mark.parametrize(("tied_head", "scan_layers"), [(True, False), (False, True)])
def test_every_parameter_has_a_logical_axis_name_per_dimension(tied_head, scan_layers):
    policy = decoder(dataclasses.replace(DEEP, tied_head=tied_head, scan_layers=scan_layers))
    names = {"vocabulary", "embed", "heads", "kv_heads", "head_dim", "mlp", "layers"}
    sizes = {"vocabulary": V, "embed": 16, "heads": 4, "kv_heads": 2, "head_dim": 4, "mlp": 24, "layers": 2}
    axes = policy.logical_axes()

    def check(leaf, leaf_axes):
        assert leaf.dtype == jnp.float32
        assert set(leaf_axes) <= names
        assert tuple(sizes[name] for name in leaf_axes) == leaf.shape

    jax.tree.map(check, jax.eval_shape(lambda: policy.init(key=jax.random.key(0))), axes)
    assert ("head" in axes) != tied_head
    assert len(axes["blocks"]) == (9 if scan_layers else 2)


def test_parameters_depend_on_the_key_and_match_the_count_of_the_formula():
    assert not np.array_equal(PARAMS["embedding"], REF_PARAMS["embedding"])
    per_layer = 2 * 16 + 16 * (4 + 2 + 2) * 4 + 4 * 4 * 16 + 3 * 16 * 24
    assert sum(leaf.size for leaf in jax.tree.leaves(PARAMS)) == V * 16 + 16 + per_layer


@pytest.mark.parametrize(
    "wrong",
    [
        {"layers": 0},
        {"vocabulary_size": 0},
        {"kv_heads": 3},
        {"head_dim": 5},
        {"rope_theta": 0.0},
        {"norm_epsilon": float("nan")},
        {"dtype": "float16"},
        {"logits_per_chunk": 0},
        {"attention_logits_per_chunk": 0},
    ],
)
def test_a_wrong_config_is_refused_by_name_and_value(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=f"DecoderConfig.{name} is {value!r}"):
        dataclasses.replace(CONFIG, **wrong)
