"""config.json of each supported architecture, read into a `DecoderConfig`."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from grpo_jax.models.architecture import DecoderConfig, LinearScaling, LlamaScaling, RopeScaling

Fields = Mapping[str, Any]
"""What config.json holds."""


def read_config(folder: str | Path, **changes: Any) -> DecoderConfig:
    """Reads config.json.

    Args:
        folder: of the checkpoint.
        **changes: fields of `DecoderConfig` that the file says nothing of, such as ``scan_layers`` and ``dtype``.

    Returns:
        The decoder's shape and numerics.

    Raises:
        FileNotFoundError: no config.json.
        ValueError: an architecture or an option that the decoder does not have, with what was found.
    """
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: not found; name the folder that holds config.json and the safetensors files")
    return config_of(json.loads(path.read_text(encoding="utf-8")), str(path), **changes)


def config_of(fields: Fields, path: str, **changes: Any) -> DecoderConfig:
    """Returns the shape that the fields of a config.json describe; ``path`` is what errors name. See `read_config`."""
    names = fields.get("architectures") or []
    known = [name for name in names if name in ARCHITECTURES]
    if not known:
        raise ValueError(f"{path}: architectures {names} are not supported; supported are {', '.join(ARCHITECTURES)}")
    try:
        found = {**_shape(fields), **ARCHITECTURES[known[0]](fields)}
        _refuse(fields, "attention_bias", "mlp_bias", "use_bidirectional_attention")
        _refuse(fields, "final_logit_softcapping", "attn_logit_softcapping")
        return DecoderConfig(**{**found, **changes})
    except KeyError as error:
        raise ValueError(f"{path}: {error} is missing") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def end_ids(folder: str | Path) -> tuple[int, ...]:
    """Returns the ids of the tokens that end a completion: generation_config.json's, or else config.json's.

    Raises:
        ValueError: neither file names one.
    """
    for name in ("generation_config.json", "config.json"):
        path = Path(folder) / name
        found = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
        if found is not None:
            return tuple(found) if isinstance(found, list) else (found,)
    raise ValueError(f"{folder}: neither generation_config.json nor config.json has an eos_token_id")


def stored_dtype(folder: str | Path) -> str:
    """Returns what the parameters are stored in, as config.json says; "float32" where it says nothing."""
    fields = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    return fields.get("dtype") or fields.get("torch_dtype") or "float32"


def _shape(fields: Fields) -> dict[str, Any]:
    heads = fields["num_attention_heads"]
    return {
        "vocabulary_size": fields["vocab_size"],
        "layers": fields["num_hidden_layers"],
        "width": fields["hidden_size"],
        "heads": heads,
        "kv_heads": fields.get("num_key_value_heads") or heads,
        "head_dim": fields.get("head_dim") or fields["hidden_size"] // heads,
        "hidden": fields["intermediate_size"],
        "norm_epsilon": fields.get("rms_norm_eps", 1e-6),
        "tied_head": fields.get("tie_word_embeddings", False),
        **_rope(fields, _rope_fields(fields)),
    }


def _llama(fields: Fields) -> dict[str, Any]:
    _activation(fields, "hidden_act", "silu")
    return {}


def _qwen2(fields: Fields) -> dict[str, Any]:
    return {**_qwen3(fields), "input_bias": True, "head_norm": False}


def _qwen3(fields: Fields) -> dict[str, Any]:
    _activation(fields, "hidden_act", "silu")
    found: dict[str, Any] = {"head_norm": True}
    if fields.get("use_sliding_window"):
        first = fields.get("max_window_layers", 28)
        found |= _windows(fields, [index >= first for index in range(fields["num_hidden_layers"])])
    return found


def _gemma3(fields: Fields) -> dict[str, Any]:
    _activation(fields, "hidden_activation", "gelu_pytorch_tanh")
    pattern = fields.get("sliding_window_pattern") or 6
    rope = fields.get("rope_parameters") or {}
    everywhere = rope.get("full_attention") or _rope_fields(fields)
    near = rope.get("sliding_attention", {}).get("rope_theta") or fields.get("rope_local_base_freq", 10_000.0)
    return {
        **_rope({"rope_theta": 1_000_000.0, **fields}, everywhere),
        **_windows(fields, [(index + 1) % pattern != 0 for index in range(fields["num_hidden_layers"])]),
        "tied_head": fields.get("tie_word_embeddings", True),
        "head_norm": True,
        "output_norm": True,
        "norm_offset": 1.0,
        "gate": "gelu",
        "embedding_scale": float(fields["hidden_size"]) ** 0.5,
        "query_scale": float(fields.get("query_pre_attn_scalar", 256)) ** -0.5,
        "window_rope_theta": float(near),
    }


ARCHITECTURES: dict[str, Callable[[Fields], dict[str, Any]]] = {
    "LlamaForCausalLM": _llama,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "Gemma3ForCausalLM": _gemma3,
}
"""What each architecture adds to the common shape."""


def _windows(fields: Fields, default: list[bool]) -> dict[str, Any]:
    kinds = fields.get("layer_types")
    windowed = default if kinds is None else [kind == "sliding_attention" for kind in kinds]
    window = fields.get("sliding_window")
    return {"window": window, "windowed": tuple(windowed)} if window and any(windowed) else {}


def _rope_fields(fields: Fields) -> Fields:
    return fields.get("rope_parameters") or fields.get("rope_scaling") or {}


def _rope(fields: Fields, rope: Fields) -> dict[str, Any]:
    """Returns base and scaling; newer files keep both in ``rope_parameters``, older ones the base beside it."""
    theta = rope.get("rope_theta") or fields.get("rope_theta") or 10_000.0
    return {"rope_theta": float(theta), "rope_scaling": _scaling(rope)}


def _scaling(rope: Fields) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "linear":
        return LinearScaling(float(rope["factor"]))
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        return LlamaScaling(float(rope["factor"]), float(low), float(high), rope["original_max_position_embeddings"])
    if kind != "default":
        raise ValueError(f"rotary scaling {kind!r} is not supported; supported are default, linear and llama3")
    return None


def _activation(fields: Fields, name: str, expected: str) -> None:
    found = fields.get(name, expected)
    if found != expected:
        raise ValueError(f"{name} is {found!r}; this architecture is supported with {expected!r}")


def _refuse(fields: Fields, *names: str) -> None:
    for name in names:
        if fields.get(name):
            raise ValueError(f"{name} is {fields[name]!r}, which the decoder does not have")
