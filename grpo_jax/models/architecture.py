"""The shape and numerics of a decoder as data: what tells Llama, Qwen and Gemma apart."""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float


@runtime_checkable
class RopeScaling(Protocol):
    """Stretches rotary frequencies so that a decoder reads further than it was first trained to."""

    def __call__(self, frequencies: Float[Array, " half"], /) -> Float[Array, " half"]:
        """Returns the frequencies to use, in radians per position."""
        ...


@dataclass(frozen=True)
class LinearScaling:
    """Divides every frequency, as Gemma 3 does in its global layers.

    Attributes:
        factor: by which positions are stretched, > 0.
    """

    factor: float

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ValueError(f"LinearScaling.factor is {self.factor}; give a positive number")

    def __call__(self, frequencies: Float[Array, " half"], /) -> Float[Array, " half"]:
        """Returns ``frequencies / factor``."""
        return frequencies / self.factor


@dataclass(frozen=True)
class LlamaScaling:
    """Divides low frequencies alone, with a smooth transition, as Llama 3.1 does.

    With ``r`` the number of turns that a frequency makes over the original length, it is divided by ``factor`` where
    ``r < low``, kept where ``r > high``, and interpolated linearly in ``r`` between.

    Attributes:
        factor: by which long wavelengths are stretched, > 0.
        low: turns below which a frequency is divided.
        high: turns above which it is kept, > low.
        original_length: positions that the model was first trained on.
    """

    factor: float
    low: float
    high: float
    original_length: int

    def __post_init__(self) -> None:
        if not (self.factor > 0 and self.high > self.low > 0 and self.original_length > 0):
            raise ValueError(f"{self}: factor, low and original_length must be positive and high above low")

    def __call__(self, frequencies: Float[Array, " half"], /) -> Float[Array, " half"]:
        """Returns the frequencies, the low ones divided."""
        turns = self.original_length * frequencies / (2 * math.pi)
        kept = jnp.clip((turns - self.low) / (self.high - self.low), 0, 1)
        return kept * frequencies + (1 - kept) * frequencies / self.factor


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
        dtype: "float32" or "bfloat16", what blocks compute in. Softmax, norms and log-probs are float32. Parameters in
            float64, as the oracle has them, are computed with in float64 throughout, whatever this says.
        logits_per_chunk: scoring runs the head over as many columns of the vocabulary at a time (1024, or all, at
            least), and then as many positions, as keep ``[P G c V]`` of the groups on a device at or under this many
            logits, recomputing them in the backward pass where there are several chunks.
        attention_logits_per_chunk: scoring attends with as many queries of every row at a time as keep the logits of
            all heads and keys at or under this many (at least one query), recomputing them likewise.
        rope_scaling: changes the rotary frequencies of layers without a window; None: not at all.
        input_bias: whether query, key and value have biases (Qwen 2).
        head_norm: whether every head's query and key are normalised before they are rotated (Qwen 3, Gemma 3).
        output_norm: whether what attention and feed-forward network return is normalised too (Gemma 3).
        norm_offset: added to every norm's scale; 1 where checkpoints store scales as distances from 1 (Gemma 3).
        gate: "silu" or "gelu" (its tanh form, Gemma 3).
        embedding_scale: multiplies embeddings where they are read (Gemma 3).
        query_scale: multiplies queries; None: ``head_dim^-0.5``.
        window: in layers with a window, a token reads itself and so many less one before it; None: no layer has one.
        windowed: which layers have a window, one entry a layer; empty: none.
        window_rope_theta: base of the rotary frequencies in layers with a window; None: ``rope_theta``.
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
    attention_logits_per_chunk: int = 2**26
    rope_scaling: RopeScaling | None = None
    input_bias: bool = False
    head_norm: bool = False
    output_norm: bool = False
    norm_offset: float = 0.0
    gate: str = "silu"
    embedding_scale: float = 1.0
    query_scale: float | None = None
    window: int | None = None
    windowed: tuple[bool, ...] = ()
    window_rope_theta: float | None = None

    def __post_init__(self) -> None:
        counts = ("vocabulary_size", "layers", "width", "heads", "kv_heads", "head_dim", "hidden")
        for name in (*counts, "logits_per_chunk", "attention_logits_per_chunk", "window"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"DecoderConfig.{name} is {getattr(self, name)}; give at least 1")
        for name in ("rope_theta", "norm_epsilon", "embedding_scale", "query_scale", "window_rope_theta"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ValueError(f"DecoderConfig.{name} is {getattr(self, name)}; give a positive number")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"DecoderConfig.kv_heads is {self.kv_heads}, which does not divide heads {self.heads}; "
                "give a divisor, or the same number for plain multi-head attention"
            )
        if self.head_dim % 2:
            raise ValueError(f"DecoderConfig.head_dim is {self.head_dim}; rotary positions need an even number")
        for name, allowed in (("dtype", ("float32", "bfloat16")), ("gate", ("silu", "gelu"))):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f'DecoderConfig.{name} is {getattr(self, name)!r}; give "{allowed[0]}" or "{allowed[1]}"'
                )
        if (self.window is not None) != any(self.windowed) or len(self.windowed) not in (0, self.layers):
            raise ValueError(
                f"DecoderConfig.window is {self.window} with windowed {self.windowed} for {self.layers} layers; give a "
                "window and one entry per layer, at least one of them True, or neither"
            )
