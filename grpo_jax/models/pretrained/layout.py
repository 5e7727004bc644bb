"""Where each parameter stands in a checkpoint, and in which shape."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from grpo_jax.models.architecture import DecoderConfig


class Entry(NamedTuple):
    """One parameter of one layer, or of none.

    Attributes:
        path: its keys in our params; of the layer's part, where it belongs to a layer.
        name: its name in the checkpoint, after "model.layers.N." where it belongs to a layer.
        inputs: leading axes of our shape that are the matrix's inputs; the checkpoint has outputs first. 0: no matrix
            that is turned.
        joined: whether the checkpoint joins all axes to one.
    """

    path: tuple[str, ...]
    name: str
    inputs: int = 0
    joined: bool = False

    def read(self, stored: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Returns a stored tensor in our shape; raises ValueError where it has another size."""
        if stored.size != math.prod(shape):
            raise ValueError(f"{self.name} has shape {stored.shape} in the checkpoint, but config.json implies {shape}")
        return (stored.T if self.inputs else stored).reshape(shape)

    def write(self, value: np.ndarray) -> np.ndarray:
        """Returns a parameter in the checkpoint's shape."""
        if self.inputs:
            return np.ascontiguousarray(value.reshape(math.prod(value.shape[: self.inputs]), -1).T)
        return value.reshape(-1) if self.joined else value


def whole(config: DecoderConfig) -> Iterator[Entry]:
    """Yields the parameters that belong to no layer, with their full names."""
    yield Entry(("embedding",), "model.embed_tokens.weight")
    yield Entry(("final_norm",), "model.norm.weight")
    if not config.tied_head:
        yield Entry(("head",), "lm_head.weight", inputs=1)


def of_layer(config: DecoderConfig) -> Iterator[Entry]:
    """Yields the parameters of each layer."""
    yield Entry(("attention_norm",), "input_layernorm.weight")
    yield Entry(("query",), "self_attn.q_proj.weight", inputs=1)
    yield Entry(("key",), "self_attn.k_proj.weight", inputs=1)
    yield Entry(("value",), "self_attn.v_proj.weight", inputs=1)
    yield Entry(("output",), "self_attn.o_proj.weight", inputs=2)
    yield Entry(("gate",), "mlp.gate_proj.weight", inputs=1)
    yield Entry(("up",), "mlp.up_proj.weight", inputs=1)
    yield Entry(("down",), "mlp.down_proj.weight", inputs=1)
    if config.input_bias:
        yield Entry(("query_bias",), "self_attn.q_proj.bias", joined=True)
        yield Entry(("key_bias",), "self_attn.k_proj.bias", joined=True)
        yield Entry(("value_bias",), "self_attn.v_proj.bias", joined=True)
    if config.head_norm:
        yield Entry(("query_norm",), "self_attn.q_norm.weight")
        yield Entry(("key_norm",), "self_attn.k_norm.weight")
    if config.output_norm:
        yield Entry(("attention_output_norm",), "post_attention_layernorm.weight")
        yield Entry(("mlp_norm",), "pre_feedforward_layernorm.weight")
        yield Entry(("mlp_output_norm",), "post_feedforward_layernorm.weight")
    else:
        yield Entry(("mlp_norm",), "post_attention_layernorm.weight")


class Place(NamedTuple):
    """A leaf of our params and the tensors it is made of.

    Attributes:
        path: its keys in our params.
        entry: how each tensor is stored.
        names: full names in the checkpoint, one a layer where ``stacked``, else one.
        stacked: whether our leaf has a leading layer axis.
    """

    path: tuple[str, ...]
    entry: Entry
    names: tuple[str, ...]
    stacked: bool


def places(config: DecoderConfig) -> Iterator[Place]:
    """Yields every leaf of a decoder's params."""
    for entry in whole(config):
        yield Place(entry.path, entry, (entry.name,), False)
    for entry in of_layer(config):
        names = tuple(f"model.layers.{index}.{entry.name}" for index in range(config.layers))
        if config.scan_layers:
            yield Place(("blocks", *entry.path), entry, names, True)
            continue
        for index, name in enumerate(names):
            yield Place(("blocks", f"layer_{index}", *entry.path), entry, (name,), False)


def leaf_at(tree: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """Returns the leaf with these keys."""
    for key in path:
        tree = tree[key]
    return tree


def as_tree(leaves: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """Returns nested dicts from leaves by their keys."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        node = tree
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = leaf
    return tree
