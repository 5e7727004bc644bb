import asyncio
import functools
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.rewards import RewardFunction, score
from grpo_jax.rewards.calls import call, name_of

ROWS = ["a", "bb", "ccc", "dddd"]


def returning(answer):
    def fixed(prompts, completions, **columns):
        return answer

    return fixed


def called(answer, rows=ROWS):
    return call(returning(answer), ["p"] * len(rows), rows, {})


@pytest.mark.parametrize(
    "answer",
    [
        [1.0, 0.0, 0.5, 2.0],
        (1, 0, 0.5, 2),
        [True, False, Fraction(1, 2), np.float64(2)],
        np.array([1, 0, 0.5, 2], np.float32),
        jnp.array([1, 0, 0.5, 2]),
        [jnp.float32(1), np.array(0), np.bool_(False) + 0.5, np.int8(2)],
    ],
)
def test_any_kind_of_real_number_is_accepted(answer):
    rewards = called(answer)
    assert rewards.dtype == np.float32
    np.testing.assert_array_equal(rewards, [1.0, 0.0, 0.5, 2.0])


def test_none_and_nan_are_not_scorable_and_leave_the_other_rows_alone():
    """As in huggingface/trl#5902 and Tencent-Hunyuan/UniRL#330."""
    np.testing.assert_array_equal(called([1, None, float("nan"), 1]), [1, np.nan, np.nan, 1])


@pytest.mark.parametrize("answer", [[1.0], [1.0] * 5, [], np.ones(1), jnp.ones(3)])
def test_a_wrong_number_of_rewards_is_never_broadcast(answer):
    """As in huggingface/trl#6533."""
    with pytest.raises(ValueError, match=f"'fixed' returned {len(answer)} rewards, expected 4"):
        called(answer)


@pytest.mark.parametrize("answer", [None, 1.0, "1111", {0: 1, 1: 1, 2: 1, 3: 1}, (x for x in [1, 1, 1, 1])])
def test_something_that_is_no_list_is_refused(answer):
    with pytest.raises(ValueError, match="'fixed' returned (NoneType|float|str|dict|generator)"):
        called(answer)


def test_a_single_array_value_is_refused():
    with pytest.raises(ValueError, match="'fixed' returned a single value rewards, expected 4"):
        called(np.float32(1) * np.ones(()))


@pytest.mark.parametrize("value", ["1.0", [1.0], 1j, {"reward": 1}])
def test_an_entry_that_is_no_number_is_named_with_its_row(value):
    with pytest.raises(TypeError, match="'fixed' returned .* for row 2"):
        called([1.0, 1.0, value, 1.0])


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), 1e39, -1e300, np.float64(1e39), np.float32(np.inf)])
def test_an_infinite_reward_is_an_error_that_names_the_row(value):
    """As in Tencent-Hunyuan/UniRL#330."""
    with pytest.raises(ValueError, match=r"'fixed' returned .* for row 1, which is infinite"):
        called([0.0, value, 0.0, 0.0])


def test_what_a_function_raises_is_raised_with_its_name_and_the_number_of_rows():
    def broken(prompts, completions, **columns):
        raise KeyError("gold")

    with pytest.raises(
        RuntimeError, match=r"'broken' raised KeyError on 4 completions .*\['answer'\]\): 'gold'"
    ) as info:
        call(broken, ["p"] * 4, ROWS, {"answer": ["1"] * 4})
    assert isinstance(info.value.__cause__, KeyError)


def test_a_function_that_does_not_accept_the_columns_says_so():
    def narrow(prompts, completions):
        return [1.0] * len(completions)

    with pytest.raises(RuntimeError, match="'narrow' raised TypeError .*unexpected keyword argument 'answer'"):
        call(narrow, ["p"] * 4, ROWS, {"answer": ["1"] * 4})


async def judged(prompts, completions, **columns):
    await asyncio.sleep(0)
    return [float(len(completion)) for completion in completions]


def test_asynchronous_functions_are_waited_for():
    np.testing.assert_array_equal(call(judged, ["p"] * 4, ROWS, {}), [1, 2, 3, 4])


def test_asynchronous_functions_work_inside_a_running_loop_as_in_a_notebook():
    async def cell():
        return score([judged], None, ["p", "q"], ROWS, {}, 2)

    np.testing.assert_array_equal(asyncio.run(cell()), [[1, 2], [3, 4]])


def test_what_an_asynchronous_function_raises_inside_a_running_loop_is_named_too():
    async def failing(prompts, completions, **columns):
        raise TimeoutError("judge")

    async def cell():
        return call(failing, ["p"] * 4, ROWS, {})

    with pytest.raises(RuntimeError, match="'failing' raised TimeoutError on 4 completions"):
        asyncio.run(cell())


def test_a_function_that_edits_its_lists_does_not_change_what_others_see():
    def greedy(prompts, completions, *, answer, **columns):
        answer.clear()
        completions[:] = [""] * 4
        return [0.0] * 4

    answers, completions = ["1", "2"], list(ROWS)
    seen = []

    def second(prompts, completions, *, answer, **columns):
        seen.append((list(completions), list(answer)))
        return [1.0] * 4

    score([greedy, second], None, ["p", "q"], completions, {"answer": answers}, 2)
    assert seen == [(ROWS, ["1", "1", "2", "2"])]
    assert completions == ROWS
    assert answers == ["1", "2"]


def test_partial_functions_and_objects_have_names():
    class Judge:
        def __call__(self, prompts, completions, **columns):
            return [0.0] * len(completions)

    assert name_of(functools.partial(functools.partial(judged), style=1)) == "judged"
    assert name_of(Judge()) == "Judge"
    assert isinstance(Judge(), RewardFunction)
