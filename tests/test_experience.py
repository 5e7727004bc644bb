"""Sampling, scoring and the replacement of groups that teach nothing, with a sampler that says what it is told."""

import jax
import numpy as np
import pytest

from grpo_jax.components import build
from grpo_jax.experience import Collector, score
from grpo_jax.tasks import Example, encode_prompts, rollout_from_texts
from grpo_jax.testing import scripted_sampler
from tests.runs import TINY
from tests.test_every_field import changed

GROUPS, SIZE, TOKENS = 4, 3, 4
KEY = jax.random.key(0)


def parts_of(values=None, reward=None):
    """What TINY stands for, with some fields and the task's reward replaced."""
    parts = build(changed(TINY, {"rollout.max_tokens": TOKENS, **(values or {})}))
    if reward is None:
        return parts
    return parts._replace(task=parts.task._replace(reward=reward), rewards=(reward, *parts.rewards[1:]))


class Spy:
    """A sampler that follows a script and remembers the keys and prompts it was called with."""

    def __init__(self, tokenizer, script):
        self.calls = []
        self.generate = scripted_sampler(tokenizer, script, SIZE, TOKENS)

    def __call__(self, params, prompts, *, key):
        self.calls.append((jax.random.key_data(key).tolist(), np.asarray(prompts.tokens).tolist()))
        return self.generate(params, prompts, key=key)


def numbered(live):
    """A script under which training problem i has unequal rewards where ``live(i)``, and the index of each prompt."""
    task = build(TINY).task
    texts = [example.prompt for example in task.examples("train", 0, 40)]
    first = {text: index for index, text in reversed(list(enumerate(texts)))}

    def script(prompt):
        return ["1", "1", "2"] if live(first[prompt]) else ["1", "1", "1"]

    return script, texts


def is_one(prompts, completions, **columns):
    return [float(completion == "1") for completion in completions]


def collect(live, rounds, position=0, rows=GROUPS, values=None):
    """The experience, the sampler's calls and the training prompts."""
    script, texts = numbered(live)
    parts = parts_of(values, is_one)
    spy = Spy(parts.task.tokenizer, script)
    collector = Collector(parts, spy, GROUPS, rows, SIZE, rounds)
    return collector.collect(None, position, key=KEY), spy.calls, texts


def spread(experience):
    return np.ptp(experience.batch.rewards[:GROUPS], axis=1)


def test_without_extra_rounds_the_next_problems_are_taken_as_they_come():
    found, calls, texts = collect(lambda index: index % 2 == 0, rounds=0, position=3)
    assert found.prompts == texts[3:7]
    assert (found.rounds, found.consumed, len(calls)) == (1, GROUPS, 1)
    assert found.completions[:SIZE] == ["1", "1", "1"]
    assert found.completions[SIZE : 2 * SIZE] == ["1", "1", "2"]
    np.testing.assert_array_equal(found.batch.rewards, [[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 0]])
    assert found.batch.task_rewards is None
    np.testing.assert_array_equal(found.batch.mask, found.rollout.mask)
    np.testing.assert_array_equal(found.batch.behaviour_log_probs, found.rollout.log_probs)


def test_degenerate_groups_are_replaced_by_informative_ones_in_the_order_they_were_sampled():
    found, _, texts = collect(lambda index: index % 2 == 0, rounds=5)
    assert found.prompts == [texts[index] for index in (0, 2, 4, 6)]
    assert (spread(found) > 0).all()
    assert (found.rounds, found.consumed) == (2, 2 * GROUPS)


def test_a_batch_that_is_informative_at_once_needs_no_extra_round():
    found, calls, texts = collect(lambda index: True, rounds=5)
    assert (found.rounds, found.consumed, len(calls)) == (1, GROUPS, 1)
    assert found.prompts == texts[:GROUPS]


@pytest.mark.parametrize("rounds", [1, 3])
def test_extra_rounds_are_bounded_and_the_batch_is_filled_up_with_degenerate_groups(rounds):
    found, calls, texts = collect(lambda index: index == 2, rounds=rounds)
    assert (found.rounds, found.consumed, len(calls)) == (1 + rounds, (1 + rounds) * GROUPS, 1 + rounds)
    assert found.prompts == [texts[index] for index in (2, 0, 1, 3)]
    np.testing.assert_array_equal(spread(found) > 0, [True, False, False, False])


def test_every_round_has_noise_of_its_own_and_the_next_problems():
    _, calls, texts = collect(lambda index: False, rounds=2, position=4)
    keys = [tuple(key) for key, _ in calls]
    assert len(set(keys)) == 3
    tokenizer = build(TINY).task.tokenizer
    for number, (_, tokens) in enumerate(calls):
        expected = encode_prompts(tokenizer, texts[4 + 4 * number :][:4], build(TINY).task.max_prompt_tokens)
        np.testing.assert_array_equal(tokens, expected.tokens)


def test_collecting_twice_gives_the_same():
    one, _, _ = collect(lambda index: index % 3 == 0, rounds=4)
    other, _, _ = collect(lambda index: index % 3 == 0, rounds=4)
    jax.tree.map(np.testing.assert_array_equal, one.rollout, other.rollout)
    jax.tree.map(np.testing.assert_array_equal, one.batch, other.batch)
    np.testing.assert_array_equal(one.versions, other.versions)
    assert one[3:] == other[3:]


