"""Finding a run's checkpoints and reading them, from the newest that is whole."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint.experimental.v1 as orbax

from grpo_jax import hosts
from grpo_jax.checkpoints.files import arrays_in, check_files, is_complete, read_record, step_folders
from grpo_jax.checkpoints.fingerprints import fingerprints
from grpo_jax.checkpoints.places import EXTRA, by_place, restored, stored_form
from grpo_jax.types import TrainState

_CHANNEL = "checkpoints"


class Restored(NamedTuple):
    """What a checkpoint gave back.

    Attributes:
        state: the training state.
        step: the checkpoint's step.
        extra: what was saved beside the state, as place -> array on the host, see ``rebuilt``; empty: nothing was.
        score: what the checkpoint was ranked by; None: nothing.
    """

    state: TrainState
    step: int
    extra: dict[str, np.ndarray]
    score: float | None


class _OtherConfiguration(ValueError):
    """The checkpoint is whole and holds another tree."""


def steps(folder: str | Path) -> list[int]:
    """Returns the steps of all complete checkpoints in a folder, ascending; empty where there is no such folder."""
    return [step for step, path in step_folders(Path(folder)).items() if is_complete(path)]


def latest(folder: str | Path) -> int | None:
    """Returns the step of the newest complete checkpoint in a folder, None where there is none."""
    found = steps(folder)
    return found[-1] if found else None


def restore(folder: str | Path, like: TrainState, step: int | None = None) -> TrainState:
    """Restores the state that was saved, as ``load`` does."""
    return load(folder, like, step).state


def load(folder: str | Path, like: TrainState, step: int | None = None) -> Restored:
    """Restores what was saved, bit for bit, onto the devices where this run wants it.

    Every leaf is compared with its fingerprint from when it was saved. Where the newest checkpoint is damaged or
    incomplete, standard error says which, why, and what is taken instead: the newest one that is whole.

    Args:
        folder: where the run's checkpoints are.
        like: a state of the structure, shapes, dtypes and shardings to restore: arrays, or ``jax.ShapeDtypeStruct``
            with ``sharding``. A leaf without sharding goes to the first device. The checkpoint may come from others.
        step: which checkpoint; None: the newest that is whole.

    Returns:
        The state as ``like`` in structure and sharding, with the saved values; and whatever was saved beside it.

    Raises:
        FileNotFoundError: there is no (such) checkpoint.
        ValueError: the checkpoint holds another tree than ``like``, and the message names what differs; or every
            checkpoint, or the one that was named, is damaged.
    """
    root = Path(folder).absolute()
    available = step_folders(root)
    if not steps(root):
        raise FileNotFoundError(f"no checkpoint in {root}: start the run without resuming, or name another folder")
    if step is not None and step not in available:
        raise FileNotFoundError(f"no checkpoint of step {step} in {root}: it has those of steps {steps(root)}")
    damaged: list[str] = []
    for number in sorted(available, reverse=True) if step is None else [step]:
        found = _attempted(available[number], like, number)
        if isinstance(found, str):
            damaged.append(f"{available[number]} is damaged: {found}")
            continue
        for problem in damaged:
            print(f"{problem}; going on from step {number} instead", file=sys.stderr, flush=True)
        return found
    raise ValueError("\n".join(damaged) + "\n" + _advice(root, step))


def _attempted(checkpoint: Path, like: TrainState, step: int) -> Restored | str:
    """Returns what a checkpoint holds, or what is wrong with it."""
    try:
        return _loaded(checkpoint, like, step)
    except _OtherConfiguration:
        raise
    except Exception as error:  # whatever Orbax makes of damaged files: it raises many kinds
        return (str(error).strip().partition("\n")[0] or type(error).__name__)[:300]


def _loaded(checkpoint: Path, like: TrainState, step: int) -> Restored:
    with hosts.together(_CHANNEL):  # what one process cannot read none takes
        record = read_record(checkpoint)
        check_files(checkpoint, record)
    wanted = by_place(like)
    abstract: dict[str, Any] = {place: stored_form(leaf) for place, leaf in wanted.items()}
    _check_same(record["leaves"], abstract, checkpoint)
    beside = {place: leaf for place, leaf in record["leaves"].items() if place.startswith(EXTRA)}
    abstract |= {place: _on_host(shape, dtype) for place, (shape, dtype, _) in beside.items()}
    present = {place: leaf for place, leaf in abstract.items() if leaf.size}
    # Orbax stores no empty arrays; they are made anew.
    empty = {place: _empty(leaf) for place, leaf in abstract.items() if not leaf.size}
    with hosts.together(_CHANNEL):
        loaded: dict[str, Any] = {**orbax.load(str(arrays_in(checkpoint)), present), **empty}
    marks = fingerprints(loaded)
    wrong = [place for place, (_, _, mark) in record["leaves"].items() if marks[place] != mark]
    if wrong:
        raise ValueError(f"{len(wrong)} of its {len(marks)} arrays are not what was saved, such as {wrong[0]}")
    leaves = [restored(loaded[place], leaf) for place, leaf in wanted.items()]
    return Restored(
        state=jax.tree.unflatten(jax.tree.structure(like), leaves),
        step=step,
        extra={place.removeprefix(EXTRA): loaded[place] for place in beside},
        score=record["score"],
    )


def _on_host(shape: list[int], dtype: str) -> np.ndarray:
    """Returns what stands for an array on the host of which only shape and dtype matter; it takes no memory."""
    return np.broadcast_to(np.zeros((), jnp.dtype(dtype)), shape)


def _empty(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return np.zeros(leaf.shape, leaf.dtype)
    return hosts.put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding)


def _check_same(saved: Mapping[str, Any], wanted: Mapping[str, Any], checkpoint: Path) -> None:
    """Raises _OtherConfiguration naming every place (a few of each kind) where the checkpoint and the run differ."""
    here = {place: f"{leaf.dtype.name}{list(leaf.shape)}" for place, leaf in wanted.items()}
    there = {place: f"{leaf[1]}{leaf[0]}" for place, leaf in saved.items() if not place.startswith(EXTRA)}
    shapes = [
        f"{place}: {there[place]} in the checkpoint, {here[place]} in this run"
        for place in here
        if place in there and there[place] != here[place]
    ]
    problems = [
        *_listed("other shape or dtype", shapes),
        *_listed("only in the checkpoint", [place for place in there if place not in here]),
        *_listed("only in this run", [place for place in here if place not in there]),
    ]
    if problems:
        raise _OtherConfiguration(
            f"{checkpoint} is a checkpoint of another configuration:\n"
            + "\n".join(problems)
            + "\nResume it with the configuration it was made with, or start a new run in another folder."
        )


def _listed(title: str, items: list[str], most: int = 8) -> list[str]:
    """Returns one line of text for what differs in one way, or none."""
    more = [f"and {len(items) - most} more"] if len(items) > most else []
    return [f"  {title}: " + "; ".join(items[:most] + more)] if items else []


def _advice(root: Path, step: int | None) -> str:
    if step is None:
        return f"No checkpoint in {root} is whole: restore one from a copy, or start the run in another folder."
    others = [number for number in steps(root) if number != step]
    return f"Name another one of the steps {others}." if others else "There is no other checkpoint."
