"""Writes fixtures/: tiny random checkpoints by transformers, and what transformers computes with them in float32.

Needs an environment of its own: ``pip install torch==2.13.0 transformers==5.24.0``; then ``python make_fixtures.py``.
"""

from pathlib import Path

import numpy as np
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

HERE = Path(__file__).parent / "fixtures"
LENGTHS = (14, 9, 11)
"""Tokens of each row's prompt."""
CONTINUATION = 10
"""Fixed tokens that follow each prompt, for the logits."""
PROMPTS, LONGEST, GREEDY = 20, 16, 64
"""Other prompts, tokens of the longest, and greedy tokens that follow each; it is padded to the left."""
PAD = 2
COMMON = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": PAD,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
GEMMA = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
MODELS = {
    "llama": (
        lambda: LlamaForCausalLM(LlamaConfig(**COMMON, rope_parameters=LLAMA3, tie_word_embeddings=False)),
        torch.float32,
    ),
    "qwen2": (lambda: Qwen2ForCausalLM(Qwen2Config(**COMMON, tie_word_embeddings=True)), torch.float16),
    "qwen3": (lambda: Qwen3ForCausalLM(Qwen3Config(**COMMON, head_dim=12)), torch.bfloat16),
    "gemma3": (
        lambda: Gemma3ForCausalLM(
            Gemma3TextConfig(
                **{**COMMON, "num_hidden_layers": 3, "hidden_size": 24},
                head_dim=8,
                query_pre_attn_scalar=20,
                sliding_window=6,
                layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                rope_parameters=GEMMA,
            )
        ),
        torch.bfloat16,
    ),
}


def main() -> None:
    for seed, (name, (build, dtype)) in enumerate(MODELS.items()):
        torch.manual_seed(seed)
        model = build()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:  # norms and biases start as constants, which would hide mistakes
                    parameter.add_(0.3 * torch.randn_like(parameter))
        model = model.to(dtype)
        model.save_pretrained(HERE / name, max_shard_size="40KB" if name == "llama" else "5GB")
        # read back rather than converted back: conversion also rounds the rotary frequencies
        model = type(model).from_pretrained(HERE / name, dtype=torch.float32).eval()
        generator = np.random.default_rng(seed)
        tokens = generator.integers(3, 61, (len(LENGTHS), max(LENGTHS) + CONTINUATION))
        logits = []
        for row, length in zip(tokens, LENGTHS, strict=True):
            ids = torch.tensor(row[: length + CONTINUATION])[None]
            with torch.no_grad():
                logits.append(np.pad(model(ids).logits[0].numpy(), ((0, max(LENGTHS) - length), (0, 0))))
        prompts = generator.integers(3, 61, (PROMPTS, LONGEST))
        prompts[np.arange(LONGEST) < generator.integers(0, LONGEST, (PROMPTS, 1))] = PAD
        greedy = [continued(model, torch.tensor(row[row != PAD])[None]) for row in prompts]
        np.savez_compressed(
            HERE / name / "expected.npz",
            tokens=tokens.astype(np.int32),
            lengths=np.array(LENGTHS, np.int32),
            logits=np.stack(logits),
            prompts=prompts.astype(np.int32),
            greedy=np.stack(greedy).astype(np.int32),
        )


def continued(model, ids: torch.Tensor) -> np.ndarray:
    """Returns the greedy tokens after one row of tokens."""
    with torch.no_grad():
        longer = model.generate(ids, max_new_tokens=GREEDY, do_sample=False, eos_token_id=None, pad_token_id=PAD)
    return longer[0, ids.shape[1] :].numpy()


if __name__ == "__main__":
    main()
