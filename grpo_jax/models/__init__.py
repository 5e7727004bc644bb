"""Policies behind pure functions: a small decoder, and policies small enough to enumerate."""

from grpo_jax.models import pretrained
from grpo_jax.models.architecture import DecoderConfig, LinearScaling, LlamaScaling, RopeScaling
from grpo_jax.models.count import count_model
from grpo_jax.models.decoder import decoder
from grpo_jax.models.lora import Adapters, lora
from grpo_jax.models.places import ONE_DEVICE, Places
from grpo_jax.models.policy import Policy, Prefix
from grpo_jax.models.tabular import position_tabular, prefix_tabular

__all__ = [
    "Adapters",
    "DecoderConfig",
    "LinearScaling",
    "LlamaScaling",
    "ONE_DEVICE",
    "Places",
    "Policy",
    "Prefix",
    "RopeScaling",
    "count_model",
    "decoder",
    "lora",
    "position_tabular",
    "prefix_tabular",
    "pretrained",
]
