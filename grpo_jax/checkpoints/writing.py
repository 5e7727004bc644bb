"""Writing checkpoints while the run goes on, and removing those that no rule keeps."""

import errno
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import orbax.checkpoint.experimental.v1 as orbax

from grpo_jax.checkpoints.files import (
    DAMAGED,
    REMOVED,
    UNFINISHED,
    arrays_in,
    is_complete,
    read_record,
    step_folders,
    write_record,
)
from grpo_jax.checkpoints.fingerprints import fingerprints
from grpo_jax.checkpoints.keeping import Keep, kept
from grpo_jax.checkpoints.places import EXTRA, by_place, recorded, storable, storable_extra
from grpo_jax.checkpoints.reading import steps
from grpo_jax.types import TrainState

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NEWEST = Keep()


class Saver(NamedTuple):
    """Saves a run's checkpoints in the background, one at a time.

    Attributes:
        save: ``(state, step, *, score=None, extra=()) -> None``. Returns as soon as the state may be changed or
            donated; the files are written while the run goes on. Waits for the checkpoint before. ``score`` is what
            ``Keep.best`` ranks by, higher is better. ``extra`` is any other tree of arrays, on devices or on the host,
            whose structure and shapes may be others at every step (a queue); ``load`` gives it back on the host as
            place -> array, ``rebuilt`` makes a tree of that, and a typed key in it comes back as its data.
        check: ``() -> None``. Raises what went wrong with a save in the meantime, and does not wait.
        wait: ``() -> None``. Returns when everything is on disk.
    """

    save: Callable[..., None]
    check: Callable[[], None]
    wait: Callable[[], None]


@contextmanager
def saver(folder: str | Path, keep: Keep = _NEWEST, start: int | None = None) -> Iterator[Saver]:
    """Opens a folder for new checkpoints until the ``with`` block is left, which waits for the last one.

    A process killed at any moment leaves every earlier checkpoint as it was. What killed processes left unfinished is
    removed here. Checkpoints later than ``start`` can only be damaged ones; they are renamed, to make place.

    Args:
        folder: where the run's checkpoints are; created if need be. Nobody else may write there.
        keep: which of them stay.
        start: the step that the run goes on from; None: it begins.

    Yields:
        What saves. Its functions raise FileExistsError for a step that is saved already, and OSError where a
        checkpoint could not be written, with the reason and a remedy; the ones before it are intact.

    Raises:
        ValueError: a rule that keeps nothing.
    """
    root = Path(folder).absolute()
    kept({}, keep)
    _tidy(root, -1 if start is None else start)
    scores = {step: _score(root / str(step)) if keep.best else None for step in steps(root)}
    pending: list[tuple[int, Future]] = []

    def wait() -> None:
        while pending:
            step, future = pending.pop()
            try:
                future.result()
            except Exception as error:
                shutil.rmtree(root / f"{step}{UNFINISHED}", ignore_errors=True)
                raise _explained(error, root, step) from error

    def check() -> None:
        if pending and pending[0][1].done():
            wait()

    def save(state: TrainState, step: int, *, score: float | None = None, extra: Any = ()) -> None:
        wait()
        _check_step(root, step)
        leaves = _leaves(state, extra)
        record = recorded(leaves, fingerprints(leaves))
        known = None if score is None or math.isnan(score) else float(score)
        begun = _begin(root, step, leaves)

        def finish() -> None:
            begun.result()
            if jax.process_index() == 0:
                _commit(root, step, record, known)
                scores[step] = known
                _remove_others(root, scores, keep)

        pending.append((step, worker.submit(finish)))

    with ThreadPoolExecutor(1, "checkpoint") as worker:
        try:
            yield Saver(save, check, wait)
        except BaseException:
            _wait_aside(wait)
            raise
        wait()


