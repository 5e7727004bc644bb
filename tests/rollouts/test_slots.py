"""Slots, queue and shrinking batch: the same completions whatever the sizes, in as few steps as a plain schedule."""

import dataclasses
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from grpo_jax.models import DecoderConfig, count_model, decoder, position_tabular, prefix_tabular
from grpo_jax.rollouts import categorical, sampler
from grpo_jax.types import Prompts

V, P, G, T = 5, 6, 4, 9
KEY = jax.random.key(3)
TABLES = {
    "position": position_tabular(V, T, contexts=3),
    "prefix": prefix_tabular(3, T, contexts=3),
    "count": count_model(),
}
CONFIG = DecoderConfig(
    V, layers=2, width=16, heads=2, kv_heads=1, head_dim=8, hidden=16, window=3, windowed=(True, False)
)
PLANS = [None, 1, 5, 23, 99, (24, 7, 2, 1), (7, 3)]


def prompts(vocabulary=V):
    """Six prompts of several lengths, padded on both sides; the fifth is a padding group."""
    tokens = np.random.default_rng(0).integers(0, vocabulary, (P, 4))
    mask = np.array([[1, 1, 1, 1], [0, 0, 1, 1], [0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 1, 1]], bool)
    return Prompts(jnp.asarray(tokens, jnp.int32), jnp.asarray(mask)).check()


def sampled(policy, params, end_ids=(0,), max_tokens=T, **options):
    pad_id = policy.vocabulary_size - 1
    generate = jax.jit(sampler(policy, categorical(), G, max_tokens, end_ids, pad_id, **options))
    return generate(params, prompts(policy.vocabulary_size), key=KEY)


def row_by_row(policy, params, end_ids):
    """Tokens, lengths and log-probs of every completion, each sampled alone, a token at a time."""
    strategy, given = categorical(), prompts(policy.vocabulary_size)
    decode = jax.jit(policy.decode)
    found = {}
    for p, g in np.ndindex(P, G):
        own = jax.tree.map(lambda leaf, p=p: leaf[p : p + 1], given)
        key = jax.random.fold_in(jax.random.fold_in(KEY, p), g)
        prefix, cache = policy.prefill(params, own), policy.empty_cache(1, 1, T)
        logits, tokens, log_probs = prefix.logits[0], [], []
        for t in range(T if own.mask.any() else 0):
            token = strategy.choose(logits, key=jax.random.fold_in(key, t))
            tokens.append(int(token))
            log_probs.append(float(jax.nn.log_softmax(logits)[token]))
            if tokens[-1] in end_ids:
                break
            logits, cache = decode(params, prefix, cache, token[None, None], jnp.full((1, 1), t), jnp.int32(t))
            logits = logits[0, 0]
        found[p, g] = tokens, log_probs
    return found


@pytest.mark.parametrize(
    ("kind", "end_ids"), [("position", (0,)), ("position", ()), ("prefix", (0, 1)), ("count", (0,))]
)
def test_each_completion_is_the_one_that_is_sampled_alone(kind, end_ids):
    policy = TABLES[kind]
    params = policy.init(key=jax.random.key(1))
    alone = row_by_row(policy, params, end_ids)
    for plan in PLANS if (kind, end_ids) == ("position", (0,)) else [3, (24, 7, 1)]:
        rollout = sampled(policy, params, end_ids, slots=plan).check()
        for (p, g), (tokens, log_probs) in alone.items():
            length = len(tokens)
            assert np.asarray(rollout.tokens)[p, g].tolist() == tokens + [policy.vocabulary_size - 1] * (T - length)
            assert np.asarray(rollout.mask)[p, g].tolist() == [t < length for t in range(T)]
            np.testing.assert_allclose(rollout.log_probs[p, g, :length], log_probs, atol=1e-6)
            assert not rollout.log_probs[p, g, length:].any()
            assert rollout.finished[p, g] == (length > 0 and tokens[-1] in end_ids)


@pytest.mark.parametrize("shards", [2, 6])
def test_shards_keep_to_their_own_rows_and_sample_the_same(shards):
    policy = TABLES["position"]
    params = policy.init(key=jax.random.key(1))
    whole = sampled(policy, params)
    for plan in (None, 1, 7) if shards == 2 else ((12, 6),):
        jax.tree.map(np.testing.assert_array_equal, sampled(policy, params, slots=plan, shards=shards), whole)


@cache
def decoder_params(scan_layers):
    return jax.jit(lambda key: decoder(scanned(scan_layers)).init(key=key))(jax.random.key(0))


def scanned(scan_layers):
    return dataclasses.replace(CONFIG, scan_layers=scan_layers)


@pytest.mark.parametrize(("scan_layers", "plan", "shards"), [(False, 5, 1), (False, (24, 6), 1), (True, (7, 2), 3)])
def test_a_decoder_samples_the_same_in_any_slots(scan_layers, plan, shards):
    policy, params = decoder(scanned(scan_layers)), decoder_params(scan_layers)
    together = lockstep(scan_layers)
    assert len(np.unique(together.mask.sum(-1))) > 4
    rollout = sampled(policy, params, slots=plan, shards=shards)
    np.testing.assert_array_equal(rollout.tokens, together.tokens)
    np.testing.assert_array_equal(rollout.mask, together.mask)
    np.testing.assert_allclose(rollout.log_probs, together.log_probs, atol=1e-5)


