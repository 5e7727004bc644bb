"""The parts of a run whose model and data are not on this machine: what their shapes alone decide."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from grpo_jax.components import Checkpoint
from grpo_jax.components.checkpoint import numerics
from grpo_jax.config import Config
from grpo_jax.models import DecoderConfig, pretrained
from grpo_jax.tasks import Example, Task


class _Outline(NamedTuple):
    """A tokenizer of which only the numbers that compiled programs depend on are known."""

    vocabulary_size: int
    pad_id: int = 0
    end_ids: tuple[int, ...] = (1, 2)

    def encode(self, text: str) -> list[int]:
        raise RuntimeError("a plan reads no text")

    def decode(self, ids: Sequence[int]) -> str:
        raise RuntimeError("a plan writes no text")


class Outline(NamedTuple):
    """What stands in for a model and its data, see ``compile_program``; both None where nothing needs to be read.

    Attributes:
        checkpoint: a model without weights.
        task: problems without text.
    """

    checkpoint: Checkpoint | None
    task: Task | None


def outline(config: Config, shape: Path | None = None) -> Outline:
    """Returns stand-ins for a configuration's model and data, as far as shapes go; no weight or text is read.

    Args:
        config: the run.
        shape: the model's config.json. None: that of ``model.path``, or the published one of the model's name.

    Returns:
        The stand-ins; None each where the run starts from a new model on a task that generates its problems.

    Raises:
        ValueError: a shape or a length that nothing says.
    """
    if config.model.path is None:
        if shape is not None:
            raise ValueError(f"--config-json {shape} has no effect without model.path; leave it out")
        return Outline(None, None)
    decoder = _decoder(config, shape)
    if config.task.max_prompt_tokens is None:
        raise ValueError(
            "task.max_prompt_tokens is missing: without the data nothing says how long prompts are; set "
            "--task.max-prompt-tokens"
        )
    if config.rollout.max_tokens is None:
        raise ValueError("rollout.max_tokens is missing: set --rollout.max-tokens, the budget of a completion")
    tokenizer: Any = _Outline(decoder.vocabulary_size)
    task = Task(
        name=config.task.kind,
        tokenizer=tokenizer,
        examples=_no_examples,
        reward=lambda prompts, completions, **_: [0.0] * len(completions),
        splits={"train": None},
        demonstration=None,
        max_prompt_tokens=config.task.max_prompt_tokens,
        max_completion_tokens=None,
    )
    return Outline(Checkpoint(decoder, tokenizer, _no_weights, _no_weights), task)


def _decoder(config: Config, shape: Path | None) -> DecoderConfig:
    assert config.model.path is not None
    path, computed = Path(config.model.path), numerics(config.model)
    if shape is not None:
        return pretrained.config_of(json.loads(shape.read_text(encoding="utf-8")), str(shape), **computed)
    if (path / "config.json").is_file():
        return pretrained.read_config(path, **computed)
    if path.name in pretrained.PUBLISHED:
        return pretrained.published_config(path.name, **computed)
    raise ValueError(
        f"model.path={path}: it is not here, and its shape is not one of {', '.join(pretrained.PUBLISHED)}; give its "
        "config.json with --config-json"
    )


def _no_examples(split: str, start: int, count: int) -> list[Example]:
    raise RuntimeError(f"a plan reads no problem, and these are {count} of {split} from {start} on")


def _no_weights(*_: Any) -> Any:
    raise RuntimeError("a plan reads and writes no weights")
