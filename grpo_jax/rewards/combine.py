"""Scores groups of completions with one or several reward functions."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32

from grpo_jax.rewards.calls import RewardFunction, call, name_of

_RESERVED = ("prompts", "completions", "completion_ids")


class Rewards(NamedTuple):
    """Rewards of every function, not yet combined.

    Attributes:
        values: rewards ``[P, G, K]``; NaN where a function could not score.
        names: the K functions' names, each once.
    """

    values: Float32[np.ndarray, "P G K"]
    names: tuple[str, ...]


def score_each(
    functions: Sequence[RewardFunction],
    prompts: Sequence[Any],
    completions: Sequence[Any],
    columns: Mapping[str, Sequence[Any]],
    group_size: int,
    *,
    completion_ids: Sequence[Sequence[int]] | None = None,
) -> Rewards:
    """Calls every reward function on every completion.

    Args:
        functions: K reward functions (see ``RewardFunction``).
        prompts: P prompts, one per group; each is repeated for its completions here. Texts, or the messages of chats.
        completions: P * G completions, group by group; `grpo_jax.tasks.for_rewards` makes both.
        columns: the examples' columns, P entries each; repeated like the prompts.
        group_size: completions per prompt, G.
        completion_ids: token ids of every completion without padding, P * G entries. None: not passed to the functions.

    Returns:
        The rewards ``[P, G, K]`` and the functions' names.

    Raises:
        ValueError: counts do not agree, a column has a reserved name, a function returned the wrong number of rewards
            or an infinite one, or no function could score any completion.
        TypeError: a function returned something that is no number.
        RuntimeError: a function raised.
    """
    _check_counts(functions, prompts, completions, columns, group_size)
    ids = completion_ids
    return some_scored(score_part(functions, prompts, completions, columns, group_size, completion_ids=ids))


def score_part(
    functions: Sequence[RewardFunction],
    prompts: Sequence[Any],
    completions: Sequence[Any],
    columns: Mapping[str, Sequence[Any]],
    group_size: int,
    *,
    completion_ids: Sequence[Sequence[int]] | None = None,
) -> Rewards:
    """Does what `score_each` does for a part of a batch, of which it may be that nothing can be scored.

    Without prompts no function is called.
    """
    names = _unique([name_of(f) for f in functions])
    if not prompts:
        return Rewards(np.zeros((0, group_size, len(names)), np.float32), names)
    _check_counts(functions, prompts, completions, columns, group_size)
    rows = len(completions)
    repeated = {name: _repeat(values, group_size) for name, values in columns.items()}
    if completion_ids is not None:
        if len(completion_ids) != rows:
            raise ValueError(f"completion_ids has {len(completion_ids)} entries, expected {rows}: one per completion")
        repeated["completion_ids"] = list(completion_ids)
    repeated_prompts = _repeat(prompts, group_size)
    values = np.stack([call(f, repeated_prompts, completions, repeated) for f in functions], axis=-1)
    return Rewards(values.reshape(len(prompts), group_size, len(names)), names)


def some_scored(rewards: Rewards) -> Rewards:
    """Returns the rewards of a whole batch as they are.

    Raises:
        ValueError: no function could score any completion.
    """
    if np.isnan(rewards.values).all():
        rows = rewards.values.shape[0] * rewards.values.shape[1]
        raise ValueError(
            f"no reward: {' and '.join(rewards.names)} returned None or NaN for all {rows} completions; is the right "
            "reward function used for this task, and does it find the columns it needs?"
        )
    return rewards


def weighted_sum(
    values: Float32[np.ndarray, "P G K"], weights: Sequence[float] | None = None
) -> Float32[np.ndarray, "P G"]:
    r"""Sums the rewards of one completion over the functions that could score it.

    .. math:: r = \sum_{k : r_k \ne NaN} w_k r_k

    A completion that some functions could not score is thus treated as if they had said 0, as TRL does; where that is
    wrong, normalise each reward separately.

    Args:
        values: rewards ``[P, G, K]``; NaN where a function could not score.
        weights: K finite weights. None: 1 each.

    Returns:
        Combined rewards ``[P, G]``; NaN where no function could score.

    Raises:
        ValueError: the weights are not K finite numbers, or a sum is infinite in float32.
    """
    kinds = values.shape[-1]
    factors = [1.0] * kinds if weights is None else list(weights)
    _check_weights(factors, kinds)
    missing = np.isnan(values)
    total = np.sum(np.where(missing, 0.0, values.astype(np.float64)) * np.asarray(factors), axis=-1)
    too_large = np.abs(total) > np.finfo(np.float32).max
    if too_large.any():
        raise ValueError(
            f"the weighted reward of row {int(np.argmax(too_large.reshape(-1)))} is infinite in float32: "
            f"lower the weights {factors}"
        )
    return np.where(missing.all(axis=-1), np.nan, total).astype(np.float32)


def score(
    functions: Sequence[RewardFunction],
    weights: Sequence[float] | None,
    prompts: Sequence[Any],
    completions: Sequence[Any],
    columns: Mapping[str, Sequence[Any]],
    group_size: int,
    *,
    completion_ids: Sequence[Sequence[int]] | None = None,
) -> Float32[np.ndarray, "P G"]:
    """Calls the reward functions and combines them by ``weighted_sum``.

    Args:
        functions: K reward functions.
        weights: K finite weights. None: 1 each.
        prompts: P prompts, one per group.
        completions: P * G completions, group by group.
        columns: the examples' columns, P entries each.
        group_size: completions per prompt, G.
        completion_ids: token ids of every completion, P * G entries. None: not passed to the functions.

    Returns:
        Rewards ``[P, G]``; NaN where no function could score.

    Raises:
        ValueError: as ``score_each`` and ``weighted_sum``.
        TypeError: as ``score_each``.
        RuntimeError: as ``score_each``.
    """
    if weights is not None:
        _check_weights(weights, len(functions))
    rewards = score_each(functions, prompts, completions, columns, group_size, completion_ids=completion_ids)
    return weighted_sum(rewards.values, weights)


def together(functions: Sequence[RewardFunction], weights: Sequence[float]) -> RewardFunction:
    """Builds the one reward function that several make by ``weighted_sum``.

    Args:
        functions: K reward functions.
        weights: K finite weights.

    Returns:
        The function; None where none of them could score.

    Raises:
        ValueError: the weights are not K finite numbers.
    """
    _check_weights(weights, len(functions))
    if len(functions) == 1 and weights[0] == 1:
        return functions[0]

    def together(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        values = np.stack([call(f, prompts, completions, columns) for f in functions], axis=-1)
        return weighted_sum(values[:, None], weights)[:, 0].tolist()

    return together


def _check_weights(weights: Sequence[float], kinds: int) -> None:
    """Raises ValueError unless there are K finite weights."""
    if len(weights) != kinds:
        raise ValueError(f"weights {list(weights)} for {kinds} reward functions: give one weight per function")
    if not all(math.isfinite(weight) for weight in weights):
        raise ValueError(f"weights {list(weights)} are not all finite: give finite numbers")


def _check_counts(
    functions: Sequence[RewardFunction],
    prompts: Sequence[Any],
    completions: Sequence[Any],
    columns: Mapping[str, Sequence[Any]],
    group_size: int,
) -> None:
    """Raises ValueError unless there are G completions and one entry of every column for each prompt."""
    if not functions:
        raise ValueError("no reward function given: give at least one")
    if not prompts:
        raise ValueError("no prompts to score: give at least one")
    if group_size < 1:
        raise ValueError(f"group_size {group_size}: give a positive number of completions per prompt")
    if len(completions) != len(prompts) * group_size:
        raise ValueError(
            f"{len(completions)} completions for {len(prompts)} prompts in groups of {group_size}: expected "
            f"{len(prompts) * group_size}, group by group; an incomplete group cannot be scored"
        )
    for name, values in columns.items():
        if name in _RESERVED:
            raise ValueError(f"column {name!r} has a name that reward functions receive anyway: rename it")
        if len(values) != len(prompts):
            raise ValueError(f"column {name!r} has {len(values)} entries, expected {len(prompts)}: one per prompt")


def _repeat(values: Sequence[Any], times: int) -> list[Any]:
    """Repeats each entry, keeping those of one prompt together."""
    return [value for value in values for _ in range(times)]


def _unique(names: list[str]) -> tuple[str, ...]:
    """Numbers the second and later uses of a name, so that metrics never collide."""
    unique: list[str] = []
    for name in names:
        candidate, count = name, 1
        while candidate in unique:
            count += 1
            candidate = f"{name}_{count}"
        unique.append(candidate)
    return tuple(unique)
