"""The decoder's network in Flax NNX: parameters, one block and the stack, over a list of N tokens."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from grpo_jax.models.architecture import DecoderConfig
from grpo_jax.models.attention import KeyValues, Rotation, rotate, rotation, wide


def parameter(
    rngs: nnx.Rngs, shape: tuple[int, ...], axes: tuple[str | None, ...], std: float | None = None, value: float = 1.0
) -> nnx.Param:
    """Builds a float32 parameter; the one place where its shape, logical axes and initial values are described.

    Args:
        rngs: gives one key, which is consumed.
        shape: dimensions.
        axes: a logical axis name, or None, per dimension.
        std: standard deviation of the normal initial values; None: they all are ``value``.
        value: see ``std``.

    Returns:
        The parameter, with ``logical_axes`` as metadata.
    """
    initial = jnp.full(shape, value) if std is None else std * jax.random.normal(rngs.params(), shape)
    return nnx.Param(initial, logical_axes=axes)


def rms_norm(
    x: Float[Array, "*N width"], scale: Float[Array, " width"], epsilon: float, offset: float = 0.0
) -> Float[Array, "*N width"]:
    """Returns ``x / sqrt(mean(x^2) + epsilon) * (offset + scale)``, in float32 or wider, cast back to x's dtype."""
    widened = x.astype(wide(x.dtype))
    inverse = jax.lax.rsqrt(jnp.mean(jnp.square(widened), axis=-1, keepdims=True) + epsilon)
    factor = scale.astype(widened.dtype) + offset if offset else scale
    return (widened * inverse * factor.reshape((1,) * (x.ndim - 1) + factor.shape)).astype(x.dtype)


class Layer(NamedTuple):
    """What tells one layer from the next, besides its weights.

    Attributes:
        angles: rotary angles of the N positions.
        window: how far back a token reads, itself included; None: as far as there is something. A number, or a scalar
            array where layers are scanned.
    """

    angles: Rotation
    window: Any


