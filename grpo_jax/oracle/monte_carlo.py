"""Certificates from samples, for policies with too many completions to list."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from grpo_jax.kl.importance import Importance
from grpo_jax.kl.penalty import Granularity, Placement
from grpo_jax.losses import Objective
from grpo_jax.models import Policy
from grpo_jax.oracle.blocks import LEAST_BLOCKS, block_products
from grpo_jax.oracle.certify import Subject, as_objective, check_policy, name_of
from grpo_jax.oracle.declared import declaration
from grpo_jax.oracle.jackknife import Findings, findings
from grpo_jax.oracle.references import basis
from grpo_jax.oracle.sampled_certificate import SampledCertificate, sampled_certificate
from grpo_jax.rollouts import categorical, sampler
from grpo_jax.types import Batch, Params, Prompts, Rollout
from grpo_jax.updates import Score, join_groups, pad_groups, split_groups

Reward = Callable[[Rollout], Any]
"""Rewards of a rollout's completions ``[P, G]`` as an array or nested lists; plain Python that may decode them."""


def sampled_findings(
    score: Score, objective: Objective, group_size: int, *, blocks: int, directions: int = 0, off_policy: bool = False
) -> Callable[..., Findings]:
    """Builds the estimate, from a batch there already is, of which gradient an objective's KL term follows.

    Arguments, cost and errors are those of `block_products`.

    Returns:
        ``(params, rollout, batch, beta, ref_params, key) -> Findings``, pure. The batch has its ``ref_log_probs``; the
        key draws the directions. Where beta is 0 it is taken as 1.
    """
    measure = block_products(score, objective, group_size, blocks=blocks, directions=directions, off_policy=off_policy)
    chosen = basis(declaration(objective, group_size, off_policy).target)

    def estimate(
        params: Params,
        rollout: Rollout,
        batch: Batch,
        beta: Float[Array, ""] | float,
        ref_params: Params,
        key: Key[Array, ""],
    ) -> Findings:
        return findings(measure(params, rollout, batch, beta, ref_params, key), chosen)

    return estimate


