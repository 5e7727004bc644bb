"""Problems from files, or from rows in memory, with a reward function of the user's."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from grpo_jax.tasks.rendering import as_chat, checked_prompt, completion_text, rendered
from grpo_jax.tasks.shuffle import hashed, permuted
from grpo_jax.tasks.sources import Row, Source, name_of_source, read_rows
from grpo_jax.tasks.task import Example, Task, Tokenizer, check_range

RESERVED = ("prompts", "completions", "completion_ids")
"""Names under which reward functions receive something else, so that no column can have them."""
PROMPTS = ("prompt", "problem", "question")
"""Columns that hold the prompt, if nothing else is said: the first that a row has."""
COMPLETION = "completion"
"""The column with the right completion, where there is one."""
_PARTITION, _ORDER = range(2)


class _Problem(NamedTuple):
    """A problem and where it came from."""

    example: Example
    place: str
    tokens: int


def files(
    tokenizer: Tokenizer,
    train: Source,
    reward: Callable[..., Any],
    *,
    evaluation: Mapping[str, Source] | None = None,
    held_out: float | None = None,
    prompt_column: str | None = None,
    system: str | None = None,
    max_prompt_tokens: int | None = None,
    drop_long: bool = False,
    seed: int = 0,
) -> Task:
    """Builds a task from rows with a prompt and any other columns.

    A prompt is a text, read as it is, or a list of messages, written out by the model's chat template. The reward
    function receives every other column by name. Where the prompt is a chat it receives prompts as messages and
    completions as ``[{"role": "assistant", "content": text}]``, else both as text, which is TRL's convention.

    Every pass over "train" takes each row once, in a new order that depends on seed and pass alone. Other splits have
    one order, mixed too, so that their first problems are a fair sample.

    Args:
        tokenizer: of the model.
        train: the training problems: a .jsonl or .parquet file, or rows in memory. With a column ``completion`` (text,
            or the assistant's messages) a supervised warm start can imitate it.
        reward: ``(prompts, completions, **columns) -> list[float | None]``, or async.
        evaluation: split -> problems never trained on. "validation" is in-domain, all others are out-of-domain.
        held_out: share of the training prompts that become "validation", in (0, 1), where ``evaluation`` has none; rows
            with the same prompt stay together. None: 0.1.
        prompt_column: the column with the prompt. None: the first of prompt, problem and question that a file has.
        system: a system message for every chat; texts become a user's turn after it. Empty: they become one without.
            None: texts stay texts, and chats as they are.
        max_prompt_tokens: longest prompt, in tokens. None: the longest there is.
        drop_long: leave longer prompts out instead of raising an error.
        seed: which prompts are held out, and the order.

    Returns:
        The task.

    Raises:
        FileNotFoundError: no such file.
        ImportError: a parquet file, and pyarrow is not installed.
        ValueError: what is wrong with a row, with file and line; or an argument without effect or out of range.
    """
    evaluation = dict(evaluation or {})
    _check(evaluation, held_out, max_prompt_tokens, drop_long, seed)
    kept: dict[str, list[_Problem]] = {}
    dropped = 0
    for split, source in {"train": train, **evaluation}.items():
        found = [_problem(row, tokenizer, prompt_column, system) for row in read_rows(source)]
        kept[split] = _short(found, name_of_source(source), max_prompt_tokens, drop_long)
        dropped += len(found) - len(kept[split])
    if "validation" not in evaluation:
        rest, aside = _held_out(kept["train"], 0.1 if held_out is None else held_out, seed)
        kept = {"train": rest, "validation": aside, **{name: kept[name] for name in evaluation}}
    everything = [problem for problems in kept.values() for problem in problems]
    taught = COMPLETION in kept["train"][0].example.columns
    counts = ", ".join(f"{len(problems)} {split}" for split, problems in kept.items())
    return Task(
        name="files",
        tokenizer=tokenizer,
        examples=_examples(kept, seed),
        reward=reward,
        splits={split: None if split == "train" else len(problems) for split, problems in kept.items()},
        demonstration=_demonstration if taught else None,
        max_prompt_tokens=max(problem.tokens for problem in everything),
        max_completion_tokens=_longest_completion(tokenizer, kept["train"]) if taught else None,
        description=f"problems from {name_of_source(train)}: {counts}"
        + (f"; {dropped} left out, their prompts have more than {max_prompt_tokens} tokens" if dropped else ""),
    )


def _check(
    evaluation: Mapping[str, Source], held_out: float | None, longest: int | None, drop_long: bool, seed: int
) -> None:
    if "train" in evaluation:
        raise ValueError("evaluation has a split 'train': give it another name, such as 'validation'")
    if held_out is not None and "validation" in evaluation:
        raise ValueError(f"held_out={held_out} has no effect where evaluation has 'validation'; leave one of them out")
    if held_out is not None and not 0 < held_out < 1:
        raise ValueError(f"held_out is {held_out}; give a share of the prompts in (0, 1)")
    if longest is not None and longest < 1:
        raise ValueError(f"max_prompt_tokens is {longest}; give at least 1")
    if drop_long and longest is None:
        raise ValueError("drop_long has no effect without max_prompt_tokens: give the limit too")
    if seed < 0:
        raise ValueError(f"seed {seed} is negative: give a non-negative integer")


def _problem(row: Row, tokenizer: Tokenizer, named: str | None, system: str | None) -> _Problem:
    candidates = PROMPTS if named is None else (named,)
    column = next((name for name in candidates if name in row.values), None)
    if column is None:
        raise ValueError(
            f"{row.place} has no column {' or '.join(candidates)}, only {list(row.values)}: rename one, or set "
            "prompt_column"
        )
    columns = {name: value for name, value in row.values.items() if name != column}
    taken = [name for name in columns if name in RESERVED]
    if taken:
        raise ValueError(
            f"{row.place} has a column {taken[0]!r}, a name that reward functions receive anyway: rename it"
        )
    try:
        source = checked_prompt(row.values[column])
        source = source if system is None else as_chat(source, system)
        prompt = rendered(tokenizer, source)
        tokens = len(tokenizer.encode(prompt))
    except ValueError as error:
        raise ValueError(f"{row.place}: {error}") from None
    return _Problem(Example(prompt, columns, source), row.place, tokens)


def _short(problems: list[_Problem], name: str, limit: int | None, drop: bool) -> list[_Problem]:
    """Returns the problems whose prompts are within the limit."""
    if limit is None:
        return problems
    long = [problem for problem in problems if problem.tokens > limit]
    if long and not drop:
        raise ValueError(
            f"{long[0].place}: the prompt has {long[0].tokens} tokens, but max_prompt_tokens is {limit}; "
            f"{len(long)} of {len(problems)} prompts of {name} are too long, the longest has "
            f"{max(problem.tokens for problem in long)} tokens: raise the limit, or set drop_long"
        )
    if len(long) == len(problems):
        raise ValueError(f"{name}: every prompt has more than max_prompt_tokens={limit} tokens; raise the limit")
    return [problem for problem in problems if problem.tokens <= limit]


def _held_out(problems: list[_Problem], share: float, seed: int) -> tuple[list[_Problem], list[_Problem]]:
    """Sets a share of the prompts aside, each with all its rows."""
    prompts = list(dict.fromkeys(problem.example.prompt for problem in problems))
    aside = round(share * len(prompts))
    if not 0 < aside < len(prompts):
        empty = "validation" if aside == 0 else "train"
        raise ValueError(
            f"held_out {share} of {len(prompts)} different prompts leaves no problem in {empty!r}: change it, or name "
            "a file for the split 'validation'"
        )
    places = permuted(np.arange(aside), len(prompts), hashed(seed, _PARTITION))
    chosen = {prompts[place] for place in places.tolist()}
    rest = [problem for problem in problems if problem.example.prompt not in chosen]
    return rest, [problem for problem in problems if problem.example.prompt in chosen]


def _examples(kept: Mapping[str, Sequence[_Problem]], seed: int) -> Callable[[str, int, int], list[Example]]:
    limits = {split: None if split == "train" else len(problems) for split, problems in kept.items()}
    streams = {split: number for number, split in enumerate(kept)}

    def examples(split: str, start: int, count: int) -> list[Example]:
        check_range("files", limits, split, start, count)
        problems, indices = kept[split], np.arange(start, start + count)
        size = len(problems)
        places = permuted(indices % size, size, hashed(seed, _ORDER, streams[split], indices // size))
        return [problems[place].example for place in places.tolist()]

    return examples


def _demonstration(example: Example) -> str:
    return completion_text(example.columns[COMPLETION])


def _longest_completion(tokenizer: Tokenizer, problems: Sequence[_Problem]) -> int:
    """Returns the tokens of the longest completion and its end token."""
    longest = 0
    for problem in problems:
        try:
            longest = max(longest, len(tokenizer.encode(_demonstration(problem.example))))
        except (TypeError, KeyError, IndexError, ValueError):
            found = problem.example.columns[COMPLETION]
            raise ValueError(
                f"{problem.place}: the completion is {found!r}: give text, or messages with the assistant's last"
            ) from None
    return longest + 1
