"""The sweep: one number after the other, each from the best of the one before."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from grpo_jax.config import Config, check_limits, from_dict, to_dict
from grpo_jax.train import train
from grpo_jax.tuning.judgement import Judged, chosen, judged, table, verdict
from grpo_jax.tuning.records import START, Outcome, opened, options, outcome_of, run_name
from grpo_jax.tuning.stages import Stage


class SweepFailed(RuntimeError):
    """No run of a stage finished, so that there is nothing to go on from."""


class Swept(NamedTuple):
    """What a sweep came to.

    Attributes:
        config: the run that it ends at, with the seed it started from.
        stages: every stage's values and what they came to, in order.
        report: the stages' tables and verdicts, and the command that trains the best.
    """

    config: Config
    stages: tuple[tuple[Judged, ...], ...]
    report: str


def sweep(
    config: Config,
    stages: Sequence[Stage],
    folder: Path,
    *,
    seeds: int = 3,
    run: Callable[..., Mapping[str, Any]] = train,
) -> Swept:
    """Tunes a run in stages and prints what came of each.

    Runs lie in folders of their own, named by what differs from the start. sweep.jsonl has a line for each. A sweep
    that is started again, also with other stages, values or more seeds, repeats no run that finished or diverged,
    resumes one that was interrupted, and tries one again that ended with another error.

    Args:
        config: the run that it starts from.
        stages: in this order, each name once.
        folder: everything goes here.
        seeds: runs of each point, with the seeds from ``config.seed`` on.
        run: ``(config, folder, *, resume) -> summary``, trains.

    Raises:
        ValueError: no stages or seeds, a stage twice, a value that no run could have, or a folder of something else.
        BlockingIOError: another process writes to a run's folder.
        SweepFailed: no run of a stage finished.
    """
    config = from_dict(to_dict(config))  # as start.json says it
    _check(config, stages, seeds)
    known, add = opened(folder, config)
    best, reports, everything = config, [], []
    for number, stage in enumerate(stages, start=1):
        found = []
        for value in stage.values:
            point = stage.put(best, value)
            runs = [replace(point, seed=config.seed + each) for each in range(seeds)]
            found.append(judged(value, [_outcome(run, config, each, folder, known, add) for each in runs]))
        winner = chosen(found, stage.read(best))
        if winner is None:
            raise SweepFailed(_failures(stage, folder, known))
        best = stage.put(best, winner.value)
        reports.append(
            f"stage {number} of {len(stages)}, {stage.name}, {seeds} seeds a value:\n"
            f"{table(stage, found)}\n{verdict(stage, found, winner)}\n"
        )
        print(f"\n{reports[-1]}", flush=True)
        everything.append(tuple(found))
    reports.append(f"the best is trained by:\n{_command(config, best, folder)}")
    return Swept(best, tuple(everything), "\n".join(reports))


def _check(config: Config, stages: Sequence[Stage], seeds: int) -> None:
    names = [stage.name for stage in stages]
    if not names:
        raise ValueError("no stages: name at least one")
    if len(set(names)) < len(names):
        raise ValueError(f"stages {', '.join(names)}: name each once")
    if seeds < 1:
        raise ValueError(f"seeds is {seeds}; give at least 1, and 3 or more to tell values apart")
    for stage in stages:
        for value in stage.values:
            check_limits(stage.put(config, value))


def _outcome(
    run: Callable[..., Mapping[str, Any]],
    start: Config,
    config: Config,
    folder: Path,
    known: dict[str, Outcome],
    add: Callable[[Outcome], None],
) -> Outcome:
    """Returns what came of a run, which is trained unless that is known."""
    name = run_name(start, config)
    if name not in known or known[name].outcome == "error":
        print(f"\n--- {folder / name}", flush=True)
        known[name] = outcome_of(run, config, folder / name)
        add(known[name])
        if known[name].message:
            print(f"{known[name].outcome}: {known[name].message}", flush=True)
    return known[name]


def _failures(stage: Stage, folder: Path, known: Mapping[str, Outcome]) -> str:
    last = [each for each in known.values() if each.message][-1]
    return f"no run of the stage {stage.name} finished. {folder / last.run}: {last.message}"


def _command(start: Config, best: Config, folder: Path) -> str:
    changed = {f"--{name.replace('_', '-')}": str(value) for name, value in options(start, best).items()}
    words = ["--config", str(folder / START), *(word for option in changed.items() for word in option)]
    return shlex.join(["grpo-jax", "train", *words])
