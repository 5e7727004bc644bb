"""The two-parameter policy whose next token depends on how many ones came before: the smallest autoregressive model."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from grpo_jax.models.policy import Policy, Prefix
from grpo_jax.models.scoring import read_logits, score_positions
from grpo_jax.types import Params, Prompts, Rollout, Scores


def count_model() -> Policy:
    r"""Builds the binary policy with a logit linear in the count of ones so far.

    .. math:: P(y_t = 1 \mid y_{<t}) = \sigma(a + b c_t), \quad c_t = \sum_{j<t} y_j

    Completions may be of any length. The prompt is not read.

    Returns:
        The policy over tokens 0 and 1; params are ``{"intercept": [], "slope": []}``, a and b.

    References: "A Comedy of Estimators" (arXiv 2512.21852), the minimal autoregressive model.
    """
    return Policy(
        init=_init,
        prefill=_prefill,
        empty_cache=lambda P, G, T: jnp.zeros((P, G), jnp.int32),
        decode=_decode,
        score=_score,
        logical_axes=lambda: {"intercept": (), "slope": ()},
        vocabulary_size=2,
        row_axis=0,
    )


def _init(*, key: Key[Array, ""]) -> Params:
    """Returns standard normal parameters. Consumes the key."""
    intercept, slope = jax.random.normal(key, (2,))
    return {"intercept": intercept, "slope": slope}


def _logits(params: Params, counts: Int[Array, "*shape"]) -> Float[Array, "*shape 2"]:
    ones = params["intercept"] + params["slope"] * counts
    return jnp.stack([jnp.zeros_like(ones), ones], axis=-1)


def _prefill(params: Params, prompts: Prompts) -> Prefix:
    """Starts every completion with a count of 0; see ``Policy``."""
    counts = jnp.zeros(prompts.mask.shape[0], jnp.int32)
    return Prefix(counts, prompts.mask, jnp.sum(prompts.mask, axis=1, dtype=jnp.int32), _logits(params, counts))


def _decode(
    params: Params,
    prefix: Prefix,
    cache: Int[Array, "P G"],
    tokens: Int[Array, "P G"],
    t: Int[Array, "P G"],
    step: Int[Array, ""],
) -> tuple[Float[Array, "P G V"], Int[Array, "P G"]]:
    """Counts one more token; see ``Policy``."""
    counts = jnp.where(t == 0, 0, cache) + (tokens == 1)
    return _logits(params, counts), counts


def _score(
    params: Params,
    rollout: Rollout,
    temperature: float | Float[Array, ""],
    *,
    entropy: bool = False,
    ref_params: Params | None = None,
) -> Scores:
    """Scores a rollout's tokens; see ``Policy``."""
    ones = (jnp.where(rollout.mask, rollout.tokens, 0) == 1).astype(jnp.int32)
    before = jnp.cumsum(ones, axis=2) - ones

    def logits(params: Params) -> Callable:
        return lambda counts: _logits(params, counts) / temperature

    theirs = None if ref_params is None else logits(jax.lax.stop_gradient(ref_params))
    read = read_logits(logits(params), theirs, entropy=entropy)
    return score_positions(read, rollout.tokens, rollout.mask, before, positions_per_chunk=before.shape[2])
