"""Checkpoints of Llama, Qwen and Gemma as Hugging Face lays them out: read, placed on devices, and written."""

from grpo_jax.models.pretrained.architectures import config_of, end_ids, read_config, stored_dtype
from grpo_jax.models.pretrained.gguf import convert_gguf
from grpo_jax.models.pretrained.load import load
from grpo_jax.models.pretrained.published import PUBLISHED, published_config
from grpo_jax.models.pretrained.save import save

__all__ = [
    "PUBLISHED",
    "config_of",
    "convert_gguf",
    "end_ids",
    "load",
    "published_config",
    "read_config",
    "save",
    "stored_dtype",
]
