"""The sampler: its log-probabilities are the trainer's, masks are positions, noise is never shared."""

import dataclasses
import itertools
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from grpo_jax.models import DecoderConfig, decoder, position_tabular, prefix_tabular
from grpo_jax.rollouts import categorical, greedy, sampler
from grpo_jax.types import Prompts

V, P, G, T = 11, 8, 3, 6
CONFIG = DecoderConfig(V, layers=1, width=16, heads=4, kv_heads=2, head_dim=4, hidden=24)
POLICY = decoder(CONFIG)
PARAMS = jax.tree.map(lambda leaf: 2 * leaf, jax.jit(lambda key: POLICY.init(key=key))(jax.random.key(0)))
LENGTHS = np.array([4, 1, 3, 2, 4, 4, 2, 3])
KEY = jax.random.key(7)
TEMPERATURE = 0.8


def prompts_of(width=4, left=True):
    tokens, mask = np.zeros((P, width), np.int32), np.zeros((P, width), bool)
    for row, length in enumerate(LENGTHS):
        columns = slice(width - length, width) if left else slice(0, length)
        tokens[row, columns] = np.random.default_rng(row).integers(0, V, length)
        mask[row, columns] = True
    return Prompts(jnp.asarray(tokens), jnp.asarray(mask)).check()


@cache
def decoding(strategy=None, end_ids=(2, 5), pad_id=2, config=CONFIG):
    strategy = strategy or categorical(TEMPERATURE)
    return jax.jit(sampler(decoder(config), strategy, G, T, end_ids, pad_id))


SCORE = jax.jit(POLICY.score)


def check_ends(rollout, end_ids, pad_id):
    """Every row runs up to and including its first end token, then padding; by loops over positions."""
    rollout.check()
    tokens, mask, log_probs, finished = (np.asarray(x) for x in rollout[1:5])
    for row in np.ndindex(tokens.shape[:2]):
        ends = [t for t, token in enumerate(tokens[row]) if token in end_ids and (t == 0 or mask[row][t])]
        length = ends[0] + 1 if ends else tokens.shape[2]
        assert mask[row].tolist() == [t < length for t in range(tokens.shape[2])]
        assert finished[row] == bool(ends)
        assert (tokens[row][length:] == pad_id).all()
        assert (log_probs[row][length:] == 0).all()
        assert (log_probs[row][:length] < 0).all()


@pytest.mark.parametrize(("width", "left"), [(4, True), (4, False), (9, True), (9, False)])
def test_log_probs_equal_the_scores_and_padding_changes_no_token(width, left):
    rollout = decoding()(PARAMS, prompts_of(width, left), key=KEY)
    check_ends(rollout, (2, 5), 2)
    assert 0 < np.mean(rollout.finished) < 1
    np.testing.assert_allclose(rollout.log_probs, SCORE(PARAMS, rollout, TEMPERATURE).log_probs, atol=1e-5)
    plain = decoding()(PARAMS, prompts_of(), key=KEY)
    np.testing.assert_array_equal(rollout.tokens, plain.tokens)
    np.testing.assert_allclose(rollout.log_probs, plain.log_probs, atol=1e-5)


def test_scanned_layers_sample_the_same_tokens():
    stacked = {**PARAMS, "blocks": jax.tree.map(lambda leaf: leaf[None], PARAMS["blocks"]["layer_0"])}
    scanned = decoding(config=dataclasses.replace(CONFIG, scan_layers=True))(stacked, prompts_of(), key=KEY)
    unrolled = decoding()(PARAMS, prompts_of(), key=KEY)
    np.testing.assert_array_equal(scanned.tokens, unrolled.tokens)


def test_eight_devices_sample_the_same_tokens_as_one():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    groups, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
    prompts, params = jax.device_put(prompts_of(), groups), jax.device_put(PARAMS, everywhere)
    spread = decoding()(params, prompts, key=jax.device_put(KEY, everywhere))
    alone = decoding()(PARAMS, prompts_of(), key=KEY)
    assert len(spread.tokens.devices()) == 8
    np.testing.assert_array_equal(spread.tokens, alone.tokens)
    np.testing.assert_array_equal(spread.mask, alone.mask)
    np.testing.assert_allclose(spread.log_probs, alone.log_probs, atol=1e-5)


def test_padding_groups_are_empty_and_leave_the_others_alone():
    prompts = prompts_of()
    padded = prompts._replace(mask=prompts.mask.at[5:].set(False))
    rollout, whole = (decoding()(PARAMS, x, key=KEY) for x in (padded, prompts))
    assert not np.any(rollout.mask[5:])
    assert not np.any(rollout.finished[5:])
    np.testing.assert_array_equal(rollout.log_probs[5:], 0)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[:5], y[:5]), rollout[1:], whole[1:])
    nothing = prompts._replace(mask=jnp.zeros_like(prompts.mask))
    assert not np.any(decoding()(PARAMS, nothing, key=KEY).mask)


def test_greedy_takes_the_likeliest_token_and_records_it_at_temperature_one():
    rollout = decoding(greedy(), (), 0)(PARAMS, prompts_of(), key=KEY)
    assert rollout.mask.all()
    assert not rollout.finished.any()
    jax.tree.map(lambda x: np.testing.assert_array_equal(x, x[:, :1].repeat(G, 1)), rollout.tokens)
    np.testing.assert_allclose(rollout.log_probs, SCORE(PARAMS, rollout, 1.0).log_probs, atol=1e-5)
    for token in range(V):
        other = rollout._replace(tokens=rollout.tokens.at[:, :, -1].set(token))
        assert np.all(SCORE(PARAMS, other, 1.0).log_probs[..., -1] <= rollout.log_probs[..., -1] + 1e-5)


