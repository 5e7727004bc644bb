"""config.json of models that presets name, as published: their shape is known before their weights are here."""

from typing import Any

from grpo_jax.models.architecture import DecoderConfig
from grpo_jax.models.pretrained.architectures import config_of

_QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "use_sliding_window": False,
}
_LLAMA = {"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "rms_norm_eps": 1e-5}
PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen2.5-7B": {
        **_QWEN2,
        "vocab_size": 152_064,
        "num_hidden_layers": 28,
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
    },
    "Qwen2.5-0.5B-Instruct": {
        **_QWEN2,
        "vocab_size": 151_936,
        "num_hidden_layers": 24,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "Llama-3.1-8B-Instruct": {
        **_LLAMA,
        "vocab_size": 128_256,
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
        "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "SmolLM2-135M-Instruct": {
        **_LLAMA,
        "vocab_size": 49_152,
        "num_hidden_layers": 30,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
        "rope_theta": 100_000.0,
    },
}
"""The fields that decide a decoder's shape, by the last part of the model's name on Hugging Face."""


def published_config(name: str, **changes: Any) -> DecoderConfig:
    """Returns the shape of a published model.

    Args:
        name: one of `PUBLISHED`.
        **changes: fields of `DecoderConfig` that config.json says nothing of, such as ``scan_layers`` and ``dtype``.

    Raises:
        ValueError: a model that is not in the table.
    """
    if name not in PUBLISHED:
        raise ValueError(f"the shape of {name} is not known; known are {', '.join(PUBLISHED)}")
    return config_of(PUBLISHED[name], name, **changes)
