import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax.tasks import CharacterTokenizer, Tokenizer, character_tokenizer


def test_ids_follow_the_alphabet_after_the_special_tokens():
    tokenizer = character_tokenizer("ab=")
    assert isinstance(tokenizer, Tokenizer)
    assert tokenizer.encode("=ab") == [4, 2, 3]
    assert tokenizer.vocabulary_size == 5
    assert tokenizer.pad_id == 0
    assert tokenizer.end_ids == (1,)


@given(st.text("0123456789+-= ", max_size=12))
def test_decode_undoes_encode(text):
    tokenizer = character_tokenizer("0123456789+-= ")
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(ids) == len(text)
    assert not set(ids) & {tokenizer.pad_id, *tokenizer.end_ids}


def test_decode_stops_at_the_first_end_token():
    assert character_tokenizer("95").decode([2, 3, 1, 2]) == "95"


@pytest.mark.parametrize("stray", [0, 4, 99, -1])
def test_a_token_that_is_no_text_does_not_vanish(stray):
    assert character_tokenizer("95").decode([2, stray, 3]) == "9\ufffd5"


def test_an_unknown_character_is_named_with_its_place():
    with pytest.raises(ValueError, match="'x' at position 1 of '1x'"):
        character_tokenizer("01").encode("1x")


@pytest.mark.parametrize(("alphabet", "message"), [("", "empty"), ("abca", r"repeats \['a'\]")])
def test_a_bad_alphabet_is_refused(alphabet, message):
    with pytest.raises(ValueError, match=message):
        character_tokenizer(alphabet)


def test_tokenizers_of_one_alphabet_are_equal():
    assert character_tokenizer("ab") == CharacterTokenizer("ab")