class Block(nnx.Module):
    """Pre-norm attention and gated feed-forward network; one layer, or all of them stacked where layers are scanned.

    Sees a list of tokens and leaves to ``attention`` which sequences they belong to, so that every projection is one
    plain matrix product for prompts, completions and single decode steps alike.
    """

    def __init__(self, config: DecoderConfig, pin: Callable[[Array], Array], *, rngs: nnx.Rngs) -> None:
        self.config, self.pin = config, pin
        width, heads, kv_heads, head_dim = config.width, config.heads, config.kv_heads, config.head_dim
        fan_in, residual = width**-0.5, (2 * config.layers) ** -0.5
        stack = [(config.layers, "layers")] if config.scan_layers else []

        def weight(*shape_and_axes: tuple[int, str], std: float | None = None, value: float = 1.0) -> nnx.Param:
            shape, axes = zip(*stack, *shape_and_axes, strict=True)
            return parameter(rngs, shape, axes, std, value)

        embed, mlp, head = (width, "embed"), (config.hidden, "mlp"), (head_dim, "head_dim")
        read, kept = (heads, "heads"), (kv_heads, "kv_heads")
        one = partial(weight, value=1 - config.norm_offset)
        self.attention_norm, self.mlp_norm = one(embed), one(embed)
        self.query = weight(embed, read, head, std=fan_in)
        self.key = weight(embed, kept, head, std=fan_in)
        self.value = weight(embed, kept, head, std=fan_in)
        self.output = weight(read, head, embed, std=residual * (heads * head_dim) ** -0.5)
        self.gate = weight(embed, mlp, std=fan_in)
        self.up = weight(embed, mlp, std=fan_in)
        self.down = weight(mlp, embed, std=residual * config.hidden**-0.5)
        if config.input_bias:
            nothing = partial(weight, value=0.0)
            self.query_bias, self.key_bias, self.value_bias = (
                nothing(read, head),
                nothing(kept, head),
                nothing(kept, head),
            )
        if config.head_norm:
            self.query_norm, self.key_norm = one(head), one(head)
        if config.output_norm:
            self.attention_output_norm, self.mlp_output_norm = one(embed), one(embed)

    def __call__(
        self, x: Float[Array, "N width"], layer: Layer, attention: Callable
    ) -> tuple[Float[Array, "N width"], KeyValues | None]:
        """Runs one layer.

        Args:
            x: the residual stream of N tokens.
            layer: the layer's rotary angles and window.
            attention: ``(window, query [N H D], key [N K D], value [N K D]) -> (context [N H D], KeyValues)``, or None
                in their place where nobody reads them again.

        Returns:
            The residual stream, and the keys and values that ``attention`` returned.
        """
        attended, memory = self._attended(self._norm(x, self.attention_norm), layer, attention)
        x = x + (self._norm(attended, self.attention_output_norm) if self.config.output_norm else attended)
        normed = self._norm(x, self.mlp_norm)
        gated = self._gated(normed @ _cast(self.gate, x), normed @ _cast(self.up, x))
        fed = self.pin(gated) @ _cast(self.down, x)
        return self.pin(x + (self._norm(fed, self.mlp_output_norm) if self.config.output_norm else fed)), memory

    def _attended(
        self, x: Float[Array, "N width"], layer: Layer, attention: Callable
    ) -> tuple[Float[Array, "N width"], KeyValues | None]:
        config = self.config
        query, key, value = (self._heads(x, weight) for weight in (self.query, self.key, self.value))
        if config.input_bias:
            biases = (self.query_bias, self.key_bias, self.value_bias)
            query, key, value = (
                heads + _cast(bias, x)[None] for heads, bias in zip((query, key, value), biases, strict=True)
            )
        if config.head_norm:
            query, key = self._norm(query, self.query_norm), self._norm(key, self.key_norm)
        query = rotate(query, layer.angles)
        if config.query_scale is not None:
            query = query * (config.query_scale * config.head_dim**0.5)
        context, memory = attention(layer.window, query, rotate(key, layer.angles), value)
        return context.reshape(x.shape[0], -1) @ _cast(self.output, x).reshape(-1, config.width), memory

    # Gates and norms are cheap to compute and large to keep: the backward pass computes them again from their inputs,
    # in one pass over memory where several kept arrays would have to be written and read.

    def _gated(self, gate: Float[Array, "N hidden"], up: Float[Array, "N hidden"]) -> Float[Array, "N hidden"]:
        return jax.checkpoint(lambda gate, up: GATES[self.config.gate](gate) * up)(gate, up)

    def _norm(self, x: Float[Array, "*N width"], scale: nnx.Param) -> Float[Array, "*N width"]:
        epsilon, offset = self.config.norm_epsilon, self.config.norm_offset
        return jax.checkpoint(partial(rms_norm, epsilon=epsilon, offset=offset))(x, scale[...])

    def _heads(self, x: Float[Array, "N width"], weight: nnx.Param) -> Float[Array, "N heads D"]:
        flat = self.pin(x @ _cast(weight, x).reshape(self.config.width, -1))
        return flat.reshape(x.shape[0], -1, self.config.head_dim)


GATES = {"silu": jax.nn.silu, "gelu": partial(jax.nn.gelu, approximate=True)}
"""The nonlinearity of the feed-forward network's gate, by the name that `DecoderConfig` gives it."""


def _cast(weight: nnx.Param, x: Array) -> Array:
    return weight[...].astype(x.dtype)


