"""Parameters back into safetensors in the layout of Hugging Face, so that other programs load them."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save_file

from grpo_jax.models.architecture import DecoderConfig
from grpo_jax.models.pretrained.layout import Place, leaf_at, places
from grpo_jax.models.pretrained.load import DTYPES, INDEX
from grpo_jax.types import Params

COMPANIONS = (
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "chat_template.jinja",
)
"""Files that belong to a model but do not depend on its weights."""


def save(
    folder: str | Path,
    params: Params,
    config: DecoderConfig,
    source: str | Path,
    *,
    dtype: str = "bfloat16",
    shard_bytes: int = 5 * 10**9,
) -> None:
    """Saves a decoder's parameters so that transformers and vLLM load them.

    Args:
        folder: to write to; made whole under another name first, so that it is never there in part.
        params: of ``decoder(config)``.
        config: the decoder's.
        source: the checkpoint that the decoder was loaded from; its config.json and tokenizer are copied.
        dtype: to store in, "float32", "float16" or "bfloat16". What was loaded from it and not trained comes out the
            same, bit for bit.
        shard_bytes: most bytes of a file (a larger tensor has one alone), which is also what the host's memory holds.

    Raises:
        FileExistsError: the folder exists; nothing is ever overwritten.
        FileNotFoundError: the source has no config.json.
        ValueError: unknown dtype.
    """
    folder, source = Path(folder), Path(source)
    if folder.exists():
        raise FileExistsError(f"{folder} exists; give another folder, or move it away")
    if dtype not in DTYPES:
        raise ValueError(f"pretrained.save: dtype is {dtype!r}; give one of {', '.join(DTYPES)}")
    fields = json.loads((source / "config.json").read_text(encoding="utf-8"))
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    _write_weights(partial, params, config, dtype, shard_bytes)
    kept = {key: value for key, value in fields.items() if key != "torch_dtype"}
    (partial / "config.json").write_text(json.dumps({**kept, "dtype": dtype}, indent=2) + "\n", encoding="utf-8")
    for pattern in COMPANIONS:
        for path in source.glob(pattern):
            shutil.copy(path, partial / path.name)
    partial.rename(folder)


def _write_weights(folder: Path, params: Params, config: DecoderConfig, dtype: str, shard_bytes: int) -> None:
    size = np.dtype(DTYPES[dtype]).itemsize
    plan: list[list[tuple[Place, int]]] = [[]]
    used = total = 0
    for place in places(config):
        leaf = leaf_at(params, place.path)
        each = leaf.size // len(place.names) * size
        for number in range(len(place.names)):
            if plan[-1] and used + each > shard_bytes:
                plan.append([])
                used = 0
            plan[-1].append((place, number))
            used, total = used + each, total + each
    single = len(plan) == 1
    where = {}
    for number, tensors in enumerate(plan, 1):
        file = "model.safetensors" if single else f"model-{number:05}-of-{len(plan):05}.safetensors"
        held = {place.names[index]: _tensor(params, place, index, dtype) for place, index in tensors}
        save_file(held, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(held, file)
    if not single:
        index = {"metadata": {"total_size": total}, "weight_map": where}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _tensor(params: Params, place: Place, number: int, dtype: str) -> np.ndarray:
    leaf: Any = leaf_at(params, place.path)
    value = np.asarray(jax.device_get(leaf[number] if place.stacked else leaf))
    return place.entry.write(value.astype(DTYPES[dtype]))
