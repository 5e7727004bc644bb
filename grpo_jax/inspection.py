"""Steps that look at a batch and change nothing: the share of degenerate groups, certificates, invariants."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from grpo_jax.components import Parts
from grpo_jax.config import Config
from grpo_jax.losses import assert_degenerate_gradients_are_zero
from grpo_jax.oracle import LEAST_BLOCKS, Findings, sampled_findings
from grpo_jax.types import Batch, Rollout, TrainState
from grpo_jax.updates import Score, gradient_share, reference_scores

_BLOCKS = 8
"""Blocks that a batch is cut into for its certificate, where it has as many groups."""


def _filled(score: Score, parts: Parts, micro_batches: int, state: TrainState, rollout: Rollout, batch: Batch) -> Batch:
    if not parts.objective.needs_reference or parts.objective.needs_full_kl:
        return batch
    scored = reference_scores(score, parts.reference, micro_batches=micro_batches)
    return batch._replace(ref_log_probs=scored(state.ref_params, rollout, batch))


def share_step(score: Score, parts: Parts, micro_batches: int) -> Callable:
    """Builds ``(state, rollout, batch) -> []``, the share of the gradient that degenerate groups carry."""
    measure = gradient_share(score, parts.objective, micro_batches=micro_batches)

    def share(state: TrainState, rollout: Rollout, batch: Batch):
        beta = parts.controller.beta(state.controller)
        filled = _filled(score, parts, micro_batches, state, rollout, batch.check())
        return measure(state.params, rollout, filled, beta, state.ref_params)

    return share


def certificate_blocks(parts: Parts, config: Config) -> int:
    """Returns how many blocks a batch is cut into; raises ValueError where there is nothing to certify."""
    if parts.objective.parts.kl is None:
        raise ValueError("certify_every has no effect, since the objective has no KL term; give 0, or beta above 0")
    if not parts.reference.needs_params:
        raise ValueError(
            f"certify_every needs the parameters of a reference policy, which {parts.reference.description} has not; "
            "give 0, or another reference"
        )
    if config.rollout.prompts < LEAST_BLOCKS:
        raise ValueError(
            f"certify_every compares groups with each other, but rollout.prompts is {config.rollout.prompts}; give at "
            f"least {LEAST_BLOCKS}"
        )
    # Blocks of equal size where they can be, small enough for memory, and few: more add no power, but passes of little.
    size = -(-config.rollout.prompts // max(_BLOCKS, config.update.micro_batches))
    return max(config.rollout.prompts // size, LEAST_BLOCKS)


def certificate_step(score: Score, parts: Parts, config: Config, blocks: int) -> Callable:
    """Builds ``(state, rollout, batch) -> Findings``, which gradient the KL term follows on the batch."""
    size, lagging = config.rollout.group_size, config.rollout.lag > 0
    estimate = sampled_findings(score, parts.objective, size, blocks=blocks, off_policy=lagging)
    scored = reference_scores(score, parts.reference, micro_batches=config.update.micro_batches)

    def certificate(state: TrainState, rollout: Rollout, batch: Batch) -> Findings:
        batch = batch.check()._replace(ref_log_probs=scored(state.ref_params, rollout, batch))
        beta = parts.controller.beta(state.controller)
        return estimate(state.params, rollout, batch, beta, state.ref_params, jax.random.key(0))

    return certificate


def invariants_step(score: Score, parts: Parts, micro_batches: int) -> Callable:
    """Builds ``(state, rollout, batch) -> []``, which asserts that degenerate groups have the gradient they should."""

    def check(state: TrainState, rollout: Rollout, batch: Batch) -> jax.Array:
        objective = parts.objective
        reference = state.ref_params if objective.needs_full_kl else None
        scores = score(state.params, rollout, entropy=objective.needs_entropy, ref_params=reference)
        filled = _filled(score, parts, micro_batches, state, rollout, batch.check())
        assert_degenerate_gradients_are_zero(objective, scores, filled, parts.controller.beta(state.controller))
        return jnp.zeros(())

    return check
