"""A list of cases, trained one after the other; what is recorded is not repeated."""

import functools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.small_scale import sums
from experiments.small_scale.evaluation import World, world
from experiments.small_scale.loop import FROZEN, HELD, Looks, Reward, trainer
from experiments.small_scale.records import CACHE, append, recorded, row_of, start
from experiments.small_scale.setting import Setting
from grpo_jax.kl.controllers import Controller
from grpo_jax.losses import Objective
from grpo_jax.types import Params
from grpo_jax.updates import Reference

Rows = dict[tuple, dict[str, Any]]
"""Results by the values of their labels."""


class Case(NamedTuple):
    """One line of a results file.

    Attributes:
        labels: what tells it from the others; the same names in every case of a campaign.
        objective: the loss. Cases next to each other with the same one, reference, noise, reward, rounds and
            controller are compiled once.
        beta: strength of the KL term, per nat of a completion.
        lag: updates by which the sampling policy is behind.
        reference: what the KL term measures against.
        noise: standard deviation of what is added to each reward.
        reward: what is trained on.
        trained: the problems that are trained on; None: those of the campaign.
        rounds: times the prompts that are sampled, of which those whose rewards differ are trained on first.
        controller: of beta.
        state: the first one of that controller; None: beta itself.
    """

    labels: dict[str, Any]
    objective: Objective
    beta: float
    lag: int = 0
    reference: Reference = FROZEN
    noise: float = 0.0
    reward: Reward = sums.is_right
    trained: sums.Problems | None = None
    rounds: int = 1
    controller: Controller = HELD
    state: Any = None

    @property
    def name(self) -> tuple:
        """The values of its labels."""
        return tuple(self.labels.values())


def campaign(
    cases: Sequence[Case],
    setting: Setting,
    seeds: int,
    results: Path | None,
    also: Looks | None = None,
    begin: Callable[[Setting, int, Path | None], Params] = start,
    build: Callable[[Setting], World] = world,
) -> Rows:
    """Trains what is not recorded yet.

    Args:
        cases: at least one.
        setting: of all of them; a results file of another one is refused.
        seeds: of each.
        results: the file that rows are read from and added to; None: nothing is kept, and no warm start either.
        also: something more to measure; None: nothing.
        begin: where training begins, of the setting, the number of seeds and the folder to keep it in (None: none);
            the warm start where no other is given.
        build: the problems to train on and to evaluate.

    Returns:
        The rows, in the order of the cases.

    Raises:
        ValueError: rows in the file were made with another setting or number of seeds.
    """
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {seeds} seeds; {setting}", flush=True)
    done = {} if results is None else recorded(results, tuple(cases[0].labels))
    for name, row in done.items():
        if (row["seeds"], row["setting"]) != (seeds, list(setting)):
            raise ValueError(f"{results} holds {name} of another setting or other seeds; move it away, or choose those")
    left = [case for case in cases if case.name not in done]
    params = begin(setting, seeds, None if results is None else CACHE) if left else None
    compiled = functools.lru_cache(maxsize=1)(trainer)
    longest_lag = max(case.lag for case in cases)
    for case in left:
        began, busy = time.monotonic(), time.process_time()
        reward = case.noise, case.reward
        rest = build, case.rounds, case.controller
        train = compiled(case.objective, setting, longest_lag, also, case.reference, *reward, *rest)
        curves = train(params, case.beta if case.state is None else case.state, case.lag, trained=case.trained)
        target = case.objective.off_policy_target if case.lag else case.objective.target
        known = {"beta": case.beta, "follows": target.name, "seeds": seeds, "setting": list(setting)}
        row = row_of(case.labels | known, curves)
        row["seconds"] = round(time.monotonic() - began, 1)
        row["processor_seconds"] = round(time.process_time() - busy, 1)
        print(f"{case.name}: {row['seconds']} s, of the processor {row['processor_seconds']} s", flush=True)
        done[case.name] = row
        if results is not None:
            append(results, row)
    return {case.name: done[case.name] for case in cases}