class Network(nnx.Module):
    """Embedding, blocks, final norm and head."""

    def __init__(self, config: DecoderConfig, pin: Callable[[Array], Array] = lambda x: x, *, rngs: nnx.Rngs) -> None:
        self.config, self.pin = config, pin
        shape, std = (config.vocabulary_size, config.width), config.width**-0.5
        self.embedding = parameter(rngs, shape, ("vocabulary", "embed"), std)
        one = partial(Block, config, pin, rngs=rngs)
        self.blocks: Any = one() if config.scan_layers else nnx.Dict({name: one() for name in self._layer_names()})
        self.final_norm = parameter(rngs, (config.width,), ("embed",), value=1 - config.norm_offset)
        if not config.tied_head:
            self.head = parameter(rngs, shape[::-1], ("embed", "vocabulary"), std)

    def __call__(
        self, tokens: Int[Array, " N"], positions: Int[Array, " N"], attention: Callable, memories: Any
    ) -> tuple[Float[Array, "N width"], Any]:
        """Runs N tokens through all layers.

        Args:
            tokens: token ids; ids out of range read the nearest embedding.
            positions: their positions, each in its sequence.
            attention: ``(memory, window, query, key, value) -> (context, KeyValues)``, see ``Block``.
            memories: one memory per layer, as a sequence (unrolled) or a pytree with a leading layer axis (scanned);
                None when there is none.

        Returns:
            Normalised hidden states ``[N, width]``, and the KeyValues per layer in the same form as memories.
        """
        embedded = self.pin(jnp.take(self.embedding[...], tokens, axis=0, mode="clip"))
        x = embedded if embedded.dtype == jnp.float64 else embedded.astype(self.config.dtype)
        if self.config.embedding_scale != 1:
            x = x * jnp.asarray(self.config.embedding_scale, x.dtype)
        kinds = self._kinds(positions, wide(x.dtype))
        through = self._scanned if self.config.scan_layers else self._unrolled
        x, kept = through(
            x, lambda block, x, memory, layer: block(x, layer, partial(attention, memory)), memories, kinds
        )
        return rms_norm(x, self.final_norm[...], self.config.norm_epsilon, self.config.norm_offset), kept

    def _kinds(self, positions: Int[Array, " N"], dtype: Any) -> tuple[Layer, Layer]:
        """Returns what layers without and with a window have in common among themselves."""
        config = self.config
        everywhere = Layer(rotation(positions, config.head_dim, config.rope_theta, dtype, config.rope_scaling), None)
        if config.window is None:
            return everywhere, everywhere
        theta = config.rope_theta if config.window_rope_theta is None else config.window_rope_theta
        return everywhere, Layer(rotation(positions, config.head_dim, theta, dtype), config.window)

    def _scanned(self, x: Float[Array, "N width"], run: Callable, memories: Any, kinds: tuple[Layer, Layer]) -> tuple:
        graphdef, weights = nnx.split(self.blocks)
        everywhere, near = kinds

        def layer(x: Array, inputs: tuple) -> tuple:
            weights, memory, windowed = inputs
            kind = everywhere
            if windowed is not None:
                unlimited = everywhere._replace(window=jnp.iinfo(jnp.int32).max)
                kind = jax.tree.map(lambda far, close: jnp.where(windowed, close, far), unlimited, near)
            return run(nnx.merge(graphdef, weights), x, memory, kind)

        windowed = jnp.asarray(self.config.windowed) if self.config.windowed else None
        return jax.lax.scan(self._recomputed(layer), x, (weights, memories, windowed))

    def _unrolled(self, x: Float[Array, "N width"], run: Callable, memories: Any, kinds: tuple[Layer, Layer]) -> tuple:
        kept = []
        for index, name in enumerate(self._layer_names()):
            graphdef, weights = nnx.split(self.blocks[name])
            kind = kinds[bool(self.config.windowed) and self.config.windowed[index]]

            def layer(weights: Any, x: Array, memory: Any, graphdef=graphdef, kind=kind) -> tuple:
                return run(nnx.merge(graphdef, weights), x, memory, kind)

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
        return self.pin(project(hidden, self.readout()))

    def readout(self) -> Float[Array, "width V"]:
        """Returns the head, which is the transposed embedding where they are tied."""
        return self.embedding[...].T if self.config.tied_head else self.head[...]


def project(hidden: Float[Array, "*N width"], head: Float[Array, "width V"]) -> Float[Array, "*N V"]:
    """Returns the logits that a head makes of normalised hidden states, float32 or wider."""
    return jnp.matmul(hidden, head.astype(hidden.dtype), preferred_element_type=wide(hidden.dtype))
