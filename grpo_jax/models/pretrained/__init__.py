"""Checkpoints of Llama, Qwen and Gemma as Hugging Face lays them out: read, placed on devices, and written."""

from grpo_jax.models.pretrained.architectures import end_ids, read_config, stored_dtype
from grpo_jax.models.pretrained.gguf import convert_gguf
from grpo_jax.models.pretrained.load import load
from grpo_jax.models.pretrained.save import save

__all__ = ["convert_gguf", "end_ids", "load", "read_config", "save", "stored_dtype"]
