"""Gradients of blocks of groups and their inner products, which is all that statistics of gradients need.

A batch is cut into blocks of whole groups, and each is taken as a batch of its own: their gradients are independent
unbiased estimates of one mean. They are computed twice and never kept, so that memory holds a few gradients whatever
the number of blocks: the first pass adds them up, the second multiplies each with the sums.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from grpo_jax.kl import Target
from grpo_jax.losses import Objective, reductions
from grpo_jax.oracle.declared import Declaration, declaration
from grpo_jax.oracle.references import reference
from grpo_jax.ratios import bounded_exp
from grpo_jax.types import Batch, Params, Rollout, Scores
from grpo_jax.updates import Score, pad_groups, split_groups

LEAST_BLOCKS = 3
"""Fewest blocks: with one of them left out, two must remain to be multiplied with each other."""


class Products(NamedTuple):
    """Inner products of the gradients of B blocks, by all parameters together, float32.

    Of n = 2 or 3 gradients: that of the KL term minus its reference, the reverse KL's, and the reference's where it is
    no multiple of that. All in units of beta and of what reduction and advantage scale by.

    Attributes:
        own: products of a block's gradients with each other ``[B, n, n]``.
        sums: products of a block's gradients (first axis) with the sums over all blocks (second) ``[B, n, n]``.
        neighbours: products of a block's gradients with those of the block before it ``[B - 1, n, n]``.
        projections: on random unit vectors ``[B, K, n]``.
        groups: groups with a valid member ``[B]``.
        weights: number, sum and sum of squares of the completions' importance weights ``[3]``.
        apart: root mean square of the tokens' log-ratios between policy and reference, nats.
    """

    own: Float[Array, "B n n"]
    sums: Float[Array, "B n n"]
    neighbours: Float[Array, "B-1 n n"]
    projections: Float[Array, "B K n"]
    groups: Float[Array, " B"]
    weights: Float[Array, " 3"]
    apart: Float[Array, ""]


class Basis(NamedTuple):
    """Which combinations of the gradients in `Products` are what.

    Attributes:
        follows: the target of the reference; where nothing is declared, or zero, the reverse KL.
        kl: the KL term's gradient.
        difference: from it to what it should be.
        unit: the gradient that lengths and angles are measured against.
        reverse: the gradient of the reverse KL.
    """

    follows: Target
    kl: tuple[float, ...]
    difference: tuple[float, ...]
    unit: tuple[float, ...]
    reverse: tuple[float, ...]


def basis(target: Target) -> Basis:
    """Returns the gradients that are needed to judge an objective which declares a target."""
    coefficients = target.coefficients
    if target.none:
        coefficients = {"reverse": 1.0}
    if not coefficients:
        return Basis(Target(reverse=1.0), (1.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.0, 1.0))
    if set(coefficients) == {"reverse"}:
        size = coefficients["reverse"]
        return Basis(Target(reverse=1.0), (1.0, size), (1.0, 0.0), (0.0, size), (0.0, 1.0))
    return Basis(Target()._replace(**coefficients), (1.0, 0.0, 1.0), (1.0, 0.0, 0.0), (0.0, 0.0, 1.0), (0.0, 1.0, 0.0))


def block_products(
    score: Score, objective: Objective, group_size: int, *, blocks: int, directions: int = 0, off_policy: bool = False
) -> Callable[..., Products]:
    """Builds the measurement of an objective's KL gradient against the reference for what it declares.

    Objective and reference see the same samples, so what both make of chance cancels in their difference. Advantages
    and reductions that look at the whole batch see one block instead.

    Cost: two times one forward and two or three backward passes over the batch; memory of one block's activations and
    four times the two or three gradients. Each direction draws as many random numbers as there are parameters, a block.

    Args:
        score: the policy's scoring function with the temperature bound.
        objective: the loss, with a KL term.
        group_size: members of a group, G; self-included baselines scale by it.
        blocks: B, between `LEAST_BLOCKS` and the number of groups; 8 to 16 are enough.
        directions: random directions to project on, K.
        off_policy: whether another policy sampled, whose log-probs the batch has as ``old_log_probs``, or, beside a
            mismatch correction, as ``behaviour_log_probs``. Else neither is read as such.

    Returns:
        ``(params, rollout, batch, beta, ref_params, key) -> Products``, pure. The batch has its ``ref_log_probs``.
        Where beta is 0 it is taken as 1.

    Raises:
        ValueError: no KL term, or too few blocks; from the function, a batch without ``ref_log_probs``.
    """
    if objective.parts.kl is None:
        raise ValueError("oracle: this objective has no KL term, so there is no gradient to certify; give it kl=...")
    if blocks < LEAST_BLOCKS:
        raise ValueError(f"oracle: {blocks} blocks say nothing of the noise; take at least {LEAST_BLOCKS}")
    promised = declaration(objective, group_size, off_policy)
    chosen = basis(promised.target)
    followed = [Target(reverse=1.0)] + ([] if len(chosen.kl) == 2 else [chosen.follows])
    bound = _Blocks(score, objective, promised, chosen, tuple(map(reference, followed)), directions, off_policy)

    def measure(
        params: Params,
        rollout: Rollout,
        batch: Batch,
        beta: Float[Array, ""] | float,
        ref_params: Params,
        key: Key[Array, ""],
    ) -> Products:
        if batch.ref_log_probs is None:
            raise ValueError("oracle: the batch has no ref_log_probs [P, G, T]; score the reference first")
        rollout, batch = pad_groups((rollout, batch.check()), blocks)
        parts = split_groups((rollout, batch), blocks)
        strength = jnp.where(beta > 0, beta, 1.0)

        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), params)
        none = tuple(zeros for _ in chosen.kl)

        # Both passes in one loop: compiled once, though the first has no use for its products.
        def one_pass(totals, last):
            def step(carry, part):
                sums, before = carry
                found, numbers = bound.gradients(params, ref_params, part[0], part[1], strength)
                along = jax.lax.cond(last, lambda: _projections(found, key, directions), lambda: unmeasured)
                products = [_products(found, other) for other in (found, totals, before)]
                return (jax.tree.map(jnp.add, sums, found), found), (*products, along, *numbers)

            (sums, _), rows = jax.lax.scan(step, (none, none), parts)
            return sums, rows

        unmeasured = jnp.zeros((directions, len(none)))
        _, rows = jax.lax.scan(one_pass, none, jnp.array([False, True]))
        own, sums, neighbours, along, groups, weights, squares = jax.tree.map(lambda leaf: leaf[1], rows)
        total, tokens = jnp.sum(squares, axis=0)
        apart = jnp.sqrt(total / jnp.maximum(tokens, 1))
        return Products(own, sums, neighbours[1:], along, groups, jnp.sum(weights, axis=0), apart)

    return measure


class _Blocks(NamedTuple):
    """What ``block_products`` was given, bound once."""

    score: Score
    objective: Objective
    promised: Declaration
    basis: Basis
    references: tuple[Objective, ...]
    directions: int
    off_policy: bool

    def gradients(
        self, params: Params, ref_params: Params, rollout: Rollout, batch: Batch, beta: Float[Array, ""]
    ) -> tuple[tuple[Params, ...], tuple[Array, Array, Array]]:
        """Returns the n gradients of one block, and its numbers of groups, weights and squared log-ratios."""
        if not self.off_policy:
            batch = batch._replace(old_log_probs=None)

        def scored(params) -> Scores:
            return self.score(params, rollout, entropy=self.objective.needs_entropy, ref_params=ref_params)

        scores, pull = jax.vjp(scored, params)
        scale = self._scale(batch)
        ours = jax.tree.map(lambda slope: slope / scale, kl_slopes(self.objective, scores, batch, beta))
        sampled = _sampler_of(batch, self.off_policy)
        known = [jax.grad(lambda scores, each=each: each(scores, sampled, 1.0)[0])(scores) for each in self.references]
        size = self.basis.kl[1] if len(known) == 1 else 1.0
        difference = jax.tree.map(lambda one, other: one - size * other, ours, known[-1])
        found = tuple(pull(slopes)[0] for slopes in (difference, *known))
        found = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), found)
        groups = jnp.sum(_existing(batch).any(axis=(1, 2)), dtype=jnp.float32)
        return found, (groups, _weights(scores, sampled), _squared_log_ratios(scores, batch))

    def _scale(self, batch: Batch) -> Float[Array, ""] | float:
        """Returns what reduction and advantage multiply the gradient by; roughly, where lengths decide it."""
        reduction, promised = self.objective.parts.reduction, self.promised
        if reduction.constant_denominator or not promised.target.none:
            return promised.scale
        counted = _existing(batch)
        ones = counted.astype(jnp.float32)
        whole = reductions.sequence_mean_of_token_sum().reduce(ones, counted).compute()
        share = reduction.reduce(ones, counted).compute() / jnp.maximum(whole, 1)
        return jnp.where(share > 0, share, 1)


def kl_slopes(objective: Objective, scores: Scores, batch: Batch, beta: Float[Array, ""]) -> Scores:
    """Returns what beta adds to the gradient of the loss by the scores, per unit of beta."""

    def slopes(beta: Float[Array, ""]) -> Scores:
        return jax.grad(lambda scores: objective(scores, batch, beta)[0])(scores)

    return jax.tree.map(lambda one, other: (one - other) / beta, slopes(beta), slopes(jnp.zeros_like(beta)))


def _sampler_of(batch: Batch, off_policy: bool) -> Batch:
    """Returns the batch as a reference reads it: no rewards, and the log-probs of whoever sampled."""
    nothing = jnp.zeros(batch.mask.shape[:2])
    record, old = batch.behaviour_log_probs, batch.old_log_probs
    if record is None or old is None:
        record = old if record is None else record
    else:
        record = jnp.where(jnp.isnan(record), old, record)
    return batch._replace(rewards=nothing, task_rewards=nothing, old_log_probs=record if off_policy else None)


def _existing(batch: Batch) -> Array:
    return batch.mask if batch.valid is None else batch.mask & batch.valid[..., None]


def _weights(scores: Scores, sampled: Batch) -> Float[Array, " 3"]:
    """Returns number, sum and sum of squares of the completions' importance weights."""
    mask = _existing(sampled)
    old = scores.log_probs if sampled.old_log_probs is None else sampled.old_log_probs
    weights = bounded_exp(jnp.sum(jnp.where(mask, scores.log_probs - old, 0), axis=-1)) * mask.any(axis=-1)
    return jnp.stack([jnp.sum(mask.any(axis=-1), dtype=jnp.float32), jnp.sum(weights), jnp.sum(jnp.square(weights))])


