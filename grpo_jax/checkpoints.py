"""Saving a run's state and restoring it bit for bit, by Orbax.

A checkpoint is a folder named after its step. It appears under that name complete or not at all: Orbax writes beside it
and renames. Inside stands a flat dict from a leaf's place in the state ("params.embed", "opt_state.0.mu.embed") to its
array, so what is stored depends on no container type, and two checkpoints differ in what these names say.
"""

import re
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint.experimental.v1 as orbax
from jax.sharding import SingleDeviceSharding

from grpo_jax.types import TrainState

__all__ = ["latest", "restore", "save", "steps"]

_STEP = re.compile(r"\d+")


def steps(folder: str | Path) -> list[int]:
    """Returns the steps of all complete checkpoints in a folder, ascending; empty where there is no such folder."""
    return sorted(int(path.name) for path in _step_folders(Path(folder)) if _is_complete(path))


def latest(folder: str | Path) -> int | None:
    """Returns the step of the newest complete checkpoint in a folder, None where there is none."""
    found = steps(folder)
    return found[-1] if found else None


def save(folder: str | Path, state: TrainState, step: int, *, keep: int = 3) -> None:
    """Saves a state as the checkpoint of a step, then removes all but the newest ones.

    Returns once the checkpoint is on disk. A process killed at any moment leaves every earlier checkpoint as it was.

    Args:
        folder: where the run's checkpoints are; created if need be.
        state: what to save; its arrays may be sharded.
        step: updates done, the checkpoint's name.
        keep: how many checkpoints stay, at least 1.

    Raises:
        ValueError: keep is less than 1, or step negative.
        FileExistsError: the step is saved already. To replace it would mean a moment without it.
    """
    if keep < 1:
        raise ValueError(
            f"keep={keep} in checkpoints.save: at least 1 checkpoint has to stay, or nothing can be resumed"
        )
    if step < 0:
        raise ValueError(f"step={step} in checkpoints.save: steps are counted from 0")
    root = Path(folder).absolute()
    if step in steps(root):
        raise FileExistsError(
            f"step {step} is already saved in {root}: save each step once, or remove that folder first"
        )
    for path in _step_folders(
        root
    ):  # what a deletion or a copy that was killed left behind would count as a checkpoint
        if not _is_complete(path):
            shutil.rmtree(path)
    policy: Any = orbax.training.preservation_policies.LatestN(keep)
    with orbax.training.Checkpointer(
        str(root), preservation_policy=policy, cleanup_tmp_directories=True
    ) as checkpointer:
        checkpointer.save(step, jax.tree.map(_storable, _by_place(state)), force=True)


def restore(folder: str | Path, like: TrainState, step: int | None = None) -> TrainState:
    """Restores the state that was saved, bit for bit, onto the devices where this run wants it.

    Args:
        folder: where the run's checkpoints are.
        like: a state of the structure, shapes, dtypes and shardings to restore: arrays, or ``jax.ShapeDtypeStruct``
            with ``sharding``. A leaf without sharding goes to the first device. The checkpoint may come from others.
        step: which checkpoint; None: the newest.

    Returns:
        A TrainState as ``like`` in structure and sharding, with the saved values.

    Raises:
        FileNotFoundError: there is no (such) checkpoint.
        ValueError: the checkpoint holds another tree than ``like``; the message names what differs.
    """
    root = Path(folder).absolute()
    available = steps(root)
    if not available:
        raise FileNotFoundError(f"no checkpoint in {root}: start the run without resuming, or name another folder")
    step = available[-1] if step is None else step
    if step not in available:
        raise FileNotFoundError(f"no checkpoint of step {step} in {root}: it has those of steps {available}")
    checkpoint = root / str(step)
    wanted = _by_place(like)
    abstract = {place: _stored_form(leaf) for place, leaf in wanted.items()}
    _check_same(_on_disk(checkpoint), abstract, checkpoint)
    loaded: dict[str, jax.Array] = orbax.load(str(checkpoint), abstract)
    leaves = [_restored(loaded[place], leaf) for place, leaf in wanted.items()]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _step_folders(root: Path) -> list[Path]:
    """Returns the subfolders named after a step, complete or not."""
    return [path for path in root.iterdir() if _STEP.fullmatch(path.name)] if root.is_dir() else []


def _is_complete(checkpoint: Path) -> bool:
    """Returns whether Orbax has marked a checkpoint as committed and its list of arrays is there."""
    return all((checkpoint / name).is_file() for name in ("commit_success.txt", "state/_METADATA"))


def _by_place(tree: Any) -> dict[str, Any]:
    """Returns a flat dict from the place of each leaf, as in "opt_state.0.mu.embed", to the leaf, in order."""
    pairs = jax.tree_util.tree_leaves_with_path(tree)
    flat = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in pairs}
    if len(flat) != len(pairs):
        raise ValueError("two leaves of the state have one name: no name of a parameter may contain a dot")
    return flat


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _storable(leaf: Any) -> jax.Array:
    """Returns a leaf as a plain array: a typed key becomes its data."""
    leaf = jnp.asarray(leaf)
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _stored_form(leaf: Any) -> jax.ShapeDtypeStruct:
    """Returns shape, dtype and sharding of a leaf as it is stored."""
    sharding = getattr(leaf, "sharding", None) or SingleDeviceSharding(jax.devices()[0])
    stored = jax.eval_shape(_storable, leaf)
    return jax.ShapeDtypeStruct(stored.shape, stored.dtype, sharding=sharding)


def _restored(stored: jax.Array, like: Any) -> jax.Array:
    """Returns a stored array in the form of a leaf: key data becomes a typed key again."""
    if not _is_key(like):
        return stored
    return jax.random.wrap_key_data(stored, impl=jax.random.key_impl(jnp.empty((), like.dtype)))


def _on_disk(checkpoint: Path) -> dict[str, Any]:
    """Returns place -> metadata (shape, dtype) of what a checkpoint holds."""
    return dict(orbax.metadata(str(checkpoint)).metadata)


def _check_same(saved: dict[str, Any], wanted: dict[str, Any], checkpoint: Path) -> None:
    """Raises ValueError naming every place (a few of each kind) where the checkpoint and the run differ."""
    shapes = [
        f"{place}: {_describe(saved[place])} in the checkpoint, {_describe(leaf)} in this run"
        for place, leaf in wanted.items()
        if place in saved and _describe(saved[place]) != _describe(leaf)
    ]
    problems = [
        *_listed("other shape or dtype", shapes),
        *_listed("only in the checkpoint", [place for place in saved if place not in wanted]),
        *_listed("only in this run", [place for place in wanted if place not in saved]),
    ]
    if problems:
        raise ValueError(
            f"{checkpoint} is a checkpoint of another configuration:\n"
            + "\n".join(problems)
            + "\nResume it with the configuration it was made with, or start a new run in another folder."
        )


def _listed(title: str, items: list[str], most: int = 8) -> list[str]:
    """Returns one line of text for what differs in one way, or none."""
    more = [f"and {len(items) - most} more"] if len(items) > most else []
    return [f"  {title}: " + "; ".join(items[:most] + more)] if items else []


def _describe(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"
