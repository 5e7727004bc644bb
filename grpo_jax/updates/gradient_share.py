"""How much of the gradient comes from groups whose rewards say nothing."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from grpo_jax.losses import Objective
from grpo_jax.losses.terms import gather
from grpo_jax.types import Batch, Params, Rollout, Scores
from grpo_jax.updates.learner import Score
from grpo_jax.updates.micro_batches import pad_groups, split_groups


def gradient_share(score: Score, objective: Objective, *, micro_batches: int = 1) -> Callable[..., Float[Array, ""]]:
    """Builds the measure of the share of the gradient's norm that degenerate groups carry through their KL term.

    ``|| grad of the loss terms of degenerate groups || / || grad of all terms ||``, both before clipping. 0 under beta
    0 or when such groups are masked; above 1 where the two parts of the gradient point against each other.

    Cost: one forward and two backward passes, so one backward pass more than the gradient of an update. Meant to be
    compiled on its own and called every some steps, with the parameters from before the update.

    Args:
        score: the policy's scoring function with the temperature bound.
        objective: the loss.
        micro_batches: parts of the batch whose activations exist at a time, >= 1.

    Returns:
        ``(params, rollout, batch, beta, ref_params=None) -> share``, scalar >= 0, and 0 where there is no gradient at
        all. The batch has its reference log-probs filled (``reference_scores``); ``ref_params`` are needed where the
        objective needs the full-vocabulary KL.

    Raises:
        ValueError: for micro_batches below 1.
    """
    if micro_batches < 1:
        raise ValueError(f"gradient_share: micro_batches must be at least 1, got {micro_batches}")

    def part_gradients(params, part, ref_params, beta):
        rollout, prepared = part

        def scored(params) -> Scores:
            return score(params, rollout, entropy=objective.needs_entropy, ref_params=ref_params)

        # A group's terms read its own scores alone, so the gradient with respect to the scores separates the groups.
        scores, pull = jax.vjp(scored, params)
        slopes = jax.grad(lambda scores: objective.accumulate(scores, prepared, beta)[0].total)(scores)
        degenerate = gather(objective.parts, scores, prepared, beta).degenerate
        only = jax.tree.map(lambda slope: jnp.where(degenerate[:, None, None], slope, 0), slopes)
        gradients = (pull(only)[0], pull(slopes)[0])
        return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), gradients)

    def share(
        params: Params, rollout: Rollout, batch: Batch, beta: Float[Array, ""] | float, ref_params: Params | None = None
    ) -> Float[Array, ""]:
        rollout, batch = pad_groups((rollout, batch.check()), micro_batches)
        reference = ref_params if objective.needs_full_kl else None

        def add(sums, part):
            return jax.tree.map(jnp.add, sums, part_gradients(params, part, reference, beta)), None

        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), (params, params))
        parts = split_groups((rollout, objective.prepare(batch)), micro_batches)
        sums, _ = jax.lax.scan(add, zeros, parts)
        part, whole = (optax.tree.norm(gradient) for gradient in sums)
        return jnp.where(whole > 0, part / jnp.where(whole > 0, whole, 1), 0)

    return share