def table(probabilities, positions=1):
    """A position-tabular policy's params with the same distribution at every position."""
    logits = jnp.log(jnp.asarray(probabilities, jnp.float32))
    return {"logits": jnp.broadcast_to(logits, (1, positions, logits.size))}


def prompts_for(groups):
    return Prompts(jnp.zeros((groups, 1), jnp.int32), jnp.ones((groups, 1), bool))


@pytest.mark.parametrize("restriction", [{"top_p": 0.8}, {"top_k": 2}])
def test_recorded_log_probs_belong_to_the_whole_distribution(restriction):
    generate = jax.jit(sampler(position_tabular(4, 3), categorical(**restriction), 50, 3, (), 0))
    rollout = generate(table([0.5, 0.3, 0.15, 0.05], 3), prompts_for(2), key=KEY)
    assert set(np.unique(rollout.tokens)) == {0, 1}
    np.testing.assert_allclose(rollout.log_probs, np.log([0.5, 0.3, 0.15, 0.05])[rollout.tokens], atol=1e-6)


@pytest.mark.parametrize(("end_ids", "pad_id"), [((1,), 0), ((1,), 1), ((1, 3), 3), ((), 1), ((0, 1, 2, 3), 2)])
def test_masks_are_positions_whatever_the_end_and_pad_ids(end_ids, pad_id):
    generate = jax.jit(sampler(position_tabular(4, 5), categorical(), 40, 5, end_ids, pad_id))
    rollout = generate(table([0.4, 0.2, 0.2, 0.2], 5), prompts_for(2), key=KEY)
    check_ends(rollout, end_ids, pad_id)


def test_a_completion_that_ends_with_the_last_token_of_the_budget_is_finished_and_no_other_of_that_length():
    generate = jax.jit(sampler(position_tabular(3, 2), categorical(), 40, 2, (1,), 0))
    ends_last = {"logits": jnp.array([[[0.0, -jnp.inf, 0.0], [0.0, 0.0, 0.0]]])}
    rollout = generate(ends_last, prompts_for(1), key=KEY)
    assert rollout.mask.all()
    np.testing.assert_array_equal(rollout.finished, rollout.tokens[..., -1] == 1)
    assert 0 < np.mean(rollout.finished) < 1


def test_decoding_stops_once_every_row_has_ended():
    steps, policy = [], position_tabular(2, 50)

    def counted(*arguments):
        jax.debug.callback(lambda: steps.append(1))
        return policy.decode(*arguments)

    generate = jax.jit(sampler(policy._replace(decode=counted), categorical(), 2, 50, (1,), 0))
    never_first = jnp.full((1, 50, 2), 30.0).at[0, :3, 1].set(-30).at[0, 3:, 0].set(-30)
    rollout = jax.block_until_ready(generate({"logits": never_first}, prompts_for(2), key=KEY))
    jax.effects_barrier()
    np.testing.assert_array_equal(rollout.mask.sum(-1), 4)
    assert len(steps) == 3


def test_no_two_rows_and_no_two_steps_share_noise():
    size, length = 97, 12
    generate = jax.jit(sampler(position_tabular(size, length), categorical(), 8, length, (), 0))
    params = table(np.full(size, 1 / size), length)
    rollout, again, other = (generate(params, prompts_for(8), key=key) for key in (KEY, KEY, jax.random.key(8)))
    tokens = np.asarray(rollout.tokens).reshape(64, length)
    assert len({tuple(row) for row in tokens}) == 64
    assert len({tuple(column) for column in tokens.T}) == length
    agreement = [np.mean(a == b) for a, b in itertools.combinations(tokens.T, 2)]
    assert np.mean(agreement) == pytest.approx(1 / size, abs=0.005)
    again, other = (
        generate(table(np.full(size, 1 / size), length), prompts_for(8), key=k) for k in (KEY, jax.random.key(8))
    )
    np.testing.assert_array_equal(again.tokens, rollout.tokens)
    assert np.mean(np.asarray(other.tokens == rollout.tokens)) < 0.05


def test_completions_have_the_policys_probabilities():
    policy, members = prefix_tabular(3, 2), 20_000
    params = policy.init(key=jax.random.key(2))
    rollout = jax.jit(sampler(policy, categorical(0.7), members, 2, (), 0))(params, prompts_for(1), key=KEY)
    counts = np.bincount(np.asarray(rollout.tokens[0] @ jnp.array([3, 1])), minlength=9)
    first, second = (np.asarray(jax.nn.softmax(params["logits"][0, rows] / 0.7)) for rows in (0, slice(1, 4)))
    expected = members * (first[:, None] * second).reshape(-1)
    assert np.sum((counts - expected) ** 2 / expected) < 8 + 4 * np.sqrt(16)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"group_size": 0}, "group_size is 0"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"end_ids": (1, 4)}, "end_ids has 4"),
        ({"pad_id": -1}, "pad_id has -1"),
    ],
)
def test_a_wrong_number_is_refused_by_name_and_value(wrong, named):
    right = {"group_size": 2, "max_tokens": 3, "end_ids": (1,), "pad_id": 0}
    with pytest.raises(ValueError, match=named):
        sampler(position_tabular(4, 3), categorical(), **{**right, **wrong})


def test_one_token_is_the_shortest_budget():
    generate = jax.jit(partial(sampler(position_tabular(4, 1), categorical(), 3, 1, (1,), 0)))
    check_ends(generate(table([0.25] * 4), prompts_for(2), key=KEY), (1,), 0)
