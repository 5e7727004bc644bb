"""GGUF files of small local models, turned once into a checkpoint in the layout of Hugging Face."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_OF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL = 3
"""Type of the tokens that are no text."""


def convert_gguf(file: str | Path, folder: str | Path) -> Path:
    """Writes what a GGUF file holds as config.json, model.safetensors (float32), tokenizer.json and their companions.

    Quantised weights are written as the numbers they stand for. Needs the package ``gguf``.

    Args:
        file: a GGUF file of architecture "llama" with a byte-level BPE tokenizer of kind "smollm".
        folder: to write to; an existing one with the same model is taken as it is.

    Returns:
        The folder.

    Raises:
        FileNotFoundError: no such file.
        ImportError: the package ``gguf`` is missing.
        ValueError: another architecture or tokenizer, with what was found.
    """
    file, folder = Path(file), Path(folder)
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such GGUF file")
    if (folder / "model.safetensors").is_file():
        return folder
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ImportError("reading GGUF files needs the package gguf: pip install 'grpo-jax[gguf]'") from error
    reader = GGUFReader(file)
    fields = {name: field.contents() for name, field in reader.fields.items() if field.types}
    config = _config(file, fields)
    if not any(tensor.name == "output.weight" for tensor in reader.tensors):
        config["tie_word_embeddings"] = True
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", config)
    _write_json(folder / "tokenizer.json", _tokenizer(file, fields))
    tokens, end = fields["tokenizer.ggml.tokens"], config["eos_token_id"]
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": tokens[end],
            "pad_token": tokens[fields.get("tokenizer.ggml.padding_token_id", end)],
            "chat_template": fields.get("tokenizer.chat_template"),
        },
    )
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = dict(_weight(file, tensor, heads) for tensor in reader.tensors)
    partial = folder / ".model.safetensors.partial"
    save_file(weights, partial, metadata={"format": "pt"})
    partial.rename(folder / "model.safetensors")  # last: its presence says that the folder is whole
    return folder


def _config(file: Path, fields: dict[str, Any]) -> dict[str, Any]:
    architecture = fields.get("general.architecture")
    if architecture != "llama":
        raise ValueError(
            f"{file}: architecture {architecture!r} is not read from GGUF files, only 'llama'; use safetensors"
        )
    of = lambda name, *default: fields.get(f"llama.{name}", *default)  # noqa: E731
    heads = of("attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": of("embedding_length"),
        "num_hidden_layers": of("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": of("attention.head_count_kv", heads),
        "head_dim": of("rope.dimension_count", of("embedding_length") // heads),
        "intermediate_size": of("feed_forward_length"),
        "max_position_embeddings": of("context_length"),
        "rms_norm_eps": float(f"{of('attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": of("rope.freq_base", 10_000.0),
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "dtype": "float32",
    }


def _weight(file: Path, tensor: Any, heads: dict[str, int]) -> tuple[str, np.ndarray]:
    from gguf.quants import dequantize

    value = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
    found = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", tensor.name)
    if found and found[2] in _OF_LAYER:
        if found[2] in heads:
            # The file has the two rows that are rotated together side by side, a checkpoint half a head apart.
            rows = value.reshape(heads[found[2]], -1, 2, value.shape[-1])
            value = np.ascontiguousarray(rows.swapaxes(1, 2).reshape(value.shape))
        return f"model.layers.{found[1]}.{_OF_LAYER[found[2]]}.weight", value
    stem = tensor.name.removesuffix(".weight")
    if stem not in _WHOLE:
        raise ValueError(f"{file}: tensor {tensor.name} has no place in the decoder")
    return f"{_WHOLE[stem]}.weight", value


def _tokenizer(file: Path, fields: dict[str, Any]) -> dict[str, Any]:
    """Returns tokenizer.json of a byte-level BPE tokenizer that splits numbers into digits."""
    kinds = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if kinds != ("gpt2", "smollm"):
        raise ValueError(
            f"{file}: tokenizer {kinds} is not read from GGUF files, only ('gpt2', 'smollm'); use safetensors"
        )
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    special = [
        {"id": index, "content": token, "special": True, "normalized": False}
        | {"single_word": False, "lstrip": False, "rstrip": False}
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind == _CONTROL
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]],
        },
    }


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
