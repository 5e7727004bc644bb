"""What a task is: prompts, the columns its reward needs, and the reward."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable


@runtime_checkable
class Tokenizer(Protocol):
    """Text to token ids and back.

    ``decode`` must not hide a token that is no text: a completion with padding sampled into its middle is not the
    completion without it.
    """

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids, special ones included."""
        ...

    @property
    def pad_id(self) -> int:
        """The id written where the mask is False."""
        ...

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The ids that end a completion; the first is the one written after a demonstration."""
        ...

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of a text, without any special token."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of token ids, up to the first end token."""
        ...


Message = Mapping[str, Any]
"""A turn of a chat: ``{"role": "user", "content": "..."}``."""


@runtime_checkable
class ChatTokenizer(Tokenizer, Protocol):
    """A tokenizer that knows how its model reads texts and chats."""

    def begun(self, text: str) -> str:
        """Returns a text with what the model expects before every text, such as "<s>"."""
        ...

    def chat(self, messages: Sequence[Message]) -> str:
        """Returns the text of a chat, up to where the model's answer begins."""
        ...


class Example(NamedTuple):
    """One problem.

    Attributes:
        prompt: what the policy reads.
        columns: what the reward function receives by name, for instance ``{"answer": "42"}``.
        source: what the prompt was made from, a text or the messages of a chat, and what reward functions receive as
            the prompt. None: the prompt itself.
    """

    prompt: str
    columns: dict[str, Any]
    source: str | Sequence[Message] | None = None


class Task(NamedTuple):
    """Problems and their reward.

    Attributes:
        name: the task's name, for run folders and pictures.
        tokenizer: its alphabet.
        examples: ``(split, start, count) -> list[Example]``, a pure function of the index: it resumes anywhere and does
            not depend on the number of hosts. ValueError for an unknown split or an index beyond its size.
        reward: ``(prompts, completions, **columns) -> list[float | None]``; None where a completion cannot be scored.
        splits: number of problems in each split (None: endless). "train" is trained on, "validation" is in-domain and
            disjoint from it, all others are out-of-domain.
        demonstration: the right completion of an example, for a supervised warm start. None: there is none.
        max_prompt_tokens: no prompt of any split is longer.
        max_completion_tokens: budget that holds the longest right completion of any split and its end token. None:
            not known.
        slip: the completion of somebody who makes the task's typical mistake, right where there is no occasion for it;
            a warm start on a share of these leaves a policy that knows both, for the reward to decide. None: there is
            no typical mistake.
    """

    name: str
    tokenizer: Tokenizer
    examples: Callable[[str, int, int], list[Example]]
    reward: Callable[..., Sequence[float | None]]
    splits: Mapping[str, int | None]
    demonstration: Callable[[Example], str] | None
    max_prompt_tokens: int
    max_completion_tokens: int | None
    slip: Callable[[Example], str] | None = None
    description: str = ""


def check_range(name: str, splits: Mapping[str, int | None], split: str, start: int, count: int) -> None:
    """Raises ValueError for a split that the task does not have, or examples beyond its size.

    Args:
        name: of the task.
        splits: number of problems in each split; None: endless.
        split: the one asked for.
        start: index of the first example.
        count: number of examples.
    """
    if split not in splits:
        raise ValueError(f"unknown split {split!r} of {name}: choose one of {list(splits)}")
    limit = splits[split]
    if start < 0 or count < 0 or (limit is not None and start + count > limit):
        raise ValueError(f"examples {start} to {start + count} of {split!r} do not exist: it has {limit}")


def columns_of(examples: Sequence[Example]) -> dict[str, list[Any]]:
    """Turns the examples' columns into lists, one entry per example.

    Args:
        examples: examples of one task.

    Returns:
        Each column's values in the order of the examples; empty when there is no example.

    Raises:
        ValueError: the examples do not all have the same columns.
    """
    if not examples:
        return {}
    names = examples[0].columns.keys()
    for index, example in enumerate(examples):
        if example.columns.keys() != names:
            raise ValueError(
                f"example {index} ({example.prompt!r}) has columns {sorted(example.columns)}, the first one has "
                f"{sorted(names)}: give every example of a task the same columns (None where one does not apply)"
            )
    return {name: [example.columns[name] for example in examples] for name in names}
