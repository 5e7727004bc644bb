"""The quantities of every token from which an objective's loss is summed, with the one place where gradients stop."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from grpo_jax.advantages import Advantage
from grpo_jax.kl import Penalty, Tokens
from grpo_jax.losses.degenerate import Degenerate, Group
from grpo_jax.losses.mismatch import Mismatch
from grpo_jax.losses.reductions import Reduction
from grpo_jax.losses.surrogates import Surrogate
from grpo_jax.ratios import log_ratio
from grpo_jax.types import Batch, Scores


class Parts(NamedTuple):
    """The pieces an objective is made of; see `objective`."""

    advantage: Advantage
    surrogate: Surrogate
    kl: Penalty | None
    degenerate: Degenerate
    reduction: Reduction
    entropy_coefficient: float
    mismatch: Mismatch | None
    off_policy: Callable | None


class Terms(NamedTuple):
    """Per-token quantities of a batch on the way to the loss, ``[P, G, T]`` unless said otherwise.

    Attributes:
        active: tokens that may carry a gradient.
        counted: tokens in the reduction's denominator.
        group_weight: weight of each group ``[P]``.
        degenerate: degenerate groups that exist ``[P]``.
        member: scorable members ``[P, G]``.
        log_probs: of the current policy, 0 outside ``active``; carries the gradient.
        old_log_probs: of the sampling policy, 0 outside ``active``.
        tokens: what the KL term sees; carries the gradient.
        entropy: of each next-token distribution, carries the gradient; zeros where not scored.
        advantages: per token, KL cost included, detached.
        group_advantages: before any per-token cost ``[P, G]``.
        correction: mismatch weights, detached.
    """

    active: Bool[Array, "P G T"]
    counted: Bool[Array, "P G T"]
    group_weight: Float[Array, " P"]
    degenerate: Bool[Array, " P"]
    member: Bool[Array, "P G"]
    log_probs: Float[Array, "P G T"]
    old_log_probs: Float[Array, "P G T"]
    tokens: Tokens
    entropy: Float[Array, "P G T"]
    advantages: Float[Array, "P G T"]
    group_advantages: Float[Array, "P G"]
    correction: Float[Array, "P G T"]


def gather(parts: Parts, scores: Scores, batch: Batch, beta: Float[Array, ""] | float) -> Terms:
    """Returns the per-token quantities from which the loss is summed.

    Gradients stop here: nothing in the result depends differentiably on anything but the scores, and advantages, costs
    and corrections not even on those.
    """
    batch = jax.lax.stop_gradient(batch)
    member = members(batch)
    groups = _groups(parts, batch, member)
    group_weight = jax.vmap(parts.degenerate.weight)(groups)
    existing = tokens_of_valid(batch)
    active = existing & (group_weight > 0)[:, None, None]
    log_probs = jnp.where(active, scores.log_probs, 0)
    current = jax.lax.stop_gradient(log_probs)
    old = current if batch.old_log_probs is None else jnp.where(active, batch.old_log_probs, 0)
    entropy = jnp.zeros_like(log_probs) if scores.entropy is None else jnp.where(active, scores.entropy, 0)
    tokens = _tokens(log_probs, old, batch, scores, active)
    fixed = jax.lax.stop_gradient(tokens)
    advantages = _group_advantages(parts, batch, fixed, beta, member)
    return Terms(
        active=active,
        counted=existing if parts.degenerate.counts_dead else active,
        group_weight=group_weight,
        degenerate=groups.degenerate & jnp.any(existing, axis=(1, 2)),
        member=member,
        log_probs=log_probs,
        old_log_probs=old,
        tokens=tokens,
        entropy=entropy,
        advantages=_token_advantages(parts, advantages, fixed, jax.lax.stop_gradient(entropy), groups, beta),
        group_advantages=advantages,
        correction=_correction(parts, batch, current, old, advantages, active),
    )


def per_completion(function: Callable) -> Callable:
    """Returns a function of one completion ``[T]`` mapped over groups and members ``[P, G, T]``."""
    return jax.vmap(jax.vmap(function))


def members(batch: Batch) -> Bool[Array, "P G"]:
    """Returns the members whose reward counts: valid, scorable and with at least one token."""
    scorable = jnp.isfinite(batch.rewards)
    scorable = jnp.any(scorable, axis=-1) if batch.rewards.ndim == 3 else scorable
    return _valid(batch) & scorable & jnp.any(batch.mask, axis=-1)


def tokens_of_valid(batch: Batch) -> Bool[Array, "P G T"]:
    """Returns the tokens of members that exist."""
    return _valid(batch)[..., None] & batch.mask


def known_mean(rewards: Float[Array, "P G"] | Float[Array, "P G K"]) -> Float[Array, "P G"]:
    """Returns each member's reward, or the mean of those of its several rewards that are known; 0 where none is."""
    known = jnp.isfinite(rewards)
    if rewards.ndim == 2:
        return jnp.where(known, rewards, 0)
    return jnp.sum(rewards, axis=-1, where=known) / jnp.maximum(jnp.sum(known, axis=-1), 1)


