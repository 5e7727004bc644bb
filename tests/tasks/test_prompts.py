import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax.tasks import (
    Example,
    character_tokenizer,
    columns_of,
    completion_ids,
    decode,
    encode_prompts,
    rollout_from_texts,
)
from grpo_jax.types import Rollout

TOKENIZER = character_tokenizer("0123456789+=")


def rollout_of(rows, mask, finished=True) -> Rollout:
    tokens = np.array(rows)[None]
    prompts = encode_prompts(TOKENIZER, ["1="], 2)
    shape = tokens.shape
    return Rollout(
        prompts, tokens, np.array(mask, bool)[None], np.zeros(shape, np.float32), np.full(shape[:2], finished)
    )


def test_prompts_are_padded_on_the_left():
    prompts = encode_prompts(TOKENIZER, ["1=", "12+3="], 5)
    np.testing.assert_array_equal(prompts.tokens, [[0, 0, 0, 3, 13], [3, 4, 12, 5, 13]])
    np.testing.assert_array_equal(prompts.mask, [[0, 0, 0, 1, 1], [1, 1, 1, 1, 1]])
    assert prompts.tokens.dtype == np.int32
    prompts.check()


def test_rows_past_the_texts_are_padding_groups():
    prompts = encode_prompts(TOKENIZER, ["1="], 3, rows=3)
    np.testing.assert_array_equal(prompts.mask.any(axis=-1), [True, False, False])


@pytest.mark.parametrize(
    ("texts", "rows", "message"),
    [
        (["1=", "12+34="], None, "prompt 1 has 6 tokens, the limit is 5"),
        ([""], None, "prompt 0 is empty"),
        (["1=", "2="], 1, "2 prompts do not fit in 1 rows"),
        (["x"], None, "not in the alphabet"),
    ],
)
def test_prompts_that_do_not_fit_are_refused(texts, rows, message):
    with pytest.raises(ValueError, match=message):
        encode_prompts(TOKENIZER, texts, 5, rows)


@given(st.lists(st.text("0123456789", max_size=4), min_size=6, max_size=6))
def test_written_completions_are_read_back_in_the_order_of_the_groups(texts):
    prompts = encode_prompts(TOKENIZER, ["1=", "2=", "3="], 4)
    rollout = rollout_from_texts(TOKENIZER, prompts, texts, 5).check()
    assert rollout.tokens.shape == (3, 2, 5)
    assert decode(TOKENIZER, rollout) == texts
    assert [len(ids) for ids in completion_ids(rollout)] == [len(text) + 1 for text in texts]
    assert np.asarray(rollout.finished).all()


def test_completions_of_padding_groups_are_empty_and_unfinished():
    prompts = encode_prompts(TOKENIZER, ["1="], 4, rows=2)
    rollout = rollout_from_texts(TOKENIZER, prompts, ["5", "6", "7", "8"], 3)
    assert decode(TOKENIZER, rollout) == ["5", "6", "", ""]
    np.testing.assert_array_equal(rollout.finished, [[True, True], [False, False]])


@pytest.mark.parametrize(("texts", "message"), [(["1", "234"], "completion 1 has 4 tokens"), ([], "0 completions")])
def test_demonstrations_that_do_not_fit_are_refused_rather_than_cut(texts, message):
    with pytest.raises(ValueError, match=message):
        rollout_from_texts(TOKENIZER, encode_prompts(TOKENIZER, ["1="], 4), texts, 3)


def test_texts_that_are_no_whole_number_per_prompt_are_refused():
    with pytest.raises(ValueError, match="3 completions for 2 prompts"):
        rollout_from_texts(TOKENIZER, encode_prompts(TOKENIZER, ["1=", "2="], 4), ["1", "2", "3"], 3)


def test_the_mask_and_not_the_width_or_the_value_of_a_token_decides_where_a_completion_stops():
    full_and_ended = rollout_of([[4, 5, 1], [4, 1, 7], [4, 5, 6]], [[1, 1, 1], [1, 1, 0], [1, 1, 1]])
    assert completion_ids(full_and_ended) == [[4, 5, 1], [4, 1], [4, 5, 6]]
    assert decode(TOKENIZER, full_and_ended) == ["23", "2", "234"]


def test_padding_sampled_into_a_completion_stays_visible():
    assert decode(TOKENIZER, rollout_of([[11, 0, 7, 1]], [[1, 1, 1, 1]])) == ["9\ufffd5"]


def test_columns_are_gathered_by_name():
    examples = [Example("1+1=", {"answer": "2", "level": 1}), Example("1+2=", {"answer": "3", "level": None})]
    assert columns_of(examples) == {"answer": ["2", "3"], "level": [1, None]}
    assert columns_of([]) == {}


def test_examples_with_different_columns_are_refused():
    with pytest.raises(ValueError, match=r"example 1 \('b'\) has columns \[\]"):
        columns_of([Example("a", {"answer": "2"}), Example("b", {})])
