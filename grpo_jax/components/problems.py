"""The task and the rewards of a configuration."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from grpo_jax import rewards, tasks
from grpo_jax.components.choices import Choice, choose, known, refuse_idle, require
from grpo_jax.config import RewardConfig, TaskConfig
from grpo_jax.rewards import RewardFunction
from grpo_jax.tasks import Task, Tokenizer

SHIPPED: dict[str, RewardFunction] = {
    "math_answer": rewards.math_answer,
    "symbolic_answer": rewards.symbolic_answer,
    "countdown": rewards.countdown,
}
"""Values of ``reward.functions`` that are no module's."""


class Given(NamedTuple):
    """The reward functions that a configuration names.

    Attributes:
        functions: K functions.
        weights: a weight each.
    """

    functions: tuple[RewardFunction, ...]
    weights: tuple[float, ...]


def given_rewards(config: RewardConfig) -> Given | None:
    """Returns the functions that ``reward.functions`` names; None where it names none.

    Raises:
        ValueError: an unknown function, or a weight that is no number.
    """
    if config.functions is None:
        return None
    functions, weights = [], []
    for entry in config.functions.split(","):
        name, equals, weight = entry.strip().partition("=")
        try:
            weights.append(float(weight) if equals else 1.0)
        except ValueError:
            raise ValueError(f"reward.functions: the weight of {name} is {weight!r}; give a number") from None
        if ":" in name:
            functions.append(rewards.imported(name))
        elif name in SHIPPED:
            functions.append(SHIPPED[name])
        else:
            raise ValueError(f"reward.functions: {name!r} is none of {', '.join(SHIPPED)}; give module:function")
    return Given(tuple(functions), tuple(weights))


def own_rewards(config: RewardConfig, given: Given | None, task: Task) -> Given:
    """Returns the task's rewards, each in processes of its own where it has a time limit."""
    found = Given((task.reward,), (1.0,)) if given is None else given
    if config.timeout is None:
        return found
    if not config.timeout > 0:
        raise ValueError(f"reward.timeout is {config.timeout}; give a positive number of seconds")
    limit = config.timeout
    return found._replace(functions=tuple(rewards.isolated(function, limit) for function in found.functions))


def build_task(config: TaskConfig, tokenizer: Tokenizer | None, given: Given | None) -> Task:
    """Returns the problems.

    Args:
        config: which.
        tokenizer: of the pretrained model; None: there is none.
        given: the reward functions, where the configuration names some.

    Raises:
        FileNotFoundError, ImportError: a file or a package is missing.
        ValueError: an option missing, without effect or out of range, or something wrong in a file.
    """
    known("task.kind", config.kind, TASKS)
    options = asdict(config)
    bound: dict[str, Any] = {"seed": config.seed}
    if config.kind == "arithmetic":
        if tokenizer is not None:
            refuse_idle("task.kind", config.kind, options, TASKS, set(TASKS["arithmetic"].reads))
            raise ValueError(
                "task.kind=arithmetic has its own characters, which a pretrained model does not read; choose file or "
                "reasoning_gym, or leave model.path out"
            )
        task = choose("task.kind", config.kind, TASKS, options, bound)
        return task if given is None else task._replace(reward=rewards.together(*given))
    require("task", config.kind, options, ["train" if config.kind == "file" else "dataset"])
    if tokenizer is None:
        raise ValueError(f"model.path is missing: task.kind={config.kind} is read with a pretrained model's tokenizer")
    if config.kind == "file" and given is None:
        raise ValueError(
            "reward.functions is missing: a file has no reward of its own; set --reward.functions module:function, or "
            f"one of {', '.join(SHIPPED)}"
        )
    if given is not None:
        bound["reward"] = rewards.together(*given)
    return choose("task.kind", config.kind, TASKS, options, {**bound, "tokenizer": tokenizer})


def _files(evaluation: str | None = None, **options: Any) -> Task:
    return tasks.files(evaluation=None if evaluation is None else _pairs("task.evaluation", evaluation), **options)


def _reasoning_gym(options: str | None = None, reward: RewardFunction | None = None, **others: Any) -> Task:
    pairs = {} if options is None else _pairs("task.options", options)
    task = tasks.reasoning_gym(options={name: _parsed(value) for name, value in pairs.items()}, **others)
    return task if reward is None else task._replace(reward=reward)


def _pairs(place: str, text: str) -> Mapping[str, str]:
    """Returns what "name=value,name=value" says."""
    found: dict[str, str] = {}
    for entry in text.split(","):
        name, equals, value = (part.strip() for part in entry.partition("="))
        if not (name and equals and value) or name in found:
            raise ValueError(f"{place} is {text!r}: write name=value,name=value with every name once")
        found[name] = value
    return found


def _parsed(value: str) -> Any:
    """Returns a value as JSON reads it, or as text."""
    try:
        return json.loads(value)
    except ValueError:
        return value


_LENGTH = {"system": "system", "max_prompt_tokens": "max_prompt_tokens"}
_FILE = ("train", "evaluation", "held_out", "prompt_column", "drop_long")
TASKS = {
    "arithmetic": Choice(tasks.arithmetic, {name: name for name in ("operators", "digits", "held_out")}),
    "file": Choice(_files, {**{name: name for name in _FILE}, **_LENGTH}),
    "reasoning_gym": Choice(_reasoning_gym, {"dataset": "dataset", "options": "options", **_LENGTH}),
}
"""Values of ``task.kind``."""