def _valid(batch: Batch) -> Bool[Array, "P G"]:
    return jnp.ones(batch.mask.shape[:2], bool) if batch.valid is None else batch.valid


def _groups(parts: Parts, batch: Batch, member: Bool[Array, "P G"]) -> Group:
    raw = batch.rewards if batch.task_rewards is None else batch.task_rewards
    known = jnp.isfinite(raw) if raw.ndim == 2 else jnp.any(jnp.isfinite(raw), axis=-1)
    member = member & known
    spread = jax.vmap(parts.advantage.spread)(raw, member)
    degenerate = (jnp.sum(member, axis=-1) < 2) | (spread <= parts.degenerate.tolerance)
    return Group(jnp.where(member, known_mean(raw), 0), member, spread, degenerate)


def _tokens(log_probs: Array, old_log_probs: Array, batch: Batch, scores: Scores, active: Array) -> Tokens:
    difference = per_completion(log_ratio)
    known = batch.ref_log_probs is not None
    log_ratios = difference(log_probs, batch.ref_log_probs, active) if known else jnp.zeros_like(log_probs)
    full_kl = None if scores.full_kl is None else jnp.where(active, scores.full_kl, 0)
    return Tokens(log_ratios, difference(log_probs, old_log_probs, active), active, full_kl)


def _group_advantages(
    parts: Parts, batch: Batch, tokens: Tokens, beta: Float[Array, ""] | float, member: Bool[Array, "P G"]
) -> Float[Array, "P G"]:
    compute = jax.vmap(parts.advantage.compute)
    if parts.kl is None or parts.kl.sequence_cost is None:
        assert batch.advantages is not None, "objective: pass the batch through prepare() before accumulate()"
        return batch.advantages
    cost = beta * per_completion(parts.kl.sequence_cost)(tokens)
    if parts.advantage.linear:
        # Apart, because next to a reward of 1000 a cost of 1e-5 would be lost in float32.
        return compute(batch.rewards, member) - compute(cost, member)
    if batch.rewards.ndim == 3:
        raise ValueError(
            f"objective: a KL term in the reward beside several rewards needs a linear advantage, not "
            f"{parts.advantage.name}; use weighted_sum(weights, leave_one_out()), or placement='to_go'"
        )
    return compute(batch.rewards - cost, member)


def _token_advantages(
    parts: Parts,
    advantages: Float[Array, "P G"],
    tokens: Tokens,
    entropy: Float[Array, "P G T"],
    groups: Group,
    beta: Float[Array, ""] | float,
) -> Float[Array, "P G T"]:
    per_token = jnp.where(tokens.mask, advantages[..., None], 0)
    if parts.degenerate.shape is not None:
        # Added, not put in its place: a KL return in the reward is part of the group's own advantage.
        per_token = per_token + jax.vmap(parts.degenerate.shape)(groups, entropy, tokens.mask)
    if parts.kl is None or parts.kl.token_cost is None:
        return per_token
    return per_token - beta * jnp.where(tokens.mask, per_completion(parts.kl.token_cost)(tokens), 0)


def _correction(
    parts: Parts, batch: Batch, current: Array, old: Array, advantages: Array, active: Array
) -> Float[Array, "P G T"]:
    weights = jnp.ones_like(current)
    if parts.mismatch is not None:
        weights = per_completion(parts.mismatch)(old, batch.behaviour_log_probs, active)
    if parts.off_policy is not None:
        keep = per_completion(parts.off_policy)(current, batch.behaviour_log_probs, advantages, active)
        weights = jnp.where(keep[..., None], weights, 0)
    return weights
