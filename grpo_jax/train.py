"""The training run: warm start, then sample, score, update, write down, until the steps are done."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from grpo_jax import checkpoints, hosts
from grpo_jax.announcements import conclusion, introduction
from grpo_jax.config import Config, from_dict, load, to_dict
from grpo_jax.diagnosis import Rule, follow, shipped_rules
from grpo_jax.due import Due, due
from grpo_jax.evaluation import Evaluation, described, evaluate, out_of_domain
from grpo_jax.experience import Experience
from grpo_jax.interruption import Interrupted, agreed, interruption
from grpo_jax.lag import experiences, steps_of
from grpo_jax.losses import Objective
from grpo_jax.memory import is_large_on_cpu, make_room
from grpo_jax.metrics import (
    Progress,
    Row,
    RunFolder,
    Steps,
    Writer,
    heartbeat,
    json_lines,
    profiler,
    progress,
    read_rows,
    run_folder,
    save_curves,
    several,
    tensorboard,
    write_json,
    write_samples,
)
from grpo_jax.oracle import as_row
from grpo_jax.program import Program, compile_program
from grpo_jax.types import Batch, Rollout, TrainState
from grpo_jax.waiting import as_arrays, from_arrays
from grpo_jax.warm_start import TrainingStopped, warm_started

MAY_DIFFER = ("steps", "checkpoint_every", "keep_checkpoints", "keep_best", "keep_every", "diagnose_every", "mesh")
"""Fields of the configuration that a resumed run may change: none decides what is computed up to a step, and the mesh
only how it is rounded."""
_SHOWN = {"reward_mean": "reward", "kl_per_sequence": "KL", "beta": "beta", "degenerate": "degenerate"}


class Run(NamedTuple):
    """What the loop reads.

    Attributes:
        config: the configuration.
        program: the compiled steps.
        files: where the run's files lie.
        writer: takes a row of measures per step.
        saver: saves checkpoints in the background.
        asked: ``() -> int``, the signal that asks this process to end, 0: none.
        began: when the run began, on the clock of ``time.monotonic``, as if the processes before had just ended.
        profile: called at the beginning of every step, and after the last.
    """

    config: Config
    program: Program
    files: RunFolder
    writer: Writer
    saver: checkpoints.Saver
    asked: Callable[[], int]
    began: float
    profile: Callable[[int], None]


def train(
    config: Config,
    folder: str | Path,
    *,
    resume: bool = False,
    objective: Objective | None = None,
    rules: Sequence[Rule] | None = None,
    profile: Steps | None = None,
) -> dict[str, Any]:
    """Trains a policy and leaves everything about it in a folder.

    In several processes (`grpo_jax.hosts`) each calls this with the same arguments.

    A run that is killed at any moment and resumed ends with the same parameters, bit for bit, as one that was not.

    Args:
        config: the run.
        folder: where its files go: config.json, metrics.jsonl, TensorBoard events, checkpoints, curves.png, samples,
            summary.json, diagnosis.jsonl.
        resume: continue the run in the folder from its last checkpoint; its number of steps, how often it is saved and
            diagnosed, and the mesh may be other ones (``MAY_DIFFER``).
        objective: one of your own, in place of the one that ``config.objective`` describes.
        rules: signs of trouble to look for; None: ``grpo_jax.diagnosis.shipped_rules``.
        profile: steps to trace with JAX's profiler, into the folder.

    Returns:
        What summary.json holds.

    Raises:
        ValueError: the configuration, before anything is computed.
        FileExistsError: the folder holds a run already.
        FileNotFoundError: there is nothing to resume.
        BlockingIOError: another process writes to the folder.
        TrainingStopped: too many updates in a row had a loss or gradient that is not finite.
        Interrupted: SIGTERM or SIGINT came; the step under way was finished and saved. A second one acts as before.
    """
    began = time.monotonic()
    config = from_dict(to_dict(config))  # as config.json will say it: 1 for a float becomes 1.0, "1" is an error
    program = compile_program(config, objective)
    with (
        hosts.quiet(),
        run_folder(folder, to_dict(config), resume=resume, may_differ=MAY_DIFFER) as files,
        interruption() as asked,
    ):
        begun = resume and checkpoints.steps(files.checkpoints)
        found = checkpoints.load(files.checkpoints, program.shapes) if begun else None
        start = None if found is None else found.step
        # From here on the rows of a killed process that are written anew are gone, and with them how long it took.
        began -= _seconds_before(files) if resume else 0.0
        _check_steps(config, files, start)
        profile_step = profiler(profile, files.profile, start or 0, config.steps)
        write_json(files.config, to_dict(config))
        writer = several(json_lines(files.metrics, start), tensorboard(files.tensorboard, start))
        try:
            print(introduction(config, program, files, start), flush=True)
            keep = checkpoints.Keep(config.keep_checkpoints, config.keep_best, config.keep_every)
            with checkpoints.saver(files.checkpoints, keep, start) as saver:
                run = Run(config, program, files, writer, saver, asked, began, profile_step)
                state = _started(run) if found is None else found.state
                ahead = [] if found is None else from_arrays(found.extra)
                with progress("train", config.steps, start=start or 0) as show:
                    chosen = shipped_rules() if rules is None else rules
                    diagnose = follow(config, chosen, read_rows(files.metrics), files.diagnosis, show.note)
                    state = _loop(run, state, ahead, show, diagnose)
        finally:
            writer.close()
        summary = _finish(config, program, files, state, time.monotonic() - began)
        print(conclusion(summary, files), flush=True)
    return summary


def _check_steps(config: Config, files: RunFolder, start: int | None) -> None:
    """Raises ValueError where a resumed run is given a new number of steps that it has passed already."""
    if start is not None and config.steps != load(files.config).steps and config.steps <= start:
        raise ValueError(f"steps is {config.steps}, but {files.path} is at step {start} already: give more to go on")


def _seconds_before(files: RunFolder) -> float:
    """Returns for how long earlier processes worked at the run, as far as its last row knows."""
    return max((row.get("seconds_total") or 0.0 for row in read_rows(files.metrics)), default=0.0)


def _started(run: Run) -> TrainState:
    """Warm-starts the policy, evaluates it, and saves the state before the first update."""
    config, program, files = run.config, run.program, run.files
    init_key, run_key = jax.random.split(jax.random.key(config.seed))
    params, consumed = warm_started(config, program, key=init_key, asked=lambda: agreed(run.asked))
    before = _evaluated(config, program, params, everywhere=True)
    write_samples(files.samples_before, before["validation"].samples)
    run.writer.write(0, _accuracies(before) | {"seconds_total": time.monotonic() - run.began})
    print(f"before training: accuracy on {described(_by_split(before))}", flush=True)
    state = program.state(params, key=run_key)
    state = _at_position(state, program, consumed)
    run.saver.save(state, 0, score=before["validation"].accuracy)
    return state


def _loop(
    run: Run, state: TrainState, ahead: Sequence[Experience], show: Progress, diagnose: Callable[[Row], None]
) -> TrainState:
    config, program = run.config, run.program
    beat = heartbeat(run.files.heartbeats)
    room = partial(make_room, sparing=config.model.remat_layers)
    first = steps_of(config, state)
    _end_if_asked(run, first)
    with experiences(config, program, state, ahead) as source:
        while (done := steps_of(config, state)) < config.steps:
            began, step, position = time.monotonic(), done + 1, int(state.position)
            run.profile(step)
            found = source.next(state)
            placed = program.place((found.rollout, found.batch))
            now, last = due(config, step), due(config, done)
            row, begins = {}, done == first
            if is_large_on_cpu(state.params):
                run.saver.wait()
            if now.before:
                room(state.params, first=begins, quiet=False)
                row = _examined(run, state, placed, now)
            room(state.params, first=begins, quiet=not (now.before or last.after))
            state, metrics = program.update(state, *placed)
            state = _at_position(state, program, position + found.consumed)
            row |= _numbers(jax.device_get(metrics)) | {"rounds": float(found.rounds)} | found.measures
            row |= {"seconds": time.monotonic() - began}
            _stop_if_broken(run, state, step)
            if now.after:
                room(state.params, first=False, quiet=False)
            if now.evaluation:
                row |= _accuracies(_evaluated(config, program, state.params, everywhere=step == config.steps))
            heard = beat(step, time.monotonic() - began, run.asked() > 0)
            row |= heard.measures
            run.writer.write(step, row | {"seconds_total": time.monotonic() - run.began})
            diagnose({"step": step, **row})
            show.update(step, {_SHOWN[name]: row[name] for name in _SHOWN if name in row})
            if now.checkpoint or heard.stop:
                run.saver.save(state, step, score=row.get("accuracy_validation"), extra=as_arrays(source.ahead()))
            run.saver.check()
            if heard.stop and step < config.steps:
                _end_if_asked(run, step)
    run.profile(config.steps + 1)
    return state


def _end_if_asked(run: Run, step: int) -> None:
    """Raises Interrupted, in every process, where a signal has come to any; the step is saved."""
    if signal := agreed(run.asked):
        raise Interrupted(signal, f"step {step} is saved; resuming {run.files.path} goes on from there")


def _examined(run: Run, state: TrainState, placed: tuple[Rollout, Batch], now: Due) -> dict[str, float]:
    program, row = run.program, {}
    if now.invariants:
        program.check(state, *placed)
    if now.gradient_share:
        row["degenerate_gradient_share"] = float(program.share(state, *placed))
    if program.certificate and now.certificate:
        row |= as_row(jax.device_get(program.certificate(state, *placed)))
    return row


def _at_position(state: TrainState, program: Program, position: int) -> TrainState:
    place = program.shapes.position.sharding
    return state._replace(position=hosts.put(np.int32(position), place))


def _stop_if_broken(run: Run, state: TrainState, step: int) -> None:
    rejected = int(state.rejected)
    if rejected < run.config.update.max_rejected:
        return
    raise TrainingStopped(
        f"step {step}: the loss or its gradient was not finite for {rejected} updates in a row. The parameters were "
        f"never touched by them, and the checkpoints in {run.files.checkpoints} are intact. Likely causes: a learning "
        "rate too high (divide it by 10), rewards of enormous size, or a reference far from the policy (raise beta). "
        "The rows of metrics.jsonl before this step show which measure grew"
    )


def _evaluated(config: Config, program: Program, params: Any, *, everywhere: bool) -> dict[str, Evaluation]:
    task = program.parts.task
    splits = ["validation", *(out_of_domain(task) if everywhere else [])]
    count, rows = config.evaluation.examples, program.evaluation_rows
    return {split: evaluate(task, program.answer, params, split, count, rows) for split in splits}


def _accuracies(evaluations: Mapping[str, Evaluation]) -> dict[str, float]:
    return {f"accuracy_{split}": found.accuracy for split, found in evaluations.items()}


def _by_split(evaluations: Mapping[str, Evaluation]) -> dict[str, float]:
    return {split: found.accuracy for split, found in evaluations.items()}


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics as numbers, without the maximum over nothing."""
    return {name: float(value) for name, value in metrics.items() if not np.isneginf(value)}