def _squared_log_ratios(scores: Scores, batch: Batch) -> Float[Array, " 2"]:
    """Returns the sum of squares of the log-ratios to the reference, and the number of tokens."""
    assert batch.ref_log_probs is not None
    mask = _existing(batch)
    log_ratios = jnp.where(mask, scores.log_probs - batch.ref_log_probs, 0)
    return jnp.stack([jnp.sum(jnp.square(log_ratios)), jnp.sum(mask, dtype=jnp.float32)])


def _dot(one: Params, other: Params) -> Float[Array, ""]:
    return sum(map(jnp.vdot, jax.tree.leaves(one), jax.tree.leaves(other)), jnp.zeros(()))


def _products(one: tuple[Params, ...], other: tuple[Params, ...]) -> Float[Array, "n n"]:
    return jnp.stack([jnp.stack([_dot(mine, yours) for yours in other]) for mine in one])


def _projections(gradients: tuple[Params, ...], key: Key[Array, ""], directions: int) -> Float[Array, "K n"]:
    """Projects on random unit vectors, drawn one at a time, the same for every block."""
    leaves, structure = jax.tree.flatten(gradients[0])

    def project(number: Any) -> Float[Array, " n"]:
        keys = jax.random.split(jax.random.fold_in(key, number), len(leaves))
        drawn = [jax.random.normal(keys[index], leaf.shape) for index, leaf in enumerate(leaves)]
        direction = jax.tree.unflatten(structure, drawn)
        length = jnp.sqrt(_dot(direction, direction))
        return jnp.stack([_dot(each, direction) / length for each in gradients])

    return jax.lax.map(project, jnp.arange(directions))
