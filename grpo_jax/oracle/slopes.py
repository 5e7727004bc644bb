"""Gradients of losses by the scores of one block of groups, and what else is read of its scores."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from grpo_jax.losses import Objective
from grpo_jax.ratios import bounded_exp
from grpo_jax.types import Batch, Scores


def kl_slopes(objective: Objective, scores: Scores, batch: Batch, beta: Float[Array, ""]) -> Scores:
    """Returns what beta adds to the gradient of the loss by the scores, per unit of beta."""
    with_it, without = (slopes_of(objective, scores, batch, each) for each in (beta, jnp.zeros_like(beta)))
    return jax.tree.map(lambda one, other: (one - other) / beta, with_it, without)


def baselined(slopes: Scores, scores: Scores, sampled: Batch) -> Scores:
    """Takes the group's baseline from the slopes of the reverse KL: the same expectation, a fraction of the noise.

    What weighs the score of a token is the KL to come, and that of the other members still running there, on average,
    can be subtracted, since it does not depend on the token. Off-policy the weight of the causal ratio goes with it.
    """
    assert scores.full_kl is not None
    mask = existing(sampled)
    exact = jnp.where(mask, scores.full_kl, 0)
    to_come = jnp.where(mask, jnp.flip(jnp.cumsum(jnp.flip(exact, -1), axis=-1), -1) - exact, 0)
    others = jnp.sum(mask, axis=1, keepdims=True) - mask
    baseline = (jnp.sum(to_come, axis=1, keepdims=True) - to_come) / jnp.maximum(others, 1)
    old = scores.log_probs if sampled.old_log_probs is None else sampled.old_log_probs
    weights = bounded_exp(jnp.cumsum(jnp.where(mask, scores.log_probs - old, 0), axis=-1))
    count = jnp.maximum(jnp.sum(mask.any(axis=-1)), 1)
    return slopes._replace(log_probs=slopes.log_probs - jnp.where(mask, weights * baseline, 0) / count)


def slopes_of(objective: Objective, scores: Scores, batch: Batch, beta: Float[Array, ""] | float) -> Scores:
    """Returns the gradient of the loss by the scores."""
    return jax.grad(lambda scores: objective(scores, batch, beta)[0])(scores)


def as_references_read(batch: Batch, off_policy: bool) -> Batch:
    """Returns the batch as a reference reads it: no rewards, and the log-probs of whoever sampled."""
    nothing = jnp.zeros(batch.mask.shape[:2])
    record, old = batch.behaviour_log_probs, batch.old_log_probs
    if record is None or old is None:
        record = old if record is None else record
    else:
        record = jnp.where(jnp.isnan(record), old, record)
    return batch._replace(rewards=nothing, task_rewards=nothing, old_log_probs=record if off_policy else None)


def existing(batch: Batch) -> Bool[Array, "P G T"]:
    """Returns the tokens of members that exist."""
    return batch.mask if batch.valid is None else batch.mask & batch.valid[..., None]


def importance_weights(scores: Scores, sampled: Batch) -> Float[Array, " 3"]:
    """Returns number, sum and sum of squares of the completions' importance weights."""
    mask = existing(sampled)
    old = scores.log_probs if sampled.old_log_probs is None else sampled.old_log_probs
    weights = bounded_exp(jnp.sum(jnp.where(mask, scores.log_probs - old, 0), axis=-1)) * mask.any(axis=-1)
    return jnp.stack([jnp.sum(mask.any(axis=-1), dtype=jnp.float32), jnp.sum(weights), jnp.sum(jnp.square(weights))])


def squared_log_ratios(scores: Scores, batch: Batch) -> Float[Array, " 2"]:
    """Returns the sum of squares of the log-ratios to the reference, and the number of tokens."""
    assert batch.ref_log_probs is not None
    mask = existing(batch)
    log_ratios = jnp.where(mask, scores.log_probs - batch.ref_log_probs, 0)
    return jnp.stack([jnp.sum(jnp.square(log_ratios)), jnp.sum(mask, dtype=jnp.float32)])