@cache
def lockstep(scan_layers):
    return sampled(decoder(scanned(scan_layers)), decoder_params(scan_layers), slots=(24,))


def schedule(lengths, sizes):
    """How many steps a batch of each size takes: a slot goes to the next row at once, and sizes fall when they can."""
    waiting = [length - 1 for length in lengths if length > 1]
    busy, steps = [], dict.fromkeys(sizes, 0)
    for size, smaller in zip(sizes, [*sizes[1:], 0], strict=True):
        while True:
            while waiting and len(busy) < size:
                busy.append(waiting.pop(0))
            if not waiting and len(busy) <= smaller:
                break
            steps[size] += 1
            busy = [left - 1 for left in busy if left > 1]
    return [(size, count) for size, count in steps.items() if count]


@pytest.mark.parametrize("plan", [(24,), (24, 6, 2), (7,), (7, 3, 1), (1,)])
def test_steps_are_those_of_a_schedule_that_leaves_no_slot_idle(plan):
    sizes, policy = [], TABLES["position"]

    def counted(params, prefix, cache, tokens, t, step):
        jax.debug.callback(lambda: sizes.append(tokens.size), ordered=True)
        return policy.decode(params, prefix, cache, tokens, t, step)

    rollout = jax.block_until_ready(
        sampled(policy._replace(decode=counted), policy.init(key=jax.random.key(1)), slots=plan)
    )
    jax.effects_barrier()
    lengths = np.asarray(rollout.mask.sum(-1)).reshape(-1).tolist()
    runs = [(size, sizes.count(size)) for size in dict.fromkeys(sizes)]
    assert runs == schedule(lengths, plan)
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(("slots", "expected"), [(None, [24, 6]), (17, [17, 4]), (15, [15]), ((24,), [24])])
def test_a_batch_shrinks_to_quarters_where_the_budget_is_long(slots, expected):
    policy, compiled = position_tabular(V, 40, contexts=3), []

    def traced(params, prefix, cache, tokens, t, step):
        compiled.append(tokens.size)
        return policy.decode(params, prefix, cache, tokens, t, step)

    def trace(max_tokens):
        generate = sampler(policy._replace(decode=traced), categorical(), G, max_tokens, (0,), 0, slots=slots)
        compiled.clear()
        jax.eval_shape(partial(generate, key=KEY), policy.init(key=KEY), prompts())
        return list(dict.fromkeys(compiled))

    assert trace(40) == expected
    assert trace(31) == expected[:1]


def test_a_step_writes_the_cache_in_place_at_one_column():
    policy = decoder(CONFIG)
    params = jax.eval_shape(lambda: policy.init(key=KEY))
    prefix = jax.eval_shape(policy.prefill, params, prompts())
    cache, rows = policy.empty_cache(P, G, T), jnp.zeros((P, G), jnp.int32)
    text = str(jax.make_jaxpr(policy.decode)(params, prefix, cache, rows, rows, jnp.int32(0)))
    assert text.count("dynamic_update_slice") == 2 * CONFIG.layers
    assert "scatter" not in text


@pytest.mark.parametrize("plan", [16, (32, 8)])
def test_slots_divided_among_eight_devices_sample_the_same(plan):
    policy = decoder(dataclasses.replace(CONFIG, layers=1, window=None, windowed=()))
    params = jax.jit(lambda key: policy.init(key=key))(jax.random.key(0))
    padded = jax.tree.map(lambda leaf: jnp.pad(leaf, ((0, 2), (0, 0))), prompts())
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    groups, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
    spread = jax.jit(sampler(policy, categorical(), G, T, (0,), 0, slots=plan, shards=8))(
        jax.device_put(params, everywhere), jax.device_put(padded, groups), key=jax.device_put(KEY, everywhere)
    )
    assert spread.tokens.sharding.is_equivalent_to(groups, 3)
    alone = jax.jit(sampler(policy, categorical(), G, T, (0,), 0))(params, prompts(), key=KEY)
    np.testing.assert_array_equal(spread.tokens[:P], alone.tokens)
    np.testing.assert_array_equal(spread.mask[:P], alone.mask)
    assert not spread.mask[P:].any()


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"slots": 0}, "slots is 0; give at least 1"),
        ({"slots": ()}, r"slots is \(\)"),
        ({"slots": (4, 8)}, r"slots is \(4, 8\).*falling"),
        ({"slots": (4, 4)}, r"slots is \(4, 4\)"),
        ({"shards": 0}, "shards is 0; give at least 1"),
    ],
)
def test_a_wrong_number_is_refused_by_name_and_value(wrong, named):
    with pytest.raises(ValueError, match=named):
        sampler(TABLES["position"], categorical(), G, T, (0,), 0, **wrong)


def test_prompts_that_do_not_divide_by_the_shards_are_refused():
    policy = TABLES["position"]
    with pytest.raises(ValueError, match="6 prompts do not divide by 4 shards; pad them"):
        sampled(policy, policy.init(key=KEY), shards=4)
