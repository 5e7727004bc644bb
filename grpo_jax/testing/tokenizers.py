"""A tokenizer that can write anything."""

from collections.abc import Sequence
from typing import NamedTuple

_PAD, _END = 256, 257


class ByteTokenizer(NamedTuple):
    """One token per UTF-8 byte: ids 0 to 255 are bytes, 256 pads, 257 ends."""

    @property
    def vocabulary_size(self) -> int:
        """Always 258."""
        return 258

    @property
    def pad_id(self) -> int:
        """Always 256."""
        return _PAD

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Always (257,)."""
        return (_END,)

    def encode(self, text: str) -> list[int]:
        """Returns the bytes of the text."""
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text up to the first end token; padding and broken UTF-8 become U+FFFD."""
        content = list(ids)
        content = content[: content.index(_END)] if _END in content else content
        # 0xFF never occurs in UTF-8, so whatever is no byte shows as a replacement character.
        return bytes(token if 0 <= token < _PAD else 0xFF for token in content).decode(errors="replace")
