"""The decoder of a configuration: a new one, or that of a pretrained model with its tokenizer and weights."""

import dataclasses
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from grpo_jax.config import ModelConfig
from grpo_jax.models import DecoderConfig, pretrained
from grpo_jax.tasks import PretrainedTokenizer, pretrained_tokenizer
from grpo_jax.types import Params

_NUMERICS = ("scan_layers", "remat_layers", "dtype", "logits_per_chunk", "attention_logits_per_chunk")
"""Fields of the decoder that a checkpoint does not decide."""
_OURS = ("path", "lora_rank", "lora_alpha", "lora_targets", *_NUMERICS)


class Checkpoint(NamedTuple):
    """A pretrained model.

    Attributes:
        config: the decoder's shape and numerics.
        tokenizer: its tokenizer.
        load: ``(shardings) -> params``, each leaf placed as its sharding says.
        save: ``(folder, params)``, in the layout and dtype that the model came in; the folder must not exist.
    """

    config: DecoderConfig
    tokenizer: PretrainedTokenizer
    load: Callable[[Any], Params]
    save: Callable[[Path, Params], None]


def build_checkpoint(config: ModelConfig) -> Checkpoint:
    """Reads everything about a pretrained model but its weights.

    Raises:
        FileNotFoundError: a file of it is missing.
        ImportError: a GGUF file, and the package that reads them is not installed.
        ValueError: an architecture that is not supported, or an option without effect.
    """
    assert config.path is not None
    for field in dataclasses.fields(ModelConfig):
        value = getattr(config, field.name)
        if field.name not in _OURS and value != field.default:
            raise ValueError(
                f"model.{field.name}={value!r} has no effect with model.path={config.path}, whose config.json says it; "
                "leave it out"
            )
    folder = _folder(Path(config.path))
    decoder = pretrained.read_config(folder, **numerics(config))
    tokenizer = pretrained_tokenizer(folder, pretrained.end_ids(folder))
    if tokenizer.vocabulary_size > decoder.vocabulary_size:
        raise ValueError(
            f"{folder}: the tokenizer has {tokenizer.vocabulary_size} tokens, but config.json says vocab_size "
            f"{decoder.vocabulary_size}; the tokenizer is another model's"
        )
    dtype = pretrained.stored_dtype(folder)
    return Checkpoint(
        config=decoder,
        tokenizer=tokenizer,
        load=lambda shardings: pretrained.load(folder, decoder, shardings=shardings),
        save=lambda to, params: pretrained.save(to, params, decoder, folder, dtype=dtype),
    )


def numerics(config: ModelConfig) -> dict[str, Any]:
    """Returns the fields that say how a decoder computes, not what."""
    return {name: getattr(config, name) for name in _NUMERICS}


def _folder(path: Path) -> Path:
    """Returns the folder of a checkpoint; a GGUF file is turned into one, once, in the user's cache."""
    if path.suffix != ".gguf":
        if not path.is_dir():
            raise FileNotFoundError(
                f"model.path: there is no folder {path}; name one that holds config.json, tokenizer.json and "
                "safetensors files, as `hf download` makes it, or a .gguf file"
            )
        return path
    if not path.is_file():
        raise FileNotFoundError(f"model.path: there is no file {path}")
    known = path.stat()
    mark = hashlib.sha256(f"{path.resolve()} {known.st_size} {known.st_mtime_ns}".encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return pretrained.convert_gguf(path, cache / "grpo-jax" / f"{path.stem}-{mark}")
