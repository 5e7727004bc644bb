"""From the loss of every token to one number, as an undivided (total, count).

The scale of the gradient differs by up to the mean completion length |y|: relative to ``sequence_mean_of_token_sum``
(scale 1), ``token_mean`` and ``sequence_mean_of_token_mean`` are about 1/|y|, ``constant_length(L)`` exactly 1/L. The
learning rate has to follow.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from grpo_jax.statistics import Mean, masked, mean_of


class Reduction(NamedTuple):
    """A reduction of token losses.

    Attributes:
        name: for messages and certificates.
        reduce: ``(values [P G T], mask [P G T]) -> Mean``; the count never depends on parameters.
        constant_denominator: whether each token's weight is the same whatever was sampled. Where it is not, the mean is
            a ratio estimator and the gradient of no fixed objective when lengths vary.
        per_length: whether each completion is divided by its own length.
    """

    name: str
    reduce: Callable[[Array, Array], Mean]
    constant_denominator: bool
    per_length: bool = False


def token_mean() -> Reduction:
    """Builds the mean over all tokens of the batch: long completions weigh more.

    References: DAPO (arXiv 2503.14476), eq. 8.
    """
    return Reduction("token_mean", mean_of, constant_denominator=False)


def sequence_mean_of_token_mean() -> Reduction:
    """Builds the mean over completions of each one's token mean: tokens of short completions weigh more.

    Completions without a token are not counted.

    References: GRPO (arXiv 2402.03300), eq. 3.
    """

    def reduce(values: Float[Array, "P G T"], mask: Bool[Array, "P G T"]) -> Mean:
        lengths = jnp.sum(mask, axis=-1, dtype=values.dtype)
        means = jnp.sum(masked(values, mask), axis=-1) / jnp.maximum(lengths, 1)
        return Mean(jnp.sum(means), _sequences(mask, values))

    return Reduction("sequence_mean_of_token_mean", reduce, constant_denominator=False, per_length=True)


def sequence_mean_of_token_sum() -> Reduction:
    """Builds the mean over completions of each one's token sum: the policy gradient itself, scale 1."""

    def reduce(values: Float[Array, "P G T"], mask: Bool[Array, "P G T"]) -> Mean:
        return Mean(jnp.sum(masked(values, mask)), _sequences(mask, values))

    return Reduction("sequence_mean_of_token_sum", reduce, constant_denominator=True)


def constant_length(length: int) -> Reduction:
    """Builds the mean over completions of each one's token sum divided by a constant.

    Args:
        length: the generation budget in tokens (not the padded width), >= 1; the gradient has scale 1/length.

    Raises:
        ValueError: length below 1.

    References: Dr. GRPO (arXiv 2503.20783), section 3.2.
    """
    if not 1 <= length < float("inf"):
        raise ValueError(f"reductions.constant_length: length is {length}; give the generation budget, >= 1 token")

    def reduce(values: Float[Array, "P G T"], mask: Bool[Array, "P G T"]) -> Mean:
        return Mean(jnp.sum(masked(values, mask)), length * _sequences(mask, values))

    return Reduction(f"constant_length({length})", reduce, constant_denominator=True)


def _sequences(mask: Bool[Array, "P G T"], values: Array) -> Float[Array, ""]:
    return jnp.sum(jnp.any(mask, axis=-1), dtype=values.dtype)
