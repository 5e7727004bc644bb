"""The decoder's network in Flax NNX: parameters, one block and the stack, over a list of N tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from grpo_jax.models.attention import KeyValues, Rotation, rotate, rotation, wide


@dataclass(frozen=True)
class DecoderConfig:
    """Shape and numerics of a decoder; validated when built.

    Attributes:
        vocabulary_size: number of token ids, V.
        layers: number of blocks.
        width: width of the residual stream.
        heads: query heads.
        kv_heads: key-value heads; divides ``heads``.
        head_dim: width of a head, even.
        hidden: inner width of the feed-forward network.
        rope_theta: base of the rotary frequencies.
        norm_epsilon: added to the mean square in RMSNorm.
        tied_head: whether the head is the transposed embedding.
        scan_layers: keep the blocks' parameters stacked with a leading layer axis, compile one block and loop over it
            (large models), instead of one set of parameters and code per layer (faster when small).
        remat_layers: recompute each layer in the backward pass instead of keeping what it computed (large models).
        dtype: "float32" or "bfloat16", what blocks compute in. Parameters, softmax, norms and log-probs are float32.
            Parameters in float64, as the oracle has them, are computed with in float64 throughout, whatever this says.
        logits_per_chunk: scoring runs the head over as many positions at a time as keep ``[P G c V]`` at or under this
            many logits (at least one position), recomputing them in the backward pass where there are several chunks.
    """

    vocabulary_size: int
    layers: int = 4
    width: int = 256
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 32
    hidden: int = 1024
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-6
    tied_head: bool = True
    scan_layers: bool = False
    remat_layers: bool = False
    dtype: str = "float32"
    logits_per_chunk: int = 2**23

    def __post_init__(self) -> None:
        counts = ("vocabulary_size", "layers", "width", "heads", "kv_heads", "head_dim", "hidden", "logits_per_chunk")
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(f"DecoderConfig.{name} is {getattr(self, name)}; give at least 1")
        for name in ("rope_theta", "norm_epsilon"):
            if not getattr(self, name) > 0:
                raise ValueError(f"DecoderConfig.{name} is {getattr(self, name)}; give a positive number")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"DecoderConfig.kv_heads is {self.kv_heads}, which does not divide heads {self.heads}; "
                "give a divisor, or the same number for plain multi-head attention"
            )
        if self.head_dim % 2:
            raise ValueError(f"DecoderConfig.head_dim is {self.head_dim}; rotary positions need an even number")
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f'DecoderConfig.dtype is {self.dtype!r}; give "float32" or "bfloat16"')


def parameter(
    rngs: nnx.Rngs, shape: tuple[int, ...], axes: tuple[str | None, ...], std: float | None = None
) -> nnx.Param:
    """Builds a float32 parameter; the one place where its shape, logical axes and initial values are described.

    Args:
        rngs: gives one key, which is consumed.
        shape: dimensions.
        axes: a logical axis name, or None, per dimension.
        std: standard deviation of the normal initial values; None: they all are one.

    Returns:
        The parameter, with ``logical_axes`` as metadata.
    """
    value = jnp.ones(shape) if std is None else std * jax.random.normal(rngs.params(), shape)
    return nnx.Param(value, logical_axes=axes)


def rms_norm(x: Float[Array, "N width"], scale: Float[Array, " width"], epsilon: float) -> Float[Array, "N width"]:
    """Returns ``x / sqrt(mean(x^2) + epsilon) * scale``, in float32 or wider, cast back to x's dtype."""
    widened = x.astype(wide(x.dtype))
    inverse = jax.lax.rsqrt(jnp.mean(jnp.square(widened), axis=-1, keepdims=True) + epsilon)
    return (widened * inverse * scale[None]).astype(x.dtype)


