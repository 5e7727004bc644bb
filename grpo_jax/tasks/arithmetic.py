"""Arithmetic in characters: "37+58=" is answered by "95"."""

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from grpo_jax.tasks.characters import character_tokenizer
from grpo_jax.tasks.shuffle import hashed, permuted, unordered_pair
from grpo_jax.tasks.task import Example, Task, check_range

ALPHABET = "0123456789+-*= say"
"""Every character of every split, so that out-of-domain prompts need no new tokens."""

_OPERATIONS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_PLAIN = "{a}{o}{b}="
_FORMATS = ("{a} {o} {b} =", "0{a}{o}0{b}=", "say {a}{o}{b}=")
_MAX_DIGITS = 8
# Words that keep the random streams apart.
_PARTITION, _ORDER, _SWAP, _DRAW = range(4)
_TRAIN, _VALIDATION, _LONGER, _OPERATORS, _FORMAT = range(5)


class _Pool(NamedTuple):
    """Pairs of operands: ``low + (x, y)`` for the unordered pairs of rank ``permutation[first : first + pairs]``."""

    low: int
    ranks: int
    first: int
    pairs: int


def exact_answer(
    prompts: Sequence[str], completions: Sequence[str], *, answer: Sequence[str], **columns: Any
) -> list[float]:
    """Rewards a completion whose first line is exactly the answer.

    Args:
        prompts: unused.
        completions: what the policy wrote; surrounding white space does not count.
        answer: the right answer of each.
        **columns: unused.

    Returns:
        1.0 or 0.0 for each completion.
    """
    del prompts, columns
    lines = [completion.strip().partition("\n")[0].rstrip() for completion in completions]
    return [float(line == right) for line, right in zip(lines, answer, strict=True)]


def demonstration(example: Example) -> str:
    """Returns the right completion of an arithmetic problem."""
    return example.columns["answer"]