def save(
    folder: str | Path,
    state: TrainState,
    step: int,
    *,
    keep: Keep = _NEWEST,
    score: float | None = None,
    extra: Any = (),
) -> None:
    """Saves one checkpoint and returns once it is on disk; the same as ``saver`` with a single ``save``.

    Raises:
        ValueError: a rule that keeps nothing, or a negative step.
        FileExistsError: the step is saved already. To replace it would mean a moment without it.
        OSError: it could not be written.
    """
    found = steps(folder)
    with saver(folder, keep, found[-1] if found else None) as opened:
        opened.save(state, step, score=score, extra=extra)


def _check_step(root: Path, step: int) -> None:
    if step < 0:
        raise ValueError(f"step={step} in checkpoints.save: steps are counted from 0")
    if (root / str(step)).exists():
        raise FileExistsError(
            f"step {step} is already saved in {root}: save each step once, or remove that folder first"
        )


def _leaves(state: TrainState, extra: Any) -> dict[str, Any]:
    leaves: dict[str, Any] = {place: storable(leaf) for place, leaf in by_place(state).items()}
    return leaves | {EXTRA + place: storable_extra(leaf) for place, leaf in by_place(extra).items()}


def _begin(root: Path, step: int, leaves: dict[str, Any]) -> Any:
    """Starts to write the arrays; returns what waits for them."""
    present = {place: leaf for place, leaf in leaves.items() if leaf.size}  # Orbax takes no empty arrays
    arrays = arrays_in(root / f"{step}{UNFINISHED}")
    try:
        if jax.process_index() == 0:
            arrays.parent.mkdir(parents=True)
        return orbax.save_async(str(arrays), present)
    except Exception as error:
        raise _explained(error, root, step) from error


def _commit(root: Path, step: int, record: dict[str, Any], score: float | None) -> None:
    """Makes a checkpoint of what has been written."""
    unfinished = root / f"{step}{UNFINISHED}"
    write_record(unfinished, record, score)
    os.rename(unfinished, root / str(step))


def _wait_aside(wait: Callable[[], None]) -> None:
    """Waits for the last checkpoint while another error is on its way, which must not be hidden."""
    try:
        wait()
    except OSError as error:
        print(error, file=sys.stderr, flush=True)


def _explained(error: Exception, root: Path, step: int) -> OSError:
    text = str(error)
    full = getattr(error, "errno", None) in _FULL or any(f"os_error_code='{code}'" in text for code in _FULL)
    others = steps(root)
    intact = f"The checkpoints of steps {others} are intact" if others else "There is no earlier checkpoint"
    if full:
        free = shutil.disk_usage(root).free / 2**20 if root.is_dir() else 0.0
        reason = f"no space for it ({free:,.0f} MiB are free). Free some, or keep fewer checkpoints"
    else:
        reason = f"{text.strip().partition(chr(10))[0]}. Mend that"
    return OSError(f"the checkpoint of step {step} could not be written to {root}: {reason}, and resume. {intact}")


def _score(checkpoint: Path) -> float | None:
    try:
        return read_record(checkpoint)["score"]
    except (ValueError, OSError):  # it is found out when it is read
        return None


def _tidy(root: Path, start: int) -> None:
    """Removes what is unfinished, and renames what is damaged."""
    if jax.process_index() != 0 or not root.is_dir():
        return
    for path in list(root.iterdir()):
        if path.name.endswith((UNFINISHED, REMOVED)):
            shutil.rmtree(path)
    for step, path in step_folders(root).items():
        if step > start or not is_complete(path):
            shutil.rmtree(f"{path}{DAMAGED}", ignore_errors=True)
            path.rename(f"{path}{DAMAGED}")
            print(f"{path} is kept as {path.name}{DAMAGED}; remove it when you like", file=sys.stderr, flush=True)


def _remove_others(root: Path, scores: dict[int, float | None], keep: Keep) -> None:
    """Removes what no rule keeps, so that a kill on the way leaves nothing that looks like a checkpoint."""
    for step in scores.keys() - kept(scores, keep):
        gone = root / f"{step}{REMOVED}"
        os.rename(root / str(step), gone)
        shutil.rmtree(gone)
        del scores[step]