def certify_sampled(
    subject: Subject,
    policy: Policy,
    params: Params,
    ref_params: Params,
    prompts: Prompts,
    reward: Reward | None = None,
    *,
    key: Key[Array, ""],
    max_tokens: int,
    end_ids: tuple[int, ...],
    groups: int | None = None,
    group_size: int = 8,
    blocks: int = 16,
    beta: float = 1.0,
    temperature: float = 1.0,
    behaviour_params: Params | None = None,
    directions: int = 8,
    placement: Placement = "to_go",
    granularity: Granularity = "token",
    importance: Importance | None = None,
) -> SampledCertificate:
    """Estimates from samples which gradient something follows, on any policy, with 95 % intervals.

    Samples groups of completions, block after block, and compares the gradient of the objective's KL term with a
    low-noise estimate, from the same samples, of the gradient that it declares. What is differentiated is the objective
    that trains. The exact counterpart for small policies is `certify`.

    Args:
        subject: an estimator, a KL term, or an objective, as in `certify`.
        policy: the policy.
        params: its parameters.
        ref_params: those of the reference.
        prompts: prompts ``[P, L]``, taken as a sample of those that matter.
        reward: of completions; None: all 0, since the KL term's gradient seldom depends on it.
        key: consumed by sampling and by the random directions.
        max_tokens: longest completion, T.
        end_ids: tokens that end a completion; none: all have ``max_tokens``.
        groups: how many to sample, the prompts in turn; None: one for every prompt. Intervals shrink with its root.
        group_size: members of a group, G.
        blocks: independent parts that the groups are cut into, at least `LEAST_BLOCKS`; one part's activations exist at
            a time. More give intervals that are less uncertain themselves.
        beta: strength of the KL term, > 0; matters only where advantages or clipping are not linear.
        temperature: of sampling and of every log-prob, > 0.
        behaviour_params: of another policy that samples; None: the policy itself does.
        directions: random directions on which the gradient is estimated with its sign, K; each costs as many random
            numbers as there are parameters, for every block.
        placement: of an estimator; see `grpo_jax.kl.penalty`.
        granularity: of an estimator.
        importance: of an estimator in the loss.

    Raises:
        ValueError: no KL term, beta not positive, fewer groups than blocks, no prompts, parameters of another shape, or
            rewards that are not finite or not one (or K) for each completion.
        TypeError: subject or policy is something else.
    """
    check_policy(policy, Policy)
    certified = as_objective(subject, placement, granularity, importance)
    if not prompts.check().tokens.shape[0]:
        raise ValueError("certify_sampled: there are no prompts; give at least one")
    count = prompts.tokens.shape[0] if groups is None else groups
    if not 0 < beta < float("inf"):
        raise ValueError(f"certify_sampled: beta is {beta}; it must be > 0, the KL term's gradient is what it adds")
    if count < blocks:
        raise ValueError(
            f"certify_sampled: {count} groups make no {blocks} blocks; raise groups, or take fewer blocks (8 to 16 are "
            f"usual, {LEAST_BLOCKS} the fewest)"
        )
    for name, other in (("ref_params", ref_params), ("behaviour_params", behaviour_params)):
        if other is not None:
            _check_alike(name, params, other)
    off_policy = behaviour_params is not None
    bound = functools.partial(policy.score, temperature=temperature)
    estimate = sampled_findings(
        bound, certified, group_size, blocks=blocks, directions=directions, off_policy=off_policy
    )
    sample_key, direction_key = jax.random.split(key)
    generate = sampler(policy, categorical(temperature), group_size, max_tokens, end_ids, pad_id=0)
    repeated = jax.tree.map(lambda leaf: leaf[jnp.arange(count) % leaf.shape[0]], prompts)
    sampling = params if behaviour_params is None else behaviour_params
    rollout = jax.jit(_in_blocks(generate, blocks))(sampling, repeated, key=sample_key)
    rewards = jnp.zeros(rollout.finished.shape) if reward is None else _checked(reward(rollout), rollout)
    rescored = certified.parts.mismatch is not None or certified.parts.off_policy is not None

    @jax.jit
    def estimated(params, ref_params, behaviour_params, rollout, rewards):
        log_probs = {"ref_log_probs": _scored(bound, ref_params, rollout, blocks)}
        if behaviour_params is not None:
            log_probs["old_log_probs"] = _scored(bound, behaviour_params, rollout, blocks)
        if rescored:
            sampled = log_probs.pop("old_log_probs", None)
            current = _scored(bound, params, rollout, blocks)
            log_probs |= {"behaviour_log_probs": current if sampled is None else sampled, "old_log_probs": current}
        batch = Batch(rollout.mask, rewards, **log_probs)
        return estimate(params, rollout, batch, beta, ref_params, direction_key)

    found = estimated(params, ref_params, behaviour_params, rollout, rewards)
    target = declaration(certified, group_size, off_policy).target
    notes = [*certified.notes, f"{count} groups of {group_size} completions in {blocks} blocks"]
    if not certified.parts.reduction.constant_denominator or certified.parts.advantage.across_batch is not None:
        notes.append(
            f"each block of {-(-count // blocks)} groups is a batch of its own, and its statistics are its own"
        )
    behaviour = "off" if off_policy else "on"
    return sampled_certificate(name_of(certified), behaviour, target, jax.device_get(found), tuple(notes))


def _check_alike(name: str, params: Params, other: Params) -> None:
    """Raises ValueError where other parameters are not of the policy's shapes."""
    ours, theirs = (jax.tree.map(jnp.shape, tree) for tree in (params, other))
    if ours != theirs:
        raise ValueError(f"certify_sampled: {name} has shapes {theirs}, but params has {ours}; give the same policy's")


def _checked(found: Any, rollout: Rollout) -> Array:
    rewards, completions = jnp.asarray(found, jnp.float32), rollout.finished.shape
    if rewards.shape[:2] != completions or rewards.ndim > 3:
        raise ValueError(
            f"certify_sampled: reward returned shape {rewards.shape} for {completions[0]} groups of {completions[1]} "
            f"completions; return {completions}, or {completions} and the number of rewards"
        )
    if not bool(jnp.all(jnp.isfinite(rewards))):
        bad = int(jnp.sum(~jnp.isfinite(rewards)))
        raise ValueError(f"certify_sampled: {bad} of {rewards.size} rewards are not finite; return numbers")
    return rewards


def _in_blocks(generate: Callable, blocks: int) -> Callable:
    """Samples block after block, so that the caches of one exist at a time."""

    def sample(params: Params, prompts: Prompts, *, key: Key[Array, ""]) -> Rollout:
        count = prompts.tokens.shape[0]
        parts = (split_groups(pad_groups(prompts, blocks), blocks), jax.random.split(key, blocks))
        rollout = join_groups(jax.lax.map(lambda part: generate(params, part[0], key=part[1]), parts))
        return jax.tree.map(lambda leaf: leaf[:count], rollout)

    return sample


def _scored(score: Score, params: Params, rollout: Rollout, blocks: int) -> Float[Array, "P G T"]:
    parts = split_groups(pad_groups(rollout, blocks), blocks)
    log_probs = join_groups(jax.lax.map(lambda part: score(params, part).log_probs, parts))
    return jax.lax.stop_gradient(log_probs[: rollout.mask.shape[0]])
