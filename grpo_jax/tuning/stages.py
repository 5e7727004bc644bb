"""What is tuned: a number of the configuration and the values that are tried."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from grpo_jax.config import Config


class Stage(NamedTuple):
    """One number to tune.

    Attributes:
        name: in words.
        option: of the command line, which takes other values.
        values: what is tried, ascending.
        put: ``(config, value) -> config``, the run with that value.
        read: ``config -> value`` of a run.
    """

    name: str
    option: str
    values: tuple[float | int, ...]
    put: Callable[[Config, float | int], Config]
    read: Callable[[Config], float | int]


def learning_rates(values: Sequence[float | int]) -> Stage:
    """Builds the stage of the optimizer's learning rate.

    Args:
        values: each > 0.

    Raises:
        ValueError: no value, one that is given twice, or one out of range.
    """

    def put(config: Config, value: float | int) -> Config:
        return replace(config, update=replace(config.update, learning_rate=value))

    grid = _grid("--learning-rates", values, lambda value: value > 0, "a positive number")
    return Stage("learning rate", "--learning-rates", grid, put, lambda config: config.update.learning_rate)


def betas(values: Sequence[float | int]) -> Stage:
    """Builds the stage of beta, the strength of the KL term; with a schedule or an adaptive rule its ``beta.value``.

    Args:
        values: each >= 0.

    Raises:
        ValueError: no value, one that is given twice, or one out of range.
    """

    def put(config: Config, value: float | int) -> Config:
        return replace(config, beta=replace(config.beta, value=value))

    grid = _grid("--betas", values, lambda value: value >= 0, "a number of at least 0")
    return Stage("beta", "--betas", grid, put, lambda config: config.beta.value)


def group_sizes(values: Sequence[int]) -> Stage:
    """Builds the stage of the group size; an update keeps its number of completions, so that prompts change with it.

    Args:
        values: completions of a group, each >= 2. ``put`` raises ValueError where one does not divide the run's
            completions of an update.

    Raises:
        ValueError: no value, one that is given twice, or one out of range.
    """

    def put(config: Config, value: float | int) -> Config:
        size, completions = int(value), config.rollout.prompts * config.rollout.group_size
        if completions % size:
            raise ValueError(
                f"--group-sizes {size} does not divide the {completions} completions of an update (rollout.prompts x "
                "rollout.group_size), which stay as many; give a divisor"
            )
        return replace(config, rollout=replace(config.rollout, prompts=completions // size, group_size=size))

    grid = _grid("--group-sizes", values, lambda value: value >= 2 and value == int(value), "a whole number from 2")
    return Stage("group size", "--group-sizes", grid, put, lambda config: config.rollout.group_size)


def around(value: float | int, factor: float | int, each_way: int = 1) -> tuple[float | int, ...]:
    """Returns a value with its neighbours, by factors.

    Args:
        value: the one in the middle, > 0.
        factor: from one to the next, > 1.
        each_way: how many on either side.
    """
    return tuple(float(f"{value * factor**power:.3g}") if power else value for power in range(-each_way, each_way + 1))


def usual_group_sizes(config: Config) -> tuple[int, ...]:
    """Returns 4, 8, 16 and the run's own group size, as far as they divide its completions of an update."""
    own, prompts = config.rollout.group_size, config.rollout.prompts
    return tuple(sorted({own, *(size for size in (4, 8, 16) if prompts * own % size == 0)}))


def _grid(
    option: str, values: Sequence[float | int], fits: Callable[[float | int], bool], wanted: str
) -> tuple[float | int, ...]:
    if not values:
        raise ValueError(f"{option}: the grid is empty; give at least one value, or leave the stage out of --stages")
    for number, value in enumerate(values):
        if not (math.isfinite(value) and fits(value)):
            raise ValueError(f"{option} {value:g}: give {wanted}")
        if value in values[:number]:
            raise ValueError(f"{option} {value:g} is given twice; name each value once")
    return tuple(sorted(values))
