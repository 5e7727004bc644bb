"""Experience that waits for its step, as arrays that are saved beside a state and read back."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from grpo_jax.experience import Experience
from grpo_jax.types import Batch, Packing, Prompts, Rollout

_NESTED = {"prompts": Prompts, "packing": Packing}
"""Fields of a rollout that are no arrays."""


def as_arrays(waiting: Sequence[Experience]) -> dict[str, np.ndarray]:
    """Returns experience as arrays by name, for `from_arrays`; none waiting makes none."""
    trees = [_tree(found) for found in waiting]
    pairs = jax.tree_util.tree_leaves_with_path(trees)
    return {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in pairs}


def from_arrays(arrays: Mapping[str, np.ndarray]) -> list[Experience]:
    """Returns the experience that `as_arrays` made arrays of, in its order."""
    count = len({name.partition(".")[0] for name in arrays})
    return [_experience(arrays, str(number)) for number in range(count)]


def _tree(found: Experience) -> dict[str, Any]:
    """Returns everything of an experience as a tree of arrays; what is no array, as the bytes of a JSON text."""
    fields = found._asdict()
    arrays = {name: fields.pop(name) for name in ("rollout", "batch", "versions")}
    return arrays | {"facts": np.frombuffer(json.dumps(fields).encode(), np.uint8)}


def _experience(arrays: Mapping[str, np.ndarray], place: str) -> Experience:
    return Experience(
        rollout=_rebuilt(Rollout, arrays, f"{place}.rollout"),
        batch=_rebuilt(Batch, arrays, f"{place}.batch"),
        versions=arrays[f"{place}.versions"],
        **json.loads(arrays[f"{place}.facts"].tobytes()),
    )


def _rebuilt(kind: Any, arrays: Mapping[str, np.ndarray], place: str) -> Any:
    """Returns a NamedTuple of the arrays below a place; a field without any is None."""
    values = {}
    for field in kind._fields:
        name = f"{place}.{field}"
        there = any(each.startswith(f"{name}.") for each in arrays)
        values[field] = _rebuilt(_NESTED[field], arrays, name) if there else arrays.get(name)
    return kind(**values)
