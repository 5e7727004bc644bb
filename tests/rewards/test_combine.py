import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from grpo_jax.rewards import overlong, score, score_each, weighted_sum
from grpo_jax.tasks import arithmetic, columns_of

NAN = float("nan")


def right(prompts, completions, *, answer, **columns):
    return [float(completion == gold) for completion, gold in zip(completions, answer, strict=True)]


def length(prompts, completions, **columns):
    return [float(len(completion)) for completion in completions]


def table(*rows):
    def looked_up(prompts, completions, **columns):
        return list(rows)

    return looked_up


def test_prompts_and_columns_are_repeated_for_the_completions_of_their_group():
    """As in PrimeIntellect-ai/prime-rl#600: the order is 0, 0, 1, 1; a prompt is given once, so groups cannot mix."""
    seen = []

    def recording(prompts, completions, **columns):
        seen.append((prompts, completions, columns))
        return [0.0] * len(completions)

    score([recording], None, ["p", "q"], ["a", "b", "c", "d"], {"answer": [1, 2]}, 2)
    assert seen == [(["p", "p", "q", "q"], ["a", "b", "c", "d"], {"answer": [1, 1, 2, 2]})]


def test_rewards_come_back_by_group():
    rewards = score([right], None, ["1+1=", "1+2="], ["2", "3", "3", "4"], {"answer": ["2", "3"]}, 2)
    np.testing.assert_array_equal(rewards, [[1, 0], [1, 0]])
    assert rewards.dtype == np.float32


def test_a_completion_that_cannot_be_scored_is_nan_and_not_zero():
    """As in huggingface/trl#5902."""
    np.testing.assert_array_equal(score([table(1, None, 0, 1)], None, ["p"], ["a"] * 4, {}, 4), [[1, NAN, 0, 1]])


def test_weights_apply_to_their_functions():
    """As in TRL's tests: weights [.7, .3] on rewards [1, 0]."""
    np.testing.assert_allclose(score([table(1), table(0)], [0.7, 0.3], ["p"], ["a"], {}, 1), [[0.7]], rtol=1e-7)


def test_one_weight_scales_every_reward():
    """As in NeMo RL's tests."""
    rewards = score([table(1, 0.5, 0.8)], [0.7], ["p"], ["a"] * 3, {}, 3)
    np.testing.assert_allclose(rewards, [[0.7, 0.35, 0.56]], rtol=1e-6)


def test_a_function_that_cannot_score_counts_nothing_and_nan_remains_only_where_none_could():
    functions = [table(1, None, None, NAN), table(2, 2, None, 3)]
    np.testing.assert_array_equal(score(functions, [1.0, 10.0], ["p", "q"], ["a"] * 4, {}, 2), [[21, 20], [NAN, 30]])


def test_unreduced_rewards_keep_the_functions_apart_under_unique_names():
    rewards = score_each([right, length, length], ["1+1="], ["2", "33"], {"answer": ["2"]}, 2)
    np.testing.assert_array_equal(rewards.values, [[[1, 1, 1], [0, 2, 2]]])
    assert rewards.values.dtype == np.float32
    assert rewards.names == ("right", "length", "length_2")


def test_token_ids_reach_the_functions_only_where_given():
    def counting(prompts, completions, **columns):
        return [float(len(ids)) for ids in columns.get("completion_ids", [[]] * len(completions))]

    given_ids = score([counting], None, ["p"], ["a", "b"], {}, 2, completion_ids=[[5, 1], [5, 6, 1]])
    np.testing.assert_array_equal(given_ids, [[2, 3]])
    np.testing.assert_array_equal(score([counting], None, ["p"], ["a", "b"], {}, 2), [[0, 0]])


def test_task_reward_and_length_penalty_combine():
    """As in NeMo RL's tests, but with the penalty clamped at -1: .4 - .5 instead of .4 - 1 in the last row."""
    functions = [table(1, 0.8, 0.6, 0.4), overlong(25, 5)]
    ids = [[7] * n for n in (10, 22, 25, 30)]
    rewards = score(functions, [1.0, 0.5], ["p"], ["a"] * 4, {}, 4, completion_ids=ids)
    np.testing.assert_allclose(rewards, [[1, 0.6, 0.1, -0.1]], atol=1e-7)


