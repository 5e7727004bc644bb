"""The folder of one run: who may write to it, which configuration it belongs to, and what lies where."""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from grpo_jax import hosts


class RunFolder(NamedTuple):
    """Where a run's files lie.

    Attributes:
        path: the folder itself.
        config_hash: the hash of the configuration it belongs to.
        config: the configuration as JSON.
        metrics: one JSON object per step.
        tensorboard: folder of event files.
        checkpoints: folder of checkpoints.
        diagnosis: one JSON object for each thing found wrong with the run.
        curves: the picture of the run.
        samples_before: completions before training, as text.
        samples_after: completions after it.
        summary: what came out, as JSON.
        model: folder of the trained model, where the run started from a pretrained one.
        heartbeats: folder with a file of each process, see ``heartbeat``.
        profile: folder of traces.
    """

    path: Path
    config_hash: str
    config: Path
    metrics: Path
    tensorboard: Path
    checkpoints: Path
    diagnosis: Path
    curves: Path
    samples_before: Path
    samples_after: Path
    summary: Path
    model: Path
    heartbeats: Path
    profile: Path


class Sample(NamedTuple):
    """One completion as a person reads it.

    Attributes:
        prompt: the prompt's text.
        completion: the completion's text.
        reward: its reward; None where it could not be scored.
        expected: the right completion, where there is one.
    """

    prompt: str
    completion: str
    reward: float | None
    expected: str | None = None


def config_hash(config: Mapping[str, Any]) -> str:
    """Returns 16 hexadecimal digits that equal configurations share, whatever the order of their fields.

    Raises:
        TypeError: the configuration holds something that JSON does not.
        ValueError: it holds NaN or an infinity.
    """
    canonical = json.dumps(config, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


@contextmanager
def run_folder(
    path: str | Path, config: Mapping[str, Any], *, resume: bool = False, may_differ: Sequence[str] = ()
) -> Iterator[RunFolder]:
    """Opens a run's folder for writing, alone, until the ``with`` block is left.

    Of several processes of one run the writing one does so, and all have to be given the same folder, on a disk that
    they share; where one fails, all raise the same message. The lock is the operating system's (flock on ``lock``), so
    it goes with the process, even one that is killed.

    Args:
        path: the folder; a new run creates it.
        config: everything that decides what the run computes.
        resume: continue the run that is there, instead of starting one.
        may_differ: fields at the top of the configuration that a resumed run may change, such as a total number of
            steps. config.json stays as it is; to rewrite it is the caller's business.

    Yields:
        The places of the run's files; config.json has been written, or found to say the same.

    Raises:
        BlockingIOError: another process is writing to the folder.
        FileExistsError: there is a run already, and ``resume`` was not asked for.
        FileNotFoundError: there is no run to resume.
        ValueError: the folder belongs to another configuration; the message names the fields that differ.
        hosts.HostFailed: any of these, in several processes; or their configurations differ, or they share no disk.
    """
    _check_hosts_agree({**config, "resume": resume})
    root = Path(path)
    with ExitStack() as stack:
        with hosts.together():
            if hosts.is_writer():
                stack.enter_context(_opened(root, config, resume, may_differ))
        with hosts.together():
            if not (root / "config.json").exists():
                raise FileNotFoundError(f"{root.absolute()} is not there: give all processes one shared folder")
        yield _places(root, config_hash(config))


@contextmanager
def _opened(root: Path, config: Mapping[str, Any], resume: bool, may_differ: Sequence[str]) -> Iterator[None]:
    if resume and not (root / "config.json").exists():
        raise FileNotFoundError(f"no run to resume in {root} (no config.json): start one there without resuming")
    root.mkdir(parents=True, exist_ok=True)
    with _alone_in(root):
        if (root / "config.json").exists():
            _check_config(root, _plain(config), resume, may_differ)
        else:
            write_json(root / "config.json", config)
        yield


def _check_hosts_agree(config: Mapping[str, Any]) -> None:
    """Raises unless all processes of the run have one configuration."""
    first = hosts.from_writer(lambda: config)
    with hosts.together():
        if hosts.count() > 1 and first != _plain(config):
            differences = "; ".join(_differences(first, _plain(config)))
            raise ValueError(f"another configuration than that of host 0: {differences}. Give all the same options")


def _places(root: Path, hashed: str) -> RunFolder:
    return RunFolder(
        path=root,
        config_hash=hashed,
        config=root / "config.json",
        metrics=root / "metrics.jsonl",
        tensorboard=root / "tensorboard",
        checkpoints=root / "checkpoints",
        diagnosis=root / "diagnosis.jsonl",
        curves=root / "curves.png",
        samples_before=root / "samples_before.txt",
        samples_after=root / "samples_after.txt",
        summary=root / "summary.json",
        model=root / "model",
        heartbeats=root / "heartbeats",
        profile=root / "profile",
    )


@contextmanager
def _alone_in(root: Path) -> Iterator[None]:
    """Holds the folder's lock; the file stays, since removing it would let two processes lock two files of one name."""
    descriptor = os.open(root / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, 32).decode() or "unknown"
            raise BlockingIOError(
                f"{root} is in use by process {owner}: wait for it to end, stop it, or choose another folder"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield
    finally:
        os.close(descriptor)


def _check_config(root: Path, config: dict[str, Any], resume: bool, may_differ: Sequence[str]) -> None:
    """Raises unless the run in the folder has this configuration and may be continued."""
    found, wanted = (_without(may_differ, each) for each in (read_json(root / "config.json"), config))
    if found != wanted:
        raise ValueError(
            f"{root} belongs to another configuration: {'; '.join(_differences(found, wanted))}. "
            f"Use the options it was made with, or choose another folder"
        )
    if not resume:
        raise FileExistsError(f"{root} already holds a run of this configuration: resume it, or choose another folder")


def read_json(path: Path) -> Any:
    """Returns what a JSON file holds.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}): restore it, or choose another folder") from None


def _without(names: Sequence[str], config: Any) -> Any:
    return {name: value for name, value in config.items() if name not in names} if isinstance(config, dict) else config


def _plain(value: Any) -> Any:
    """Returns a value as it comes back from a JSON file: tuples as lists, keys as text."""
    return json.loads(json.dumps(value, allow_nan=False))


def _differences(found: Any, wanted: Any, place: str = "") -> list[str]:
    """Returns what differs between two JSON values, each by its place, as in "optimizer.rate: 0.1 there, 0.2 here"."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        names = [*found, *(name for name in wanted if name not in found)]
        pairs = [(name, found.get(name, "nothing"), wanted.get(name, "nothing")) for name in names]
        return [line for name, a, b in pairs if a != b for line in _differences(a, b, f"{place}.{name}".lstrip("."))]
    return [f"{place}: {found!r} there, {wanted!r} here"]


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes a JSON file, complete or not at all."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a text file, complete or not at all; of several processes of a run the writing one does."""
    if not hosts.is_writer():
        return
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def write_samples(path: Path, samples: Sequence[Sample]) -> None:
    """Writes completions for a person to read: one block each, blank lines between."""
    write_text(path, "\n".join(_block(sample) for sample in samples))


def _block(sample: Sample) -> str:
    lines = [f"prompt:     {sample.prompt}", f"completion: {sample.completion}"]
    if sample.expected is not None:
        lines.append(f"expected:   {sample.expected}")
    lines.append("reward:     " + ("not scorable" if sample.reward is None else f"{sample.reward:g}"))
    return "\n".join(lines) + "\n"
