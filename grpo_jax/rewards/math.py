"""Verifiers of mathematical answers: the last number or boxed expression against the right one."""

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from grpo_jax.tasks import completion_text

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:\s*/\s*\d+)?|-?\.\d+")
_BOXES = ("\\boxed{", "\\fbox{")
_DROPPED = ("\\left", "\\right", "\\!", "\\,", "\\;", "\\:", "\\ ", "$", "\\%", "%", "^\\circ", "^{\\circ}")
_LONGEST = 10_000
"""Characters of a completion, from its end, in which an answer is looked for."""


def final_answer(text: str) -> str | None:
    r"""Returns the answer that a solution ends with.

    That is what stands in the last ``\boxed{}``, else after the last ``####``, else the last number.

    Args:
        text: a solution.

    Returns:
        The answer, or None where there is none.
    """
    text = text[-_LONGEST:]
    boxed = _boxed(text)
    if boxed is not None:
        return boxed
    if "####" in text:
        return text.rpartition("####")[2].strip().partition("\n")[0].strip()
    numbers = _NUMBER.findall(text)
    return numbers[-1] if numbers else None


def math_answer(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    *,
    answer: Sequence[Any] | None = None,
    solution: Sequence[Any] | None = None,
    **columns: Any,
) -> list[float | None]:
    r"""Rewards a completion whose final answer is the right one, as a number or after its spelling is made plain.

    ``1/2``, ``0.5`` and ``\frac{1}{2}`` are one answer, and so are ``1,000`` and ``1000``. Expressions that are equal
    only by algebra are not; `symbolic_answer` knows those.

    Args:
        prompts: unused.
        completions: N completions; `final_answer` says what is their answer.
        answer: N right answers, or solutions that end with one (after ``####``, in ``\boxed{}``).
        solution: read where there is no ``answer``.
        **columns: unused.

    Returns:
        1.0 or 0.0 for each completion; None where the right answer is missing.

    Raises:
        ValueError: neither ``answer`` nor ``solution`` is given.
    """
    del prompts, columns
    return [
        None if right is None else float(_same(final_answer(completion_text(completion)), right))
        for completion, right in zip(completions, _right_answers(answer, solution, len(completions)), strict=True)
    ]


def symbolic_answer(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    *,
    answer: Sequence[Any] | None = None,
    solution: Sequence[Any] | None = None,
    **columns: Any,
) -> list[float | None]:
    """Rewards a completion whose final answer is the right one by the judgement of the package math-verify.

    Its own time limits need the main thread; a limit from outside, `isolated`, holds in any case.

    Args:
        prompts: unused.
        completions: N completions.
        answer: as for `math_answer`.
        solution: as for `math_answer`.
        **columns: unused.

    Returns:
        1.0 or 0.0 for each completion; None where the right answer is missing.

    Raises:
        ImportError: the package is not installed.
        ValueError: neither ``answer`` nor ``solution`` is given.
    """
    del prompts, columns
    try:
        from math_verify import parse, verify  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError("symbolic_answer needs the package math-verify: pip install 'grpo-jax[math]'") from error
    rewards: list[float | None] = []
    for completion, right in zip(completions, _right_answers(answer, solution, len(completions)), strict=True):
        text = completion_text(completion)
        if right is None or _same(final_answer(text), right):
            rewards.append(None if right is None else 1.0)
        else:
            rewards.append(float(verify(parse(f"${right}$"), parse(text[-_LONGEST:]))))
    return rewards


def _right_answers(answer: Sequence[Any] | None, solution: Sequence[Any] | None, rows: int) -> list[str | None]:
    given = solution if answer is None else answer
    if given is None:
        raise ValueError("the data has neither a column 'answer' nor a column 'solution': rename the one that has it")
    return [None if each is None else _stated(str(each)) for each in list(given)[:rows]]


def _stated(right: str) -> str:
    """Returns the answer that a data set states: in a box, after ####, or the whole."""
    boxed = _boxed(right)
    if boxed is not None:
        return boxed
    return right.rpartition("####")[2].strip() if "####" in right else right.strip()


def _boxed(text: str) -> str | None:
    """Returns what stands in the last box, braces balanced."""
    start = max(text.rfind(box) + len(box) if box in text else -1 for box in _BOXES)
    if start < 0:
        return None
    depth = 1
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start:place].strip()
    return None


def _same(found: str | None, right: str) -> bool:
    if found is None:
        return False
    found, right = _plain(found), _plain(right)
    if found == right:
        return True
    numbers = _value(found), _value(right)
    return None not in numbers and numbers[0] == numbers[1]


def _plain(text: str) -> str:
    """Returns an expression without what does not change its value."""
    text = re.sub(r"\\(?:text|mathrm|textbf|mbox)\{([^{}]*)\}", r"\1", text)
    for each in _DROPPED:
        text = text.replace(each, "")
    text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("\\cdot", "*").replace("−", "-")
    text = re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    return re.sub(r"\s+", "", text).rstrip(".").lower()


def _value(text: str) -> Fraction | None:
    text = re.sub(r"^(-?)\\frac\{(-?\d+)\}\{(\d+)\}$", r"\1\2/\3", text)
    if not re.fullmatch(r"[-+]?(\d{1,60}(\.\d{0,60})?|\.\d{1,60}|\d{1,60}/\d{1,60})", text):
        return None
    try:
        return Fraction(text.rstrip("."))
    except (ValueError, ZeroDivisionError):
        return None
