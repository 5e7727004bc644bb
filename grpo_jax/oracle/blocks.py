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
from grpo_jax.oracle.references import Basis, basis, reference
from grpo_jax.oracle.slopes import (
    as_references_read,
    baselined,
    existing,
    importance_weights,
    kl_slopes,
    slopes_of,
    squared_log_ratios,
)
from grpo_jax.types import Batch, Params, Rollout, Scores
from grpo_jax.updates import Score, pad_groups, split_groups

LEAST_BLOCKS = 3
"""Fewest blocks: with one of them left out, two must remain to be multiplied with each other."""


class Products(NamedTuple):
    """Inner products of the gradients of B blocks, by all parameters together, float32.

    Of n = 2 or 3 gradients: that of the KL term minus its reference, which sees the same chance; the reverse KL's with
    a baseline, which has the least noise of its own; and, unless zero is declared, the reference's. All in units of
    beta and of what reduction and advantage scale by.

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


def block_products(
    score: Score, objective: Objective, group_size: int, *, blocks: int, directions: int = 0, off_policy: bool = False
) -> Callable[..., Products]:
    """Builds the measurement of an objective's KL gradient against the reference for what it declares.

    Objective and reference see the same samples, so what both make of chance cancels in their difference. Advantages
    and reductions that look at the whole batch see one block instead.

    Cost: two times one forward and three backward passes over the batch (two where zero is declared); memory of one
    block's activations and of four gradients for each of those backward passes. For every block, each direction draws
    as many random numbers as there are parameters.

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
    reverse = reference(Target(reverse=1.0))
    followed = reverse if set(chosen.follows.coefficients) == {"reverse"} else reference(chosen.follows)
    bound = _Blocks(score, objective, promised, chosen, reverse, followed, off_policy)

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
        none = tuple(zeros for _ in chosen.sample)

        # Both passes in one loop, so that the gradients are compiled once; the last one multiplies.
        def one_pass(totals, last):
            def step(carry, part):
                sums, before = carry
                found, numbers = bound.gradients(params, ref_params, part[0], part[1], strength)

                def measured():
                    return _products(found, (*found, *totals, *before)), _projections(found, key, directions)

                products, along = jax.lax.cond(last, measured, lambda: unmeasured)
                return (jax.tree.map(jnp.add, sums, found), found), (products, along, *numbers)

            (sums, _), rows = jax.lax.scan(step, (none, none), parts)
            return sums, rows

        unmeasured = jnp.zeros((len(none), 3 * len(none))), jnp.zeros((directions, len(none)))
        _, rows = jax.lax.scan(one_pass, none, jnp.array([False, True]))
        products, along, groups, weights, squares = jax.tree.map(lambda leaf: leaf[1], rows)
        own, sums, neighbours = jnp.split(products, 3, axis=-1)
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
    reverse: Objective
    followed: Objective
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
        sampled = as_references_read(batch, self.off_policy)
        reverse = slopes_of(self.reverse, scores, sampled, 1.0)
        pulled = [ours, baselined(reverse, scores, sampled)]
        if len(self.basis.sample) == 3:
            followed = reverse if self.followed is self.reverse else slopes_of(self.followed, scores, sampled, 1.0)
            size = self.basis.sample[2]
            pulled[0] = jax.tree.map(lambda one, other: one - size * other, ours, followed)
            pulled.append(followed)
        found = tuple(pull(slopes)[0] for slopes in pulled)
        found = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), found)
        groups = jnp.sum(existing(batch).any(axis=(1, 2)), dtype=jnp.float32)
        return found, (groups, importance_weights(scores, sampled), squared_log_ratios(scores, batch))

    def _scale(self, batch: Batch) -> Float[Array, ""] | float:
        """Returns what reduction and advantage multiply the gradient by; roughly, where lengths decide it."""
        reduction, promised = self.objective.parts.reduction, self.promised
        if reduction.constant_denominator or not promised.target.none:
            return promised.scale
        counted = existing(batch)
        ones = counted.astype(jnp.float32)
        whole = reductions.sequence_mean_of_token_sum().reduce(ones, counted).compute()
        share = reduction.reduce(ones, counted).compute() / jnp.maximum(whole, 1)
        return jnp.where(share > 0, share, 1)


def _dot(one: Params, other: Params) -> Float[Array, ""]:
    return sum(map(jnp.vdot, jax.tree.leaves(one), jax.tree.leaves(other)), jnp.zeros(()))


def _products(one: tuple[Params, ...], other: tuple[Params, ...]) -> Float[Array, "n m"]:
    """Returns the inner product of each with each, reading every gradient once."""

    def of_leaf(*leaves: Array) -> Float[Array, "n m"]:
        mine, yours = jnp.stack(leaves[: len(one)]), jnp.stack(leaves[len(one) :])
        axes = tuple(range(1, mine.ndim))
        return jnp.tensordot(mine, yours, axes=(axes, axes), precision="highest")

    return sum(jax.tree.leaves(jax.tree.map(of_leaf, *one, *other)), jnp.zeros((len(one), len(other))))


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
