"""Calls one reward function on text and checks what it returns."""

import asyncio
import functools
import inspect
import math
import numbers
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32

_LARGEST = float(np.finfo(np.float32).max)
_ALONE = threading.RLock()
"""Held while a reward function runs: those of evaluations and of rollouts may be called from two threads, of which
nobody who writes one has to know."""


@runtime_checkable
class RewardFunction(Protocol):
    """Scores completions; the signature is TRL's, so its functions work unchanged. ``async def`` is welcome too."""

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> Any:
        """Scores completions.

        Args:
            prompts: N = P * G prompts, each repeated once per completion: texts, or lists of messages where the task's
                prompts are chats.
            completions: N completions, group by group: texts, or ``[{"role": "assistant", "content": text}]`` each.
            **columns: the task's columns, N entries each, repeated like the prompts; also ``completion_ids`` where
                the caller has token ids. A function takes the ones it needs by name and must accept the rest.

        Returns:
            N numbers; None (or NaN) where a completion cannot be scored.
        """
        ...


def name_of(function: RewardFunction) -> str:
    """Returns the name under which a reward function is reported."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def call(
    function: RewardFunction, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]
) -> Float32[np.ndarray, " N"]:
    """Calls a reward function and checks its answer; of several threads, one at a time.

    Args:
        function: the reward function.
        prompts: one prompt per completion.
        completions: N completions.
        columns: one entry per completion each.

    Returns:
        Rewards ``[N]``; NaN where the function said None or NaN.

    Raises:
        RuntimeError: the function raised; names it, and the number of rows.
        ValueError: it returned something else than N finite numbers or None.
        TypeError: an entry is no number.
    """
    name, rows = name_of(function), len(completions)
    # Functions get their own lists: one that edits them must not change what the next one sees.
    arguments = {key: list(values) for key, values in columns.items()}
    try:
        with _ALONE:
            answer = function(prompts=list(prompts), completions=list(completions), **arguments)
            if inspect.iscoroutine(answer):
                answer = _wait_for(answer)
    except Exception as error:
        raise RuntimeError(
            f"reward function {name!r} raised {type(error).__name__} on {rows} completions (called with prompts, "
            f"completions and the columns {sorted(columns)}): {error}{_culprit(error, completions)}"
        ) from error
    return _checked(name, answer, rows)


def _culprit(error: Exception, completions: Sequence[Any]) -> str:
    """Returns in words which completion stood in a local variable where it went wrong; empty where none did."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename != __file__:
            values = [value for value in trace.tb_frame.f_locals.values() if isinstance(value, str | list)]
            for row, completion in enumerate(completions):
                if any(value is completion or (isinstance(value, str) and value == completion) for value in values):
                    return f"; probably at row {row}, {str(completion)[:200]!r}"
        trace = trace.tb_next
    return ""


def _wait_for(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine to its end, also where an event loop is already running, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    outcome: list[Any] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(asyncio.run(coroutine))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


def _checked(name: str, answer: Any, rows: int) -> Float32[np.ndarray, " N"]:
    """Returns the answer as float32, or raises the error that says what is wrong with it."""
    if not isinstance(answer, list | tuple) and not hasattr(answer, "__array__"):
        raise ValueError(f"reward function {name!r} returned {type(answer).__name__}: return one number per completion")
    values = list(answer) if isinstance(answer, list | tuple) else np.asarray(answer).tolist()
    if not isinstance(values, list) or len(values) != rows:
        got = len(values) if isinstance(values, list) else "a single value"
        raise ValueError(f"reward function {name!r} returned {got} rewards, expected {rows}: one per completion")
    return np.array([_number(name, row, value) for row, value in enumerate(values)], np.float32)


def _number(name: str, row: int, value: Any) -> float:
    """Returns one reward; NaN for None."""
    if value is None:
        return math.nan
    if hasattr(value, "__array__") and np.ndim(value) == 0:
        value = np.asarray(value).item()
    if not isinstance(value, int | float | numbers.Real):
        raise TypeError(
            f"reward function {name!r} returned {value!r} ({type(value).__name__}) for row {row}: "
            "return a number, or None where a completion cannot be scored"
        )
    number = float(value)
    if abs(number) > _LARGEST:
        raise ValueError(
            f"reward function {name!r} returned {value!r} for row {row}, which is infinite in float32: "
            "return a finite number, or None where a completion cannot be scored"
        )
    return number