def forgotten_carry(example: Example) -> str:
    """Returns the answer of somebody who works digit by digit and forgets every carry and every borrow."""
    first, sign, second = re.fullmatch(r"(\d+)([-+*])(\d+)=", example.prompt).groups()  # pyright: ignore
    a, b = int(first), int(second)
    if sign == "*":
        return str(a * b - a % 10 * (b % 10) // 10 * 10)
    places = [10**place for place in range(max(len(first), len(second)))]
    if sign == "+":
        return str(sum((a // ten + b // ten) % 10 * ten for ten in places))
    size = sum((max(a, b) // ten - min(a, b) // ten) % 10 * ten for ten in places)
    return str(size if a > b else -size)


def arithmetic(operators: str = "+-", digits: tuple[int, int] = (1, 2), held_out: float = 0.1, seed: int = 0) -> Task:
    """Builds the arithmetic task.

    A keyed permutation of the unordered pairs of operands sets a share of them aside: neither a held-out problem nor
    the same operands swapped or under another operator is ever in "train". Every pass over "train" visits each pair
    with each operator once, in a new order. The splits:

    - train: endless;
    - validation: each held-out pair with each operator, once;
    - longer: both operands have one digit more than the longest in "train";
    - operators: three operands and two operators, multiplication first; endless;
    - format: the validation problems with spaces, with leading zeros, or after a word.

    Args:
        operators: which of "+", "-" and "*" to train on.
        digits: fewest and most digits of an operand, 1 to 8. One digit includes 0.
        held_out: share of the pairs of operands that "train" never shows, in (0, 1).
        seed: which pairs are held out, and the order of the examples.

    Returns:
        The task. Its reward is ``exact_answer``.

    Raises:
        ValueError: an argument is out of range, or a split would be empty.
    """
    _check(operators, digits, seed)
    train, validation, longer = _pools(digits, held_out)
    size = validation.pairs * len(operators)
    splits = {
        "train": None,
        "validation": size,
        "longer": longer.pairs * len(operators),
        "operators": None,
        "format": size,
    }
    makers = {
        "train": lambda indices: _problems(train, indices, operators, (seed, _TRAIN), (_PLAIN,)),
        "validation": lambda indices: _problems(validation, indices, operators, (seed, _VALIDATION), (_PLAIN,)),
        "longer": lambda indices: _problems(longer, indices, operators, (seed, _LONGER), (_PLAIN,)),
        "operators": lambda indices: _expressions(digits, indices, operators, (seed, _OPERATORS)),
        "format": lambda indices: _problems(validation, indices, operators, (seed, _FORMAT), _FORMATS),
    }

    def examples(split: str, start: int, count: int) -> list[Example]:
        check_range("arithmetic", splits, split, start, count)
        return makers[split](np.arange(start, start + count))

    longest = digits[1]
    return Task(
        name="arithmetic",
        tokenizer=character_tokenizer(ALPHABET),
        examples=examples,
        reward=exact_answer,
        splits=splits,
        demonstration=demonstration,
        max_prompt_tokens=max(3 * longest + 3, 2 * longest + 6),
        slip=forgotten_carry,
        max_completion_tokens=1 + (max(2 * longest + 2, 3 * longest) if "*" in operators else longest + 2),
    )


def _check(operators: str, digits: tuple[int, int], seed: int) -> None:
    """Raises ValueError for an argument out of range."""
    if not operators:
        raise ValueError("empty task: no operators; give some of '+', '-' and '*'")
    if len(set(operators)) < len(operators) or not set(operators) <= set(_OPERATIONS):
        raise ValueError(f"operators {operators!r}: give each of '+', '-' and '*' at most once, and nothing else")
    fewest, most = digits
    if fewest > most:
        raise ValueError(
            f"empty task: no number has {fewest} to {most} digits; give (fewest, most) with fewest <= most"
        )
    if fewest < 1 or most > _MAX_DIGITS:
        raise ValueError(f"digits {digits}: operands have 1 to {_MAX_DIGITS} digits")
    if seed < 0:
        raise ValueError(f"seed {seed} is negative: give a non-negative integer")


def _pools(digits: tuple[int, int], held_out: float) -> tuple[_Pool, _Pool, _Pool]:
    """Returns the pairs of train, validation and longer, the first two being the parts of one permutation."""
    if not 0.0 < held_out < 1.0:
        raise ValueError(f"empty task: held_out {held_out} leaves no problem in a split; give a share in (0, 1)")
    low, high = _operand_range(digits)
    numbers = high - low
    ranks = numbers * (numbers + 1) // 2
    aside = round(held_out * ranks)
    if not 0 < aside < ranks:
        empty = "validation" if aside == 0 else "train"
        raise ValueError(
            f"empty task: held_out {held_out} of {ranks} pairs of operands leaves no problem in {empty!r}; "
            "change held_out or allow more digits"
        )
    long_low, long_high = _operand_range((digits[1] + 1, digits[1] + 1))
    long_ranks = (long_high - long_low) * (long_high - long_low + 1) // 2
    return (
        _Pool(low, ranks, aside, ranks - aside),
        _Pool(low, ranks, 0, aside),
        _Pool(long_low, long_ranks, 0, long_ranks),
    )


def _operand_range(digits: tuple[int, int]) -> tuple[int, int]:
    """Returns the half-open range of numbers with that many digits; 0 has one digit."""
    fewest, most = digits
    return (0 if fewest == 1 else 10 ** (fewest - 1)), 10**most


def _problems(
    pool: _Pool, indices: Int[np.ndarray, " N"], operators: str, stream: tuple[int, int], formats: tuple[str, ...]
) -> list[Example]:
    """Returns the problems at those places of a stream that visits each pair with each operator once per pass."""
    seed, _ = stream
    size = pool.pairs * len(operators)
    place = permuted(indices % size, size, hashed(*stream, _ORDER, indices // size))
    ranks = permuted(pool.first + place // len(operators), pool.ranks, hashed(seed, _PARTITION))
    first, second = (pool.low + x for x in unordered_pair(ranks))
    draws = hashed(*stream, _SWAP, indices)
    swap = draws & np.uint64(1) == 1
    style = (draws >> np.uint64(1)) % np.uint64(len(formats))
    rows = zip(
        np.where(swap, second, first).tolist(),
        [operators[i] for i in place % len(operators)],
        np.where(swap, first, second).tolist(),
        [formats[i] for i in style],
        strict=True,
    )
    return [Example(f.format(a=a, o=o, b=b), {"answer": str(_OPERATIONS[o](a, b))}) for a, o, b, f in rows]


def _expressions(
    digits: tuple[int, int], indices: Int[np.ndarray, " N"], operators: str, stream: tuple[int, int]
) -> list[Example]:
    """Returns expressions of three operands, drawn independently."""
    low, high = _operand_range(digits)
    draws = [hashed(*stream, _DRAW, place, indices) for place in range(5)]
    operands = [(low + (draw % np.uint64(high - low)).astype(np.int64)).tolist() for draw in draws[:3]]
    chosen = [[operators[i] for i in draw % np.uint64(len(operators))] for draw in draws[3:]]
    return [_expression(*row) for row in zip(*operands, *chosen, strict=True)]


def _expression(a: int, b: int, c: int, first: str, second: str) -> Example:
    """Returns the problem "a first b second c=", multiplication before the others."""
    if second == "*" and first != "*":
        value = _OPERATIONS[first](a, b * c)
    else:
        value = _OPERATIONS[second](_OPERATIONS[first](a, b), c)
    return Example(f"{a}{first}{b}{second}{c}=", {"answer": str(value)})
