"""Accuracy on problems never trained on."""

import jax
import numpy as np
import pytest

from grpo_jax.evaluation import described, evaluate, out_of_domain, right_of_samples
from grpo_jax.tasks import arithmetic, exact_answer
from grpo_jax.testing import scripted_sampler

TASK = arithmetic(digits=(1, 1))


def answers(right, seen=None):
    """A sampler that solves problem number i of its calls where ``right(i)``."""
    count = iter(range(10_000))
    solutions = {
        example.prompt: example.columns["answer"]
        for split in ("validation", "train", "longer")
        for example in TASK.examples(split, 0, min(200, TASK.splits[split] or 200))
    }

    def script(prompt):
        if seen is not None:
            seen.append(prompt)
        return [solutions[prompt] if right(next(count)) else "-"]

    return scripted_sampler(TASK.tokenizer, script, 1, TASK.max_completion_tokens)


@pytest.mark.parametrize("rows", [1, 3, 4, 8, 64])
def test_the_accuracy_does_not_depend_on_how_the_problems_are_split(rows):
    found = evaluate(TASK, answers(lambda i: i % 4 == 0), None, "validation", 8, rows)
    assert (found.accuracy, found.examples) == (0.25, 8)


def test_every_problem_is_asked_once_and_padding_is_not_scored():
    seen = []
    found = evaluate(TASK, answers(lambda i: True, seen), None, "validation", 7, 4)
    assert seen == [example.prompt for example in TASK.examples("validation", 0, 7)]
    assert (found.accuracy, found.examples) == (1.0, 7)


def test_a_split_smaller_than_asked_for_is_taken_whole():
    size = TASK.splits["validation"]
    assert evaluate(TASK, answers(lambda i: True), None, "validation", 10_000, 64).examples == size < 200


def test_the_first_completions_are_kept_to_be_read():
    samples = evaluate(TASK, answers(lambda i: i > 0), None, "validation", 6, 2, shown=3).samples
    first = TASK.examples("validation", 0, 3)
    assert [sample.prompt for sample in samples] == [example.prompt for example in first]
    assert [sample.completion for sample in samples] == ["-", *(example.columns["answer"] for example in first[1:])]
    assert [sample.reward for sample in samples] == [0.0, 1.0, 1.0]
    assert [sample.expected for sample in samples] == [example.columns["answer"] for example in first]


def test_what_cannot_be_scored_leaves_the_mean_and_is_shown_so():
    def sometimes(prompts, completions, **columns):
        rewards = exact_answer(prompts, completions, **columns)
        return [None if index == 0 else reward for index, reward in enumerate(rewards)]

    found = evaluate(TASK._replace(reward=sometimes), answers(lambda i: i != 1), None, "validation", 4, 4)
    assert found.accuracy == pytest.approx(2 / 3)
    assert [sample.reward for sample in found.samples] == [None, 0.0, 1.0, 1.0]


def test_an_unknown_split_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown split 'test' of arithmetic; choose one of train, validation, longer"):
        evaluate(TASK, answers(lambda i: True), None, "test", 8, 4)


def test_no_examples_are_refused():
    with pytest.raises(ValueError, match="evaluate: 0 examples of 'validation'; give at least 1"):
        evaluate(TASK, answers(lambda i: True), None, "validation", 0, 4)


def test_parts_of_a_random_evaluation_do_not_share_noise():
    keys = []

    def generate(params, prompts, *, key):
        keys.append(tuple(np.asarray(jax.random.key_data(key)).tolist()))
        return answers(lambda i: True)(params, prompts, key=key)

    evaluate(TASK, generate, None, "validation", 12, 4)
    assert len(set(keys)) == 3


def test_out_of_domain_splits_are_neither_trained_on_nor_validated_on():
    assert out_of_domain(TASK) == ["longer", "operators", "format"]
    assert described({"longer": 0.1234, "format": 1.0}) == "longer 0.123, format 1.000"


def test_the_accuracy_has_an_interval_where_rewards_are_shares():
    found = evaluate(TASK, answers(lambda i: i % 4 == 0), None, "validation", 8, 8).interval
    assert found is not None
    assert (found.mean, found.problems) == (0.25, 8)
    assert 0 < found.low < 0.25 < found.high < 1
    wild = TASK._replace(reward=lambda prompts, completions, **columns: [2.0] * len(prompts))
    assert evaluate(wild, answers(lambda i: True), None, "validation", 8, 8).interval is None


@pytest.mark.parametrize("rows", [2, 3, 8])
def test_right_completions_are_counted_problem_by_problem(rows):
    chosen = {example.prompt: number for number, example in enumerate(TASK.examples("validation", 0, 5))}
    solutions = {example.prompt: example.columns["answer"] for example in TASK.examples("validation", 0, 5)}
    keys = []

    def script(prompt):
        # of two completions problem number i has i right ones, at most
        return [solutions[prompt] if member < chosen[prompt] else "-" for member in range(2)]

    def generate(params, prompts, *, key):
        keys.append(tuple(np.asarray(jax.random.key_data(key)).tolist()))
        return scripted_sampler(TASK.tokenizer, script, 2, TASK.max_completion_tokens)(params, prompts, key=key)

    found = right_of_samples(TASK, generate, None, "validation", 5, rows, 3, key=jax.random.key(0))
    np.testing.assert_array_equal(found, [0, 2, 3, 3, 3])
    assert len(set(keys)) == len(keys) == 2 * -(-5 // rows)


def test_no_samples_are_refused():
    with pytest.raises(ValueError, match="0 samples of each problem"):
        right_of_samples(TASK, answers(lambda i: True), None, "validation", 5, 2, 0, key=jax.random.key(0))