def test_rows_that_the_mesh_asks_for_are_padding_that_counts_nowhere():
    found, _, _ = collect(lambda index: index % 2 == 0, rounds=3, rows=6)
    assert {leaf.shape[0] for leaf in jax.tree.leaves((found.rollout, found.batch))} == {6}
    assert found.batch.valid.tolist() == [[True] * SIZE] * GROUPS + [[False] * SIZE] * 2
    assert not found.rollout.prompts.mask[GROUPS:].any()
    assert len(found.prompts) == GROUPS
    assert len(found.completions) == GROUPS * SIZE


def test_what_counts_as_equal_follows_the_objectives_tolerance():
    found, _, _ = collect(lambda index: True, rounds=1, values={"objective.tolerance": 1.0})
    assert found.rounds == 2


def test_groups_are_degenerate_by_the_tasks_rewards_not_by_what_is_added():
    # "1" ends in time, "111" is charged for its length; the task finds both equally wrong or right.
    script = {"a": ["1", "1", "111"], "b": ["1", "2", "1"]}

    def starts_with_one(prompts, completions, **columns):
        return [float(completion.startswith("1")) for completion in completions]

    parts = parts_of({"reward.overlong_cache": 2}, starts_with_one)
    examples = [Example("1+1=", {"answer": "2"}), Example("2+2=", {"answer": "4"})]
    prompts = encode_prompts(parts.task.tokenizer, [example.prompt for example in examples], 6)
    completions = script["a"] + script["b"]
    rollout = rollout_from_texts(parts.task.tokenizer, prompts, completions, TOKENS)
    batch = score(parts, rollout, examples, completions, SIZE)
    np.testing.assert_allclose(batch.rewards, [[1, 1, 0], [1, 0, 1]])
    np.testing.assert_array_equal(batch.task_rewards, [[1, 1, 1], [1, 0, 1]])

    # The first training problem's group differs by the charge alone, so one more round is sampled.
    texts = [example.prompt for example in parts.task.examples("train", 0, 8)]
    lines = {text: script["b"] for text in texts} | {texts[0]: script["a"]}
    spy = Spy(parts.task.tokenizer, lines.__getitem__)
    found = Collector(parts, spy, GROUPS, GROUPS, SIZE, 3).collect(None, 0, key=KEY)
    assert found.rounds == 2
    assert texts[0] not in found.prompts


def test_several_rewards_reach_an_objective_that_takes_them_apart():
    values = {"reward.overlong_cache": 2, "objective.advantage": "separately_standardised"}
    found, _, _ = collect(lambda index: index == 0, rounds=0, values=values)
    assert found.batch.rewards.shape == (GROUPS, SIZE, 2)
    np.testing.assert_array_equal(found.batch.rewards[..., 0], found.batch.task_rewards)


@pytest.mark.parametrize("apart", [False, True])
def test_a_completion_that_the_task_cannot_score_has_no_reward_whatever_is_added(apart):
    def unknown_two(prompts, completions, **columns):
        return [None if completion == "2" else 1.0 for completion in completions]

    values = {"reward.overlong_cache": 2}
    values |= {"objective.advantage": "separately_standardised"} if apart else {}
    parts = parts_of(values, unknown_two)
    completions = ["1", "2", "111"]
    prompts = encode_prompts(parts.task.tokenizer, ["1+1="], 6)
    rollout = rollout_from_texts(parts.task.tokenizer, prompts, completions, TOKENS)
    rewards = score(parts, rollout, [Example("1+1=", {"answer": "2"})], completions, SIZE).rewards
    np.testing.assert_array_equal(np.isnan(rewards[0]).reshape(SIZE, -1).all(axis=1), [False, True, False])


def broken(prompts, completions, **columns):
    raise KeyError("no such column")


@pytest.mark.parametrize(
    ("reward", "error", "message"),
    [
        (lambda prompts, completions, **_: [1.0], ValueError, "returned 1 rewards, expected 12: one per completion"),
        (lambda prompts, completions, **_: [None] * len(completions), ValueError, "None or NaN for all 12 completions"),
        (lambda prompts, completions, **_: [np.nan] * len(completions), ValueError, "None or NaN for all 12"),
        (lambda prompts, completions, **_: ["1"] * len(completions), TypeError, "returned '1' .str. for row 0"),
        (broken, RuntimeError, "reward function 'broken' raised KeyError on 12 completions"),
    ],
)
def test_a_reward_function_that_fails_is_named_with_what_it_did(reward, error, message):
    parts = parts_of(None, reward)
    spy = Spy(parts.task.tokenizer, lambda _: ["1"] * SIZE)
    with pytest.raises(error, match=message):
        Collector(parts, spy, GROUPS, GROUPS, SIZE, 0).collect(None, 0, key=KEY)


def test_a_prompt_beyond_the_tasks_limit_is_refused():
    parts = parts_of()
    task = parts.task._replace(examples=lambda split, start, count: [Example("1" * 99 + "=", {"answer": "1"})] * count)
    spy = Spy(parts.task.tokenizer, lambda _: ["1"] * SIZE)
    with pytest.raises(ValueError, match="prompt 0 has 100 tokens, the limit is 8"):
        Collector(parts._replace(task=task), spy, GROUPS, GROUPS, SIZE, 0).collect(None, 0, key=KEY)
    assert spy.calls == []