class Block(nnx.Module):
    """Pre-norm attention and SwiGLU; one layer, or all of them stacked where layers are scanned.

    Sees a list of tokens and leaves to ``attention`` which sequences they belong to, so that every projection is one
    plain matrix product for prompts, completions and single decode steps alike.
    """

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        width, heads, kv_heads, head_dim = config.width, config.heads, config.kv_heads, config.head_dim
        fan_in, residual = width**-0.5, (2 * config.layers) ** -0.5
        stack = [(config.layers, "layers")] if config.scan_layers else []

        def weight(*shape_and_axes: tuple[int, str], std: float | None = None) -> nnx.Param:
            shape, axes = zip(*stack, *shape_and_axes, strict=True)
            return parameter(rngs, shape, axes, std)

        embed, mlp, head = (width, "embed"), (config.hidden, "mlp"), (head_dim, "head_dim")
        self.attention_norm = weight(embed)
        self.query = weight(embed, (heads, "heads"), head, std=fan_in)
        self.key = weight(embed, (kv_heads, "kv_heads"), head, std=fan_in)
        self.value = weight(embed, (kv_heads, "kv_heads"), head, std=fan_in)
        self.output = weight((heads, "heads"), head, embed, std=residual * (heads * head_dim) ** -0.5)
        self.mlp_norm = weight(embed)
        self.gate = weight(embed, mlp, std=fan_in)
        self.up = weight(embed, mlp, std=fan_in)
        self.down = weight(mlp, embed, std=residual * config.hidden**-0.5)

    def __call__(
        self, x: Float[Array, "N width"], angles: Rotation, attention: Callable
    ) -> tuple[Float[Array, "N width"], KeyValues]:
        """Runs one layer.

        Args:
            x: the residual stream of N tokens.
            angles: rotary angles of their positions.
            attention: ``(query [N H D], key [N K D], value [N K D]) -> (context [N H D], KeyValues)``.

        Returns:
            The residual stream, and the keys and values that ``attention`` returned.
        """
        normed = rms_norm(x, self.attention_norm[...], self.config.norm_epsilon)
        query, key, value = (self._heads(normed, weight) for weight in (self.query, self.key, self.value))
        context, memory = attention(rotate(query, angles), rotate(key, angles), value)
        x = x + context.reshape(x.shape[0], -1) @ _cast(self.output, x).reshape(-1, self.config.width)
        normed = rms_norm(x, self.mlp_norm[...], self.config.norm_epsilon)
        gated = jax.nn.silu(normed @ _cast(self.gate, x)) * (normed @ _cast(self.up, x))
        return x + gated @ _cast(self.down, x), memory

    def _heads(self, x: Float[Array, "N width"], weight: nnx.Param) -> Float[Array, "N heads D"]:
        flat = x @ _cast(weight, x).reshape(self.config.width, -1)
        return flat.reshape(x.shape[0], -1, self.config.head_dim)


def _cast(weight: nnx.Param, x: Array) -> Array:
    return weight[...].astype(x.dtype)


class Network(nnx.Module):
    """Embedding, blocks, final norm and head."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        shape, std = (config.vocabulary_size, config.width), config.width**-0.5
        self.embedding = parameter(rngs, shape, ("vocabulary", "embed"), std)
        one = partial(Block, config, rngs=rngs)
        self.blocks: Any = one() if config.scan_layers else nnx.Dict({name: one() for name in self._layer_names()})
        self.final_norm = parameter(rngs, (config.width,), ("embed",))
        if not config.tied_head:
            self.head = parameter(rngs, shape[::-1], ("embed", "vocabulary"), std)

    def __call__(
        self, tokens: Int[Array, " N"], positions: Int[Array, " N"], attention: Callable, memories: Any
    ) -> tuple[Float[Array, "N width"], Any]:
        """Runs N tokens through all layers.

        Args:
            tokens: token ids; ids out of range read the nearest embedding.
            positions: their positions, each in its sequence.
            attention: ``(memory, query, key, value) -> (context, KeyValues)``, see ``Block``.
            memories: one memory per layer, as a sequence (unrolled) or a pytree with a leading layer axis (scanned);
                None when there is none.

        Returns:
            Normalised hidden states ``[N, width]``, and the KeyValues per layer in the same form as memories.
        """
        embedded = jnp.take(self.embedding[...], tokens, axis=0, mode="clip")
        x = embedded if embedded.dtype == jnp.float64 else embedded.astype(self.config.dtype)
        angles = rotation(positions, self.config.head_dim, self.config.rope_theta, wide(x.dtype))
        through = self._scanned if self.config.scan_layers else self._unrolled
        x, kept = through(x, lambda block, x, memory: block(x, angles, partial(attention, memory)), memories)
        return rms_norm(x, self.final_norm[...], self.config.norm_epsilon), kept

    def _scanned(self, x: Float[Array, "N width"], run: Callable, memories: Any) -> tuple:
        graphdef, weights = nnx.split(self.blocks)

        def layer(x: Array, inputs: tuple) -> tuple:
            weights, memory = inputs
            return run(nnx.merge(graphdef, weights), x, memory)

        return jax.lax.scan(self._recomputed(layer), x, (weights, memories))

    def _unrolled(self, x: Float[Array, "N width"], run: Callable, memories: Any) -> tuple:
        kept = []
        for index, name in enumerate(self._layer_names()):
            graphdef, weights = nnx.split(self.blocks[name])
            layer = lambda weights, x, memory, graphdef=graphdef: run(nnx.merge(graphdef, weights), x, memory)  # noqa: E731
            x, memory = self._recomputed(layer)(weights, x, None if memories is None else memories[index])
            kept.append(memory)
        return x, tuple(kept)

    def _recomputed(self, layer: Callable) -> Callable:
        # under scan, the loop itself keeps XLA from merging the recomputation with the first computation
        return jax.checkpoint(layer, prevent_cse=not self.config.scan_layers) if self.config.remat_layers else layer

    def _layer_names(self) -> list[str]:
        return [f"layer_{index}" for index in range(self.config.layers)]

    def logits(self, hidden: Float[Array, "*N width"]) -> Float[Array, "*N V"]:
        """Returns next-token logits of normalised hidden states, float32 or wider."""
        head = self.embedding[...].T if self.config.tied_head else self.head[...]
        return jnp.matmul(hidden, head.astype(hidden.dtype), preferred_element_type=wide(hidden.dtype))