def test_the_arithmetic_task_is_scored_from_its_examples():
    task = arithmetic()
    examples = task.examples("validation", 0, 5)
    completions = [text for e in examples for text in (task.demonstration(e), "x")]
    rewards = score([task.reward], None, [e.prompt for e in examples], completions, columns_of(examples), 2)
    np.testing.assert_array_equal(rewards, [[1, 0]] * 5)


def weighted_sum_loop(values, weights):
    out = np.empty(values.shape[:2])
    for p in range(values.shape[0]):
        for g in range(values.shape[1]):
            total, scored = 0.0, False
            for reward, weight in zip(values[p, g].tolist(), weights, strict=True):
                if reward == reward:
                    total, scored = total + weight * reward, True
            out[p, g] = total if scored else NAN
    return out


@given(
    hnp.arrays(np.float32, (2, 3, 2), elements=st.one_of(st.just(NAN), st.floats(-100, 100, width=32))),
    st.lists(st.floats(-3, 3), min_size=2, max_size=2),
)
def test_the_weighted_sum_agrees_with_a_plain_loop(values, weights):
    np.testing.assert_allclose(weighted_sum(values, weights), weighted_sum_loop(values, weights), rtol=1e-6, atol=1e-30)


@given(hnp.arrays(np.float32, (2, 3, 2), elements=st.one_of(st.just(NAN), st.floats(-100, 100, width=32))))
def test_the_order_of_the_functions_does_not_matter(values):
    backwards = weighted_sum(values[..., ::-1], [3.0, 2.0])
    np.testing.assert_array_equal(weighted_sum(values, [2.0, 3.0]), backwards)


@pytest.mark.parametrize(
    ("completions", "prompts", "group_size", "message"),
    [
        (6, 2, 4, "6 completions for 2 prompts in groups of 4: expected 8"),  # huggingface/trl#2858
        (7, 2, 4, "7 completions for 2 prompts in groups of 4: expected 8"),  # THUDM/slime#1918
        (9, 2, 4, "9 completions"),
        (4, 1, 8, "4 completions for 1 prompts in groups of 8"),  # huggingface/trl#3842
        (0, 0, 4, "no prompts"),
        (4, 4, 0, "group_size 0"),
    ],
)
def test_incomplete_groups_are_refused_before_any_function_is_called(completions, prompts, group_size, message):
    def never(prompts, completions, **columns):
        raise AssertionError

    with pytest.raises(ValueError, match=message):
        score([never], None, ["p"] * prompts, ["a"] * completions, {}, group_size)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"functions": []}, "no reward function"),
        ({"weights": [1.0, 2.0]}, "2.0\\] for 1 reward functions"),
        ({"weights": []}, "for 1 reward functions"),
        ({"weights": [NAN]}, "not all finite"),
        ({"weights": [float("inf")]}, "not all finite"),
        ({"columns": {"answer": [1, 2, 3, 4]}}, "column 'answer' has 4 entries, expected 2"),
        ({"columns": {"prompts": [1, 2]}}, "column 'prompts'"),
        ({"columns": {"completion_ids": [1, 2]}}, "column 'completion_ids'"),
        ({"completion_ids": [[1], [2]]}, "completion_ids has 2 entries, expected 4"),
        ({"functions": [table(None, None, NAN, None)]}, "no reward: looked_up returned None or NaN for all 4"),
        ({"functions": [table(3e38, 0, 0, 0)], "weights": [2.0]}, "row 0 is infinite in float32"),
        ({"functions": [table(0, 0, 0, 3e38)], "weights": [-2.0]}, "row 3 is infinite in float32"),
    ],
)
def test_bad_input_is_a_clear_error(arguments, message):
    correct = {
        "functions": [length],
        "weights": None,
        "prompts": ["p", "q"],
        "completions": ["a"] * 4,
        "columns": {},
        "group_size": 2,
    }
    with pytest.raises(ValueError, match=message):
        score(**(correct | arguments))


def test_one_function_may_be_silent_when_another_scores():
    rewards = score_each([table(None, None), table(1, 2)], ["p"], ["a", "b"], {}, 2)
    np.testing.assert_array_equal(rewards.values, [[[NAN, 1], [NAN, 2]]])
