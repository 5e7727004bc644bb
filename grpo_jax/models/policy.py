"""What the rest of the library knows of a model: a sequence policy as a NamedTuple of pure functions."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array, Bool, Float, Int


class Prefix(NamedTuple):
    """What one pass over each prompt leaves for all its completions.

    A sampler may pick, repeat and exchange prompts for decoding, ``memory`` along ``Policy.row_axis``.

    Attributes:
        memory: the policy's own record of the prompts, every leaf with an axis P; a decoder keeps keys and values per
            layer, a tabular policy the index of its context.
        mask: True where a prompt token stands ``[P, L]``.
        lengths: number of prompt tokens, which is also the position of the first completion token ``[P]``.
        logits: next-token logits after the whole prompt ``[P, V]``, float32; finite but meaningless where the prompt
            has no token. None once the first tokens have been chosen: decoding does not read them.
    """

    memory: Any
    mask: Bool[Array, "P L"]
    lengths: Int[Array, " P"]
    logits: Float[Array, "P V"] | None


class Policy(NamedTuple):
    """A sequence policy behind pure functions; params are a pytree, everything else is bound by the factory.

    Attributes:
        init: ``(*, key) -> params``. Consumes a typed key.
        prefill: ``(params, prompts) -> Prefix``. One pass over each prompt, shared by its G completions.
        empty_cache: ``(P, G, T) -> cache``, room for T completion tokens of every member, to be updated in place. Every
            leaf has the axes P, G next to each other, the first of them at ``row_axis``.
        decode: ``(params, prefix, cache, tokens [P G], t [P G], step []) -> (logits [P G V], cache)``. Takes completion
            token number ``t`` (from 0) of each member and returns the float32 logits of token ``t + 1``. Calls with one
            cache count ``step`` up by one. A member's t either does so too, or is 0: then another completion has taken
            its place, and what the cache holds of the one before is not read.
        score: ``(params, rollout, temperature, *, entropy=False, ref_params=None) -> Scores``. Log-probabilities of
            a rollout's tokens under ``logits / temperature``, 0 where masked; the gradient is exact, through prompt and
            completions alike. Entropy only when asked, exact KL to a reference only when given its params. The
            rollout's packing may change what is computed, never what is returned.
        logical_axes: ``() -> pytree`` like params, a tuple with one axis name, or None, per dimension as each leaf.
        vocabulary_size: number of token ids.
        row_axis: which axis of the leaves of ``Prefix.memory`` is P, and of the cache the first of P, G: 1 where layers
            are scanned and lead, else 0.
    """

    init: Callable
    prefill: Callable
    empty_cache: Callable
    decode: Callable
    score: Callable
    logical_axes: Callable
    vocabulary_size: int
    row_axis: int
