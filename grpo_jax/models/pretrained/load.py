"""Weights from safetensors, one tensor in host memory at a time, each placed where it belongs at once."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding
from safetensors import safe_open

from grpo_jax.models.architecture import DecoderConfig
from grpo_jax.models.decoder import decoder
from grpo_jax.models.pretrained.layout import Place, as_tree, leaf_at, places
from grpo_jax.types import Params

INDEX = "model.safetensors.index.json"
"""Names the file of every tensor, where there are several files."""
_IGNORED = ("rotary_emb.inv_freq", "lm_head.weight")
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
"""What parameters may be stored in."""


def load(folder: str | Path, config: DecoderConfig, *, dtype: str | None = "float32", shardings: Any = None) -> Params:
    """Loads the parameters of a checkpoint in the layout of Hugging Face.

    Only the part that lives on this process's devices is read, tensor by tensor, so that host memory stays near the
    largest tensor (of one layer, also where layers are scanned).

    Args:
        folder: holds model.safetensors, or several files and model.safetensors.index.json.
        config: the decoder's, from `read_config`.
        dtype: of the parameters, "float32", "float16" or "bfloat16"; None: as stored.
        shardings: a tree like the params with the sharding of each leaf; None: all on the default device.

    Returns:
        The params of ``decoder(config)``.

    Raises:
        FileNotFoundError: no weights in the folder, or not the file that the index names.
        ValueError: tensors that are missing, unknown or of the wrong size, with their names.
    """
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"pretrained.load: dtype is {dtype!r}; give one of {', '.join(DTYPES)}, or None: as stored")
    files = files_of(folder)
    expected = list(places(config))
    _check_names(folder, files, expected)
    shapes = jax.eval_shape(lambda: decoder(config).init(key=jax.random.key(0)))
    here = SingleDeviceSharding(jax.local_devices()[0])
    leaves = {}
    for place in expected:
        sharding = here if shardings is None else leaf_at(shardings, place.path)
        leaves[place.path] = _leaf(place, leaf_at(shapes, place.path).shape, files, dtype, sharding)
    return as_tree(leaves)


def files_of(folder: str | Path) -> dict[str, Path]:
    """Returns the file of every tensor, by name.

    Raises:
        FileNotFoundError: no weights in the folder, or not the file that the index names.
    """
    folder = Path(folder)
    if (folder / INDEX).is_file():
        found = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        missing = sorted({file for file in found.values() if not (folder / file).is_file()})
        if missing:
            raise FileNotFoundError(f"{folder}: {INDEX} names {', '.join(missing)}, which the folder does not hold")
        return {name: folder / file for name, file in found.items()}
    path = folder / "model.safetensors"
    if not path.is_file():
        raise FileNotFoundError(f"{folder}: neither model.safetensors nor {INDEX}; download the weights first")
    with safe_open(path, framework="numpy") as file:
        return dict.fromkeys(file.keys(), path)


def _check_names(folder: str | Path, files: Mapping[str, Path], expected: list[Place]) -> None:
    names = {name for place in expected for name in place.names}
    missing = sorted(names - files.keys())
    if missing:
        raise ValueError(
            f"{folder}: {len(missing)} of {len(names)} tensors are missing, {_some(missing)} first; the "
            "architecture in config.json may not be that of the weights"
        )
    unknown = sorted(name for name in files.keys() - names if not name.endswith(_IGNORED))
    if unknown:
        raise ValueError(f"{folder}: {len(unknown)} tensors have no place in the decoder: {_some(unknown)}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _leaf(
    place: Place, shape: tuple[int, ...], files: Mapping[str, Path], dtype: str | None, sharding: Sharding
) -> jax.Array:
    one = shape[1:] if place.stacked else shape

    def tensor(name: str, index: tuple) -> np.ndarray:
        with safe_open(files[name], framework="numpy") as file:
            stored = place.entry.read(file.get_tensor(name), one)[index]
        # A view of the file's transposed matrix would be copied with strides later; here it is copied once.
        return np.ascontiguousarray(stored, None if dtype is None else DTYPES[dtype])

    def part(index: Any) -> np.ndarray:
        if not place.stacked:
            return tensor(place.names[0], index)
        names = place.names[index[0]]
        first = tensor(names[0], index[1:])
        stack = np.empty((len(names), *first.shape), first.dtype)
        stack[0] = first
        for number, name in enumerate(names[1:], 1):
            stack[number] = tensor(name, index[1:])
        return stack

    return jax.make_array_from_callback(shape, sharding, part)
