"""Reward functions by the name of their module."""

import sys

import numpy as np
import pytest

from grpo_jax.rewards import imported, math_answer, together
from grpo_jax.rewards.calls import call


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_rewards_abc.py").write_text(
        "def length(prompts, completions, **columns):\n    return [len(text) for text in completions]\nnumber = 3\n"
    )
    (tmp_path / "my_broken_abc.py").write_text("1 / 0\n")
    yield
    for name in ("my_rewards_abc", "my_broken_abc"):
        sys.modules.pop(name, None)


def test_a_function_in_the_working_directory_or_anywhere_else_is_found(here):
    assert imported("my_rewards_abc:length")(["p"], ["abc"]) == [3]
    assert imported("grpo_jax.rewards:math_answer") is math_answer


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("length", "reward function 'length': give module:function"),
        (":length", "give module:function"),
        ("my_rewards_abc:", "give module:function"),
        ("my_missing_abc:f", "importing my_missing_abc raised ModuleNotFoundError: .*looked in"),
        ("my_broken_abc:f", "importing my_broken_abc raised ZeroDivisionError: division by zero"),
        ("my_rewards_abc:width", r"my_rewards_abc has no function 'width', only \['length'\]"),
        ("my_rewards_abc:number", "my_rewards_abc has no function 'number'"),
    ],
)
def test_what_is_not_there_is_said(here, name, message):
    with pytest.raises(ValueError, match=message):
        imported(name)


def test_a_function_that_raises_is_reported_with_its_row():
    def picky(prompts, completions, **columns):
        return [1 / len(completion) for completion in completions]

    with pytest.raises(RuntimeError, match="'picky' raised ZeroDivisionError on 3 completions.*probably at row 1, ''"):
        call(picky, ["p"] * 3, ["a", "", "b"], {})


def test_several_functions_make_one():
    def one(prompts, completions, **columns):
        return [None if text == "?" else 1.0 for text in completions]

    def length(prompts, completions, *, bonus, **columns):
        return [None if text == "?" else len(text) + more for text, more in zip(completions, bonus, strict=True)]

    assert together([one], [1.0]) is one
    made = together([one, length], [0.5, 2.0])
    np.testing.assert_array_equal(made(["p"] * 2, ["ab", "?"], bonus=[1, 1]), [6.5, np.nan])
    with pytest.raises(ValueError, match="weights .1.0. for 2 reward functions"):
        together([one, length], [1.0])
