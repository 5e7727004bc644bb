"""From what a prompt is written as, text or chat, to the text that the policy reads."""

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_jax.tasks.task import ChatTokenizer, Example, Message, Tokenizer


def rendered(tokenizer: Tokenizer, source: str | Sequence[Message]) -> str:
    """Returns what the policy reads.

    Args:
        tokenizer: the tokenizer.
        source: a text, which begins as the model expects texts to begin; or the messages of a chat, which become text
            by the model's template.

    Raises:
        ValueError: a chat, and the tokenizer has no template or the template refuses it.
    """
    if isinstance(source, str):
        return tokenizer.begun(source) if isinstance(tokenizer, ChatTokenizer) else source
    if not isinstance(tokenizer, ChatTokenizer):
        raise ValueError(f"a {type(tokenizer).__name__} has no chat template: give prompts as text")
    return tokenizer.chat(source)


def as_chat(source: str | Sequence[Message], system: str) -> list[Message]:
    """Returns a prompt as a chat after a system message.

    Args:
        source: a text, which becomes a user's turn, or a chat.
        system: the system message; empty: none.

    Raises:
        ValueError: the chat has a system message of its own.
    """
    messages: list[Message] = [{"role": "user", "content": source}] if isinstance(source, str) else list(source)
    if not system:
        return messages
    if messages and messages[0]["role"] == "system":
        raise ValueError("the chat has a system message of its own: leave the other one out")
    return [{"role": "system", "content": system}, *messages]


def completion_text(completion: str | Sequence[Message]) -> str:
    """Returns the text of a completion, which reward functions receive as messages where the prompt is a chat."""
    return completion if isinstance(completion, str) else completion[-1]["content"]


def for_rewards(
    examples: Sequence[Example], completions: Sequence[str]
) -> tuple[list[str | Sequence[Message]], list[str | list[Message]]]:
    """Returns prompts and completions as reward functions expect them, by TRL's convention.

    Args:
        examples: P examples.
        completions: P * G texts, group by group.

    Returns:
        P prompts and P * G completions: texts where the prompt is a text, messages where it is a chat.
    """
    sources = [example.prompt if example.source is None else example.source for example in examples]
    size = len(completions) // max(1, len(examples))
    answers: list[str | list[Message]] = [
        text if isinstance(sources[row // size], str) else [{"role": "assistant", "content": text}]
        for row, text in enumerate(completions)
    ]
    return sources, answers


def checked_prompt(value: Any) -> str | list[Message]:
    """Returns a prompt that is a text or a chat.

    Args:
        value: what a data set has as a prompt.

    Raises:
        ValueError: it is neither, or empty.
    """
    if isinstance(value, str) and value:
        return value
    if isinstance(value, Sequence) and value and all(_is_message(each) for each in value):
        return list(value)
    raise ValueError(f'the prompt is {value!r}: give text, or messages such as {{"role": "user", "content": "..."}}')


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)
