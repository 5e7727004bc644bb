"""Tasks of reasoning-gym: the same problems every time, none of them twice, judged by the package."""

import sys

import pytest

from grpo_jax.rewards import score
from grpo_jax.tasks import for_rewards, pretrained_tokenizer, reasoning_gym
from tests.tasks.builders import save_tokenizer

pytest.importorskip("reasoning_gym")
OPTIONS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return pretrained_tokenizer(folder, (1,))


@pytest.fixture(scope="module")
def task(tokenizer):
    return reasoning_gym(tokenizer, "chain_sum", {**OPTIONS, "max_digits": 3}, system="")


def test_problems_depend_on_the_index_and_the_seed_alone(tokenizer, task):
    again = reasoning_gym(tokenizer, "chain_sum", {**OPTIONS, "max_digits": 3}, system="", seed=1)
    first = task.examples("train", 0, 6)
    assert task.examples("train", 4, 2) == first[4:]
    assert again.examples("train", 0, 6) != first
    assert task.splits == {"train": None, "validation": 512}
    assert all(example.prompt.startswith("[user]") for example in first)


def test_no_training_problem_is_also_in_the_validation_split_and_none_is_too_long(tokenizer, task):
    aside = {example.prompt for example in task.examples("validation", 0, 512)}
    trained = task.examples("train", 19_400, 200)  # from one pass to the next
    assert not aside & {example.prompt for example in trained}
    assert all(len(tokenizer.encode(example.prompt)) <= task.max_prompt_tokens for example in trained)


def test_the_package_judges_the_answer(task):
    examples = task.examples("validation", 0, 1)
    right = examples[0].columns["answer"]
    texts = [right, f"so <answer> {right} </answer>", "no idea"]
    prompts, completions = for_rewards(examples, texts)
    columns = {name: [value] for name, value in examples[0].columns.items()}
    assert score([task.reward], None, prompts, completions, columns, 3).tolist() == [[1, 1, 0]]


def test_what_the_package_does_not_have_is_said(tokenizer, monkeypatch):
    with pytest.raises(ValueError, match="no data set 'chain_sums' among .*; did you mean .*'chain_sum'"):
        reasoning_gym(tokenizer, "chain_sums")
    for options in ({"max_term": 2}, {"min_terms": 3, "max_terms": 2}):
        with pytest.raises(ValueError, match="chain_sum with .*; its options are .'min_terms', 'max_terms'"):
            reasoning_gym(tokenizer, "chain_sum", options)
    with pytest.raises(ValueError, match="but max_prompt_tokens is 3"):
        reasoning_gym(tokenizer, "chain_sum", max_prompt_tokens=3)
    with pytest.raises(ValueError, match="seed -1 is negative"):
        reasoning_gym(tokenizer, "chain_sum", seed=-1)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(ImportError, match=r"pip install 'grpo-jax\[reasoning-gym\]'"):
        reasoning_gym(tokenizer, "chain_sum")


def test_a_data_set_with_hardly_any_problems_is_refused_when_they_run_out(tokenizer):
    small = reasoning_gym(tokenizer, "chain_sum", {**OPTIONS})
    with pytest.raises(ValueError, match="problems in a row are in the validation split"):
        small.examples("train", 0, 3000)
