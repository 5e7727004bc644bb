"""Tokenizers and chat templates of pretrained models."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as Backend

from grpo_jax.tasks.characters import REPLACEMENT
from grpo_jax.tasks.task import Message


class PretrainedTokenizer(NamedTuple):
    """A tokenizer read from tokenizer.json, with the chat template that belongs to it.

    The end token may be the padding token: masks are positions, so neither hides the other.

    Attributes:
        backend: the tokenizer itself.
        end_ids: ids of the tokens that end a completion, at least one.
        pad_id: id written where the mask is False.
        template: the chat template, a Jinja text; None: the model has none.
        special: what the template may name: ``{"bos_token": "<s>", ...}``.
    """

    backend: Backend
    end_ids: tuple[int, ...]
    pad_id: int
    template: str | None
    special: Mapping[str, str]

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids, special ones included; a model's own may be larger, padded to a round number."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of a text; special tokens that it spells out become themselves, none is added."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of token ids, up to the first end token.

        Other special tokens stay visible; ids beyond the vocabulary, which a model's padded head may well choose,
        become U+FFFD.
        """
        parts: list[list[int]] = [[]]
        for token in map(int, ids):
            if token in self.end_ids:
                break
            if self.backend.id_to_token(token) is None:
                parts.append([])
            else:
                parts[-1].append(token)
        return REPLACEMENT.join(self.backend.decode(part, skip_special_tokens=False) for part in parts)

    def begun(self, text: str) -> str:
        """Returns a text with the special tokens that the model expects before every text, where there are any."""
        found = self.backend.encode("0", add_special_tokens=True)
        pairs = takewhile(lambda pair: pair[1], zip(found.tokens, found.special_tokens_mask, strict=True))
        start = "".join(token for token, _ in pairs)
        return text if text.startswith(start) else start + text

    def chat(self, messages: Sequence[Message]) -> str:
        """Returns the text of a chat, up to where the model's answer begins.

        Args:
            messages: the turns so far.

        Raises:
            ValueError: the model has no chat template, or it refuses these messages, with its reason.
        """
        if self.template is None:
            raise ValueError(
                "the tokenizer has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json): "
                "give prompts as text, or use the instruct version of the model"
            )
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
        environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
        try:
            compiled = environment.from_string(self.template)
            return compiled.render(messages=list(messages), add_generation_prompt=True, **self.special)
        except (TemplateError, TypeError, ValueError) as error:
            raise ValueError(f"the chat template refuses {list(messages)!r}: {error}") from error


def _refuse(message: str) -> None:
    raise ValueError(message)


def pretrained_tokenizer(folder: str | Path, end_ids: Sequence[int]) -> PretrainedTokenizer:
    """Reads tokenizer.json, tokenizer_config.json and, where there is one, chat_template.jinja.

    Args:
        folder: of the checkpoint.
        end_ids: ids of the tokens that end a completion; `grpo_jax.models.pretrained.end_ids` reads them.

    Returns:
        The tokenizer. It pads with the pad token, or where there is none with the first end token.

    Raises:
        FileNotFoundError: no tokenizer.json.
        ValueError: no end token, or one that the vocabulary does not have.
    """
    path = Path(folder) / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: not found; download it with the model, or save a fast tokenizer there")
    backend = Backend.from_file(str(path))
    backend.no_padding()
    backend.no_truncation()
    size = backend.get_vocab_size(with_added_tokens=True)
    if not end_ids or not all(0 <= token < size for token in end_ids):
        raise ValueError(
            f"{path}: end_ids {tuple(end_ids)} must be tokens of the vocabulary, 0 to {size - 1}, at least 1"
        )
    fields = _json(Path(folder) / "tokenizer_config.json")
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    special = {name: _text(fields[name]) for name in names if fields.get(name) is not None}
    pad_id = backend.token_to_id(special["pad_token"]) if "pad_token" in special else None
    return PretrainedTokenizer(
        backend, tuple(end_ids), end_ids[0] if pad_id is None else pad_id, _template(Path(folder), fields), special
    )


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _text(token: str | Mapping[str, Any]) -> str:
    return token if isinstance(token, str) else token["content"]


def _template(folder: Path, fields: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    found = fields.get("chat_template")
    if isinstance(found, list):  # several by name
        found = {each["name"]: each["template"] for each in found}.get("default")
    return found
