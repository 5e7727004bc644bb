"""One token per character."""

from collections.abc import Sequence
from typing import NamedTuple

REPLACEMENT = "\ufffd"
"""Stands for a token that is no text, so that a stray padding token cannot pass for nothing."""

_SPECIAL = 2


class CharacterTokenizer(NamedTuple):
    """A tokenizer whose tokens are the characters of an alphabet.

    Id 0 pads, id 1 ends; neither is a character, so a policy cannot write one as text. The alphabet follows from id 2.

    Attributes:
        alphabet: the characters, each once.
    """

    alphabet: str

    @property
    def vocabulary_size(self) -> int:
        """Number of characters and the two special tokens."""
        return len(self.alphabet) + _SPECIAL

    @property
    def pad_id(self) -> int:
        """Always 0."""
        return 0

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Always (1,)."""
        return (1,)

    def encode(self, text: str) -> list[int]:
        """Returns one id per character.

        Raises:
            ValueError: a character is not in the alphabet.
        """
        ids = [self.alphabet.find(character) for character in text]
        if -1 in ids:
            place = ids.index(-1)
            raise ValueError(
                f"character {text[place]!r} at position {place} of {text!r} is not in the alphabet {self.alphabet!r}: "
                "build the tokenizer with it"
            )
        return [index + _SPECIAL for index in ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the characters up to the first end token; padding and unknown ids become U+FFFD."""
        characters = []
        for token in ids:
            if token in self.end_ids:
                break
            index = int(token) - _SPECIAL
            characters.append(self.alphabet[index] if 0 <= index < len(self.alphabet) else REPLACEMENT)
        return "".join(characters)


def character_tokenizer(alphabet: str) -> CharacterTokenizer:
    """Builds the tokenizer of an alphabet.

    Args:
        alphabet: the characters in the order of their ids, each once.

    Returns:
        The tokenizer.

    Raises:
        ValueError: the alphabet is empty or repeats a character.
    """
    if not alphabet:
        raise ValueError("alphabet is empty: give the characters that prompts and completions are made of")
    repeated = sorted({character for character in alphabet if alphabet.count(character) > 1})
    if repeated:
        raise ValueError(f"alphabet {alphabet!r} repeats {repeated}: give every character once")
    return CharacterTokenizer(alphabet)
