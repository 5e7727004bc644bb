import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax.rewards import overlong, overlong_penalty, score
from grpo_jax.tasks import completion_ids, encode_prompts
from grpo_jax.testing import ByteTokenizer, scripted_sampler


def test_the_penalty_is_nothing_then_half_then_whole():
    """As in TRL's tests."""
    np.testing.assert_allclose(overlong_penalty(100, 20)(np.array([50, 90, 110])), [0, -0.5, -1], atol=1e-15)


def test_the_penalty_is_clamped_at_minus_one():
    """Unlike in verl and NeMo RL, where it goes on falling."""
    penalty = overlong_penalty(25, 5)
    np.testing.assert_allclose(penalty(np.array([10, 20, 22, 25, 26, 10**6])), [0, 0, -0.4, -1, -1, -1], atol=1e-15)


def penalty_loop(length, max_tokens, cache):
    if length <= max_tokens - cache:
        return 0.0
    if length <= max_tokens:
        return (max_tokens - cache - length) / cache
    return -1.0


@given(st.integers(1, 50), st.data())
def test_the_penalty_agrees_with_the_three_cases_of_the_paper(max_tokens, data):
    cache = data.draw(st.integers(1, max_tokens))
    lengths = np.arange(2 * max_tokens)
    expected = [penalty_loop(length, max_tokens, cache) for length in lengths.tolist()]
    np.testing.assert_allclose(overlong_penalty(max_tokens, cache)(lengths), expected, atol=1e-15)


@given(st.integers(1, 50), st.data())
def test_a_longer_completion_is_never_charged_less(max_tokens, data):
    penalties = overlong_penalty(max_tokens, data.draw(st.integers(1, max_tokens)))(np.arange(2 * max_tokens))
    assert (np.diff(penalties) <= 0).all()
    assert penalties[0] == 0
    assert not np.signbit(penalties[0])


def test_lengths_are_tokens_up_to_the_end_token_not_characters_nor_the_padded_width():
    """As in areal-project/AReaL#1637: the longest finished row is as wide as the batch, one has two-byte letters."""
    tokenizer = ByteTokenizer()
    script = {"p": ["x" * 9, "ä" * 4, "x" * 4, "x" * 20]}.__getitem__
    rollout = scripted_sampler(tokenizer, script, 4, 10)(None, encode_prompts(tokenizer, ["p"], 3))
    ids = completion_ids(rollout)
    assert [len(row) for row in ids] == [10, 9, 5, 10]
    rewards = score([overlong(20, 10)], None, ["p"], [""] * 4, {}, 4, completion_ids=ids)
    np.testing.assert_array_equal(rewards, [[0, 0, 0, 0]])
    rewards = score([overlong(10, 4)], None, ["p"], [""] * 4, {}, 4, completion_ids=ids)
    np.testing.assert_array_equal(rewards, [[-1, -0.75, 0, -1]])


def test_without_token_ids_there_is_no_guess_at_the_length():
    with pytest.raises(RuntimeError, match="'overlong' raised ValueError on 1 completions .*pass completion_ids"):
        score([overlong(10, 4)], None, ["p"], ["a"], {}, 1)


@pytest.mark.parametrize("cache", [0, -1, 11])
@pytest.mark.parametrize("factory", [overlong, overlong_penalty])
def test_a_cache_outside_the_budget_is_refused(factory, cache):
    with pytest.raises(ValueError, match=f"cache {cache} of the overlong penalty"):
        factory(10, cache)
