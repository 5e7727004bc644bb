"""Reference policies: what the KL term measures against, and how it moves."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jaxtyping import Array, Float

from grpo_jax.types import Batch, Params, Rollout
from grpo_jax.updates.micro_batches import map_groups


class Reference(NamedTuple):
    """A reference policy as pure functions.

    Attributes:
        init: ``(params) -> ref_params``, memory of its own, or None when it needs no parameters.
        update: ``(ref_params, params, step) -> ref_params`` after the optimizer step numbered ``step`` from 1.
        needs_params: False when its log-probs come with the rollout.
        moves: True when it follows the policy, which means nothing unless a KL term reads it.
        description: what it is, in words.
    """

    init: Callable[[Params], Params | None]
    update: Callable[[Params | None, Params, Any], Params | None]
    needs_params: bool
    moves: bool
    description: str


def _copy(params: Params) -> Params:
    return jax.tree.map(jnp.copy, params)


def frozen() -> Reference:
    """Builds the reference that stays what the policy was at the start of the run.

    Returns:
        The reference.
    """
    return Reference(_copy, lambda ref_params, params, step: ref_params, True, False, "frozen()")


def copied_every(steps: int) -> Reference:
    """Builds the reference that becomes the policy every so many optimizer steps.

    A rejected step copies nothing, even if its number is a multiple.

    Args:
        steps: optimizer steps between two copies, >= 1.

    Returns:
        The reference.

    Raises:
        ValueError: for fewer than 1 step.

    References:
        TR-DPO (arXiv 2404.09656), hard update, equation 6.
    """
    _validate_period("copied_every", "steps", steps)

    def update(ref_params, params, step):
        return optax.periodic_update(params, ref_params, step, steps)

    return Reference(_copy, update, True, True, f"copied_every({steps})")


def ema(rate: float = 0.6, every: int = 512) -> Reference:
    """Builds the reference that moves towards the policy every so many optimizer steps.

    ``ref <- rate * params + (1 - rate) * ref``. A rejected step moves nothing, even if its number is a multiple.

    Args:
        rate: share of the policy in the new reference, in (0, 1).
        every: optimizer steps between two moves, >= 1.

    Returns:
        The reference.

    Raises:
        ValueError: for a rate outside (0, 1) or fewer than 1 step.

    References:
        TR-DPO (arXiv 2404.09656), soft update, equation 5.
    """
    if not 0 < rate < 1:
        raise ValueError(
            f"ema: rate must lie in (0, 1), got {rate}; frozen() is rate 0 and copied_every(steps) is rate 1"
        )
    _validate_period("ema", "every", every)

    def update(ref_params, params, step):
        def blended(_):
            moved = optax.incremental_update(params, ref_params, rate)
            return jax.tree.map(lambda new, old: new.astype(old.dtype), moved, ref_params)

        return jax.lax.cond(step % every == 0, blended, lambda _: ref_params, None)

    return Reference(_copy, update, True, True, f"ema(rate={rate}, every={every})")


def behaviour() -> Reference:
    """Builds the reference that is the policy which sampled: its log-probs come with the rollout, nothing is stored.

    For offline data it is the behaviour policy. For a policy that samples for itself, the KL to it is 0 at the first
    update of each rollout and its k2 and k3 have gradient 0 there.

    Returns:
        The reference.
    """
    return Reference(lambda params: None, lambda ref_params, params, step: None, False, False, "behaviour()")


def reference_scores(
    score: Callable, reference: Reference, *, micro_batches: int = 1
) -> Callable[[Params | None, Rollout, Batch], Float[Array, "P G T"]]:
    """Builds the function that gives a rollout the reference's log-probs: one forward pass, no gradient.

    Args:
        score: ``(params, rollout) -> Scores``, the temperature bound; the policy's own.
        reference: the reference policy.
        micro_batches: parts the groups are scored in, one after another; P must be a multiple.

    Returns:
        ``(ref_params, rollout, batch) -> ref_log_probs [P, G, T]``. For ``behaviour()`` it is the batch's record of the
        behaviour policy, and where that is missing or NaN the rollout's.
    """

    def recorded(ref_params, rollout: Rollout, batch: Batch):
        if batch.behaviour_log_probs is None:
            return rollout.log_probs
        return jnp.where(jnp.isnan(batch.behaviour_log_probs), rollout.log_probs, batch.behaviour_log_probs)

    def computed(ref_params, rollout: Rollout, batch: Batch):
        log_probs = map_groups(lambda part: score(ref_params, part).log_probs, rollout, micro_batches)
        return jax.lax.stop_gradient(log_probs)

    return computed if reference.needs_params else recorded


def assert_not_aliased(params: Params, ref_params: Params | None) -> None:
    """Raises ValueError when the reference shares memory with the policy.

    Such a reference moves with the policy, so that every KL is 0 for ever, and a donated buffer would be used twice.
    Tracers have no memory yet: only their identity is compared.

    Args:
        params: the policy's parameters.
        ref_params: the reference's; None shares nothing.
    """
    seen = {place: path for path, leaf in jax.tree.leaves_with_path(params) for place in _places(leaf)}
    for path, leaf in jax.tree.leaves_with_path(ref_params):
        for place in _places(leaf):
            if place in seen:
                name, other = jax.tree_util.keystr(path), jax.tree_util.keystr(seen[place])
                raise ValueError(
                    f"the reference's {name} is the policy's own {other}: its KL would be 0 for ever;"
                    " copy it with jax.tree.map(jnp.copy, params)"
                )


def _places(leaf: Any) -> set:
    """Returns what identifies an array's memory: the addresses of its shards, or the object while it is traced."""
    if isinstance(leaf, Tracer):
        return {id(leaf)}
    if isinstance(leaf, jax.Array):
        shards = [shard.data for shard in leaf.addressable_shards if shard.data.size]
        return {(shard.device, shard.unsafe_buffer_pointer()) for shard in shards}
    return {np.asarray(leaf).__array_interface__["data"][0]} if np.size(leaf) else set()


def _validate_period(place: str, name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{place}: {name} must be at least 1 optimizer step, got {value}; frozen() never moves")