def _finish(config: Config, program: Program, files: RunFolder, state: TrainState, seconds: float) -> dict[str, Any]:
    """Draws the curves, writes samples and summary; what that says is read back from the run's own rows."""
    shown = evaluate(program.parts.task, program.answer, state.params, "validation", 10, program.evaluation_rows)
    params = None
    if program.parts.save is not None:
        params = hosts.whole(program.whole(state.params), wanted=hosts.is_writer())
    return hosts.from_writer(lambda: _left(config, program, files, shown, params, seconds))


def _left(
    config: Config, program: Program, files: RunFolder, shown: Evaluation, params: Any, seconds: float
) -> dict[str, Any]:
    """Writes what a finished run leaves behind; returns its summary."""
    rows = read_rows(files.metrics)
    save_curves(rows, files.curves)
    write_samples(files.samples_after, shown.samples)
    if program.parts.save is not None:
        _save_model(program.parts.save, files, params)
    first, last = rows[0], rows[-1]
    summary = {
        "accuracy_before": first["accuracy_validation"],
        "accuracy_after": last["accuracy_validation"],
        "out_of_domain_before": {split: first[f"accuracy_{split}"] for split in out_of_domain(program.parts.task)},
        "out_of_domain_after": {split: last[f"accuracy_{split}"] for split in out_of_domain(program.parts.task)},
        "steps": config.steps,
        "seconds": round(seconds, 1),
        "kl": last.get("kl_per_sequence"),
        "beta": last["beta"],
        "rejected": round(sum(row.get("rejected") or 0 for row in rows) * config.update.updates_per_rollout),
        "kl_follows": program.parts.objective.target.name,
        "config_hash": files.config_hash,
    }
    write_json(files.summary, summary)
    return summary


def _save_model(save: Callable[[Path, Any], None], files: RunFolder, params: Any) -> None:
    """Writes the model, in place of the one that the run left when it had fewer steps."""
    fresh = files.path / ".model.new"
    shutil.rmtree(fresh, ignore_errors=True)
    save(fresh, params)
    shutil.rmtree(files.model, ignore_errors=True)
    fresh.rename(files.model)
    print(f"model: {files.model}", flush=True)
