"""The files of a checkpoint: where they lie, what is recorded of them, and whether they are still that."""

import json
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Record = dict[str, Any]
"""What a checkpoint says of itself: "leaves" (place -> [shape, dtype, fingerprint]), "score", "files" (path -> [size,
checksum or null]), and "seal" over these."""

UNFINISHED, REMOVED, DAMAGED = ".unfinished", ".removed", ".damaged"
"""What the names of folders end with that are no checkpoints: not yet, not any more, or not to be used."""

_STEP = re.compile(r"\d+")
_READ_WHOLE = 2**20


def step_folders(root: Path) -> dict[int, Path]:
    """Returns the subfolders named after a step, complete or not, by ascending step."""
    found = [path for path in root.iterdir() if _STEP.fullmatch(path.name)] if root.is_dir() else []
    return {int(path.name): path for path in sorted(found, key=lambda path: int(path.name))}


def arrays_in(checkpoint: Path) -> Path:
    """Returns the folder that Orbax writes and reads."""
    return checkpoint / "arrays"


def is_complete(checkpoint: Path) -> bool:
    """Returns whether a checkpoint has its record, which is written last."""
    return _record_in(checkpoint).is_file()


def write_record(checkpoint: Path, leaves: Mapping[str, Any], score: float | None) -> None:
    """Writes the record of a checkpoint whose arrays are on disk.

    A checksum is kept of small files alone, among them all indices: so that what is damaged is known before Orbax reads
    it. Large ones hold nothing but arrays, which the fingerprints speak for, and reading them again would take as long
    as writing them did.
    """
    arrays = arrays_in(checkpoint)
    files = {str(path.relative_to(arrays)): _described(path) for path in sorted(arrays.rglob("*")) if path.is_file()}
    record: Record = {"leaves": dict(leaves), "score": score, "files": files}
    with open(_record_in(checkpoint), "w", encoding="utf-8") as file:
        json.dump(record | {"seal": _seal(record)}, file)
        file.flush()
        os.fsync(file.fileno())


def read_record(checkpoint: Path) -> Record:
    """Returns what a checkpoint says of itself.

    Raises:
        ValueError: it says nothing, or not what was written.
        OSError: the record cannot be read.
    """
    if not is_complete(checkpoint):
        raise ValueError("it was not written, copied or deleted to the end")
    try:
        record = json.loads(_record_in(checkpoint).read_text(encoding="utf-8"))
        seal = record.pop("seal")
    except (ValueError, KeyError, AttributeError, TypeError):
        record, seal = {}, None
    if _seal(record) != seal:
        raise ValueError(f"its {_record_in(checkpoint).name} was altered")
    return record


def check_files(checkpoint: Path, record: Record) -> None:
    """Raises ValueError where a file is missing, shorter or longer, or, if it is a small one, another one."""
    for name, (size, checksum) in record["files"].items():
        path = arrays_in(checkpoint) / name
        if not path.is_file():
            raise ValueError(f"{name} is missing")
        if path.stat().st_size != size:
            raise ValueError(f"{name} has {path.stat().st_size} bytes instead of {size}")
        if checksum is not None and zlib.crc32(path.read_bytes()) != checksum:
            raise ValueError(f"{name} was altered")


def _record_in(checkpoint: Path) -> Path:
    return checkpoint / "manifest.json"


def _described(path: Path) -> list[int | None]:
    size = path.stat().st_size
    return [size, zlib.crc32(path.read_bytes()) if size <= _READ_WHOLE else None]


def _seal(content: Record) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
