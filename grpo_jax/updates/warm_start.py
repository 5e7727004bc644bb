"""Supervised learning on demonstrations: how a run gets a reference policy worth staying close to."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from grpo_jax.statistics import mean_of
from grpo_jax.types import Params, Prompts, Rollout
from grpo_jax.updates.learner import Score
from grpo_jax.updates.micro_batches import accumulate_gradient, pad_groups
from grpo_jax.updates.optimizers import guarded_step, require_trainable


class WarmStartState(NamedTuple):
    """Everything needed to continue a warm start bit for bit.

    Attributes:
        params: the policy's parameters.
        opt_state: the optimizer's state.
        step: optimizer steps taken so far, scalar int32.
        rejected: consecutive steps rejected because loss or gradient was not finite, scalar int32.
    """

    params: Params
    opt_state: Any
    step: Int[Array, ""]
    rejected: Int[Array, ""]


class WarmStart(NamedTuple):
    """Supervised learning as pure functions.

    Attributes:
        init: ``(params) -> WarmStartState``; raises ValueError when nothing is trainable.
        step: ``(state, demonstrations) -> (state, metrics)``, metrics being float scalars by name: ``loss`` (nats per
            token), ``gradient_norm``, ``rejected``.
    """

    init: Callable[[Params], WarmStartState]
    step: Callable[[WarmStartState, Rollout], tuple[WarmStartState, dict[str, Float[Array, ""]]]]


def demonstrations(prompts: Prompts, tokens: Int[Array, "P T"], mask: Bool[Array, "P T"]) -> Rollout:
    """Writes one demonstration per prompt as a rollout of groups of one, so that ``score`` can read it.

    Args:
        prompts: the prompts ``[P, L]``.
        tokens: the completions to imitate ``[P, T]``, their end token included.
        mask: True at tokens to imitate ``[P, T]``.

    Returns:
        The rollout ``[P, 1, T]``; its log-probs are 0, for nobody sampled it.
    """
    mask = jnp.asarray(mask)[:, None, :]
    return Rollout(
        prompts, jnp.asarray(tokens)[:, None, :], mask, jnp.zeros(mask.shape), jnp.any(mask, axis=-1)
    ).check()


def warm_start(score: Score, optimizer: optax.GradientTransformation, *, micro_batches: int = 1) -> WarmStart:
    """Builds supervised learning by cross-entropy over the demonstrations' tokens.

    ``loss = - sum_t log pi(y_t | prompt, y_<t) / number of tokens``

    Args:
        score: the policy's scoring function; bind temperature 1, or the one the policy will be sampled at.
        optimizer: from ``grpo_jax.updates`` or optax.
        micro_batches: parts of the batch whose activations exist at a time, >= 1.

    Returns:
        The init and step functions.

    Raises:
        ValueError: for micro_batches below 1.
    """
    if micro_batches < 1:
        raise ValueError(f"warm_start: micro_batches must be at least 1, got {micro_batches}")

    def init(params: Params) -> WarmStartState:
        require_trainable(params)
        return WarmStartState(params, optimizer.init(params), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

    def terms(params, part: Rollout):
        return mean_of(-score(params, part).log_probs, part.mask), {}

    def step(state: WarmStartState, rollout: Rollout) -> tuple[WarmStartState, dict[str, Float[Array, ""]]]:
        padded = pad_groups(rollout.check(), micro_batches)
        gradient, loss, _ = accumulate_gradient(terms, state.params, padded, micro_batches)
        taken = guarded_step(optimizer, state.params, state.opt_state, gradient, loss.compute())
        rejected = jnp.where(taken.rejected, state.rejected + 1, 0)
        metrics = {
            "loss": loss.compute(),
            "gradient_norm": taken.gradient_norm,
            "rejected": taken.rejected.astype(jnp.float32),
        }
        return WarmStartState(taken.params, taken.opt_state, state.step + 1, rejected), metrics

    return WarmStart(init, step)
