"""The countdown game: reach a target with given numbers and the four operations."""

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from grpo_jax.tasks import completion_text

_LONGEST = 200
"""Characters of an expression; nobody needs more, and deep nesting would exhaust the parser."""
_OPERATIONS: dict[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def countdown(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    *,
    target: Sequence[Any],
    nums: Sequence[Sequence[Any]] | None = None,
    numbers: Sequence[Sequence[Any]] | None = None,
    **columns: Any,
) -> list[float]:
    """Rewards an expression that uses each given number exactly once and has the target as its value.

    The expression is what stands in the last ``<answer>...</answer>``, or else the last line that is not empty; a part
    from an equals sign on is left out. It is parsed, never run.

    Args:
        prompts: unused.
        completions: N completions.
        target: N targets.
        nums: the N lists of given numbers.
        numbers: the same under another name, read where there is no ``nums``.
        **columns: unused.

    Returns:
        1.0 or 0.0 for each completion.

    Raises:
        ValueError: neither ``nums`` nor ``numbers`` is given.
    """
    del prompts, columns
    given = numbers if nums is None else nums
    if given is None:
        raise ValueError("the data has neither a column 'nums' nor a column 'numbers': rename the one that has them")
    rows = zip(completions, given, target, strict=True)
    return [float(_solves(_expression(completion_text(text)), given, aim)) for text, given, aim in rows]


def _expression(text: str) -> str:
    tagged = re.findall(r"<answer>(.*?)</answer>", text, flags=re.DOTALL)
    lines = [line for line in (tagged[-1] if tagged else text).splitlines() if line.strip()]
    return lines[-1].partition("=")[0].strip() if lines else ""


def _solves(expression: str, numbers: Sequence[Any], target: Any) -> bool:
    if not expression or len(expression) > _LONGEST:
        return False
    try:
        value, used = _evaluated(ast.parse(expression.replace("×", "*").replace("÷", "/"), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return False
    return Counter(used) == Counter(int(number) for number in numbers) and value == Fraction(target)


def _evaluated(node: ast.expr) -> tuple[Fraction, list[int]]:
    """Returns an expression's value and the numbers it uses."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Fraction(node.value), [node.value]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = _evaluated(node.left), _evaluated(node.right)
        return _OPERATIONS[type(node.op)](left[0], right[0]), left[1] + right[1]
    raise ValueError("neither a whole number nor one of the four operations")
