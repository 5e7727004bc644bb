"""The exact expectation and variance of an objective's gradient, by summing over all groups of completions."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from grpo_jax.advantages import Advantage
from grpo_jax.kl import Target
from grpo_jax.losses import Objective, Parts, Reduction, objective, reductions, surrogates
from grpo_jax.oracle.instance import Instance, Tables, exactly
from grpo_jax.oracle.space import Groups
from grpo_jax.statistics import Mean
from grpo_jax.types import Batch, Params, Scores

CHUNK = 2**13
"""Groups that are differentiated at a time."""
LEAST_BETA = 1e-4
"""Smallest beta: what it adds to a gradient is found by subtraction, and rounding is divided by it."""
# Nothing here runs for long enough to be worth optimising.
QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}


class Expectation(NamedTuple):
    """Expected gradients by the D parameters, and traces of their covariance for one group.

    Attributes:
        kl: of the KL term, per unit of beta: what beta adds to the gradient, divided by beta ``[D]``.
        reward: of everything else, at beta 0 ``[D]``.
        kl_variance: trace of the covariance of what ``kl`` is the mean of.
        reward_variance: the same of ``reward``.
    """

    kl: np.ndarray
    reward: np.ndarray
    kl_variance: float
    reward_variance: float


def expected_loss(
    certified: Objective, instance: Instance, groups: Groups, beta: float = 1.0, off_policy: bool = False
) -> Callable[[Params], Float[Array, ""]]:
    """Returns the function of the parameters whose ``jax.grad`` is the objective's expected gradient.

    ``sum_groups sg(P(group)) * objective(scores(params), batch, beta)``; run and differentiate it under `exactly`.

    Args:
        certified: the objective, as it trains.
        instance: policy, reference, sampler and rewards.
        groups: all groups of the instance's completions.
        beta: strength of the KL term.
        off_policy: whether the instance's sampler sampled, else the current policy.
    """
    listed = instance.enumerated
    members = jnp.asarray(groups.members)

    def score(params: Params, ref_params: Params | None = None, entropy: bool = False) -> Scores:
        scores = listed.policy.score(params, listed.rollout, listed.temperature, entropy=entropy, ref_params=ref_params)
        return jax.tree.map(lambda leaf: leaf[0], scores)

    def loss(params: Params) -> Float[Array, ""]:
        scores = score(params, instance.ref_params, entropy=True)
        sampler = score(instance.behaviour_params if off_policy else jax.lax.stop_gradient(params)).log_probs
        fixed = jax.tree.map(jnp.asarray, (listed.space.mask, instance.rewards))
        known = (score(instance.ref_params).log_probs, sampler, *fixed)
        weights = jnp.prod(jnp.exp(jnp.sum(sampler, axis=1))[members], axis=1) * groups.multiplicity

        def one(members):
            scores_of_group, batch = _groups(certified.parts, scores, known, members[None])
            return certified(scores_of_group, batch, beta)[0]

        each = jax.lax.map(jax.checkpoint(one), members, batch_size=min(len(members), CHUNK))
        return jnp.sum(jax.lax.stop_gradient(weights) * each)

    return loss


def expectation(
    certified: Objective, tables: Tables, groups: Groups, beta: float = 1.0, reduction: Reduction | None = None
) -> Expectation:
    """Returns the exact mean and variance of an objective's gradient.

    Args:
        certified: the objective.
        tables: the evaluated instance; says also which policy sampled.
        groups: all groups; `multisets` where the objective is symmetric in a group's members.
        beta: strength of the KL term, at least `LEAST_BETA`.
        reduction: stands in for the objective's own, as a linear function of the token losses, so that objectives which
            differ in nothing else share a compiled function. None: the objective's own.
    """
    return summed(gradients_of_groups(certified, tables, groups, beta, reduction), tables.jacobian.shape[-1])


def summed(chunks: Iterable[tuple[np.ndarray, np.ndarray]], size: int) -> Expectation:
    """Returns mean and variance of what `gradients_of_groups` yields.

    Args:
        chunks: probabilities of groups and their gradients.
        size: number of parameters, D.
    """
    means, squares = np.zeros((2, size)), np.zeros(2)
    for weights, gradients in chunks:
        means = means + np.einsum("m,bmd->bd", weights, gradients)
        squares = squares + np.einsum("m,bmd,bmd->b", weights, gradients, gradients)
    variances = np.maximum(squares - np.sum(np.square(means), axis=1), 0)
    return Expectation(means[1], means[0], float(variances[1]), float(variances[0]))


def covariance(certified: Objective, tables: Tables, groups: Groups, beta: float = 1.0) -> np.ndarray:
    """Returns the covariance matrix of the KL term's gradient for one group ``[D, D]``, per unit of beta squared."""
    size = tables.jacobian.shape[-1]
    mean, products = np.zeros(size), np.zeros((size, size))
    for weights, gradients in gradients_of_groups(certified, tables, groups, beta):
        mean = mean + weights @ gradients[1]
        products = products + np.einsum("m,md,me->de", weights, gradients[1], gradients[1])
    return products - np.multiply.outer(mean, mean)


def gradients_of_groups(
    certified: Objective, tables: Tables, groups: Groups, beta: float = 1.0, reduction: Reduction | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields, chunk by chunk, the probability of each group ``[m]`` and its gradients ``[2, m, D]``.

    The first gradient is that at beta 0, the second what beta adds to it, per unit of beta.
    """
    if not LEAST_BETA <= beta < float("inf"):
        raise ValueError(
            f"oracle: beta is {beta}; it must be > 0, since the KL term's gradient is what it adds, and from "
            f"{LEAST_BETA:g} on, since rounding would drown a smaller addition"
        )
    compiled = _slopes(_shared(certified.parts, reduction is not None))
    size = min(CHUNK, len(groups.members))
    for start in range(0, len(groups.members), size):
        members, multiplicity = (part[start : start + size] for part in groups)
        padding = size - len(members)
        padded = np.pad(members, ((0, padding), (0, 0)))
        weights = np.prod(tables.probabilities[members], axis=1) * multiplicity
        slopes = _of_chunk(compiled, certified, tables, padded, (0.0, beta), reduction)
        by_parameters = _carried(slopes[:, : len(members)], tables.jacobian, members)
        yield weights, np.stack([by_parameters[0], (by_parameters[1] - by_parameters[0]) / beta])


def _of_chunk(
    compiled: Callable,
    certified: Objective,
    tables: Tables,
    members: np.ndarray,
    betas: tuple[float, float],
    reduction: Reduction | None,
) -> np.ndarray:
    """Returns the loss's gradients by every score of every member ``[betas, m, G, 3 T]``."""
    known = (tables.ref_log_probs, tables.behaviour_log_probs, tables.mask, tables.rewards)
    with exactly():
        coefficients = None if reduction is None else _coefficients(reduction)(tables.mask, members)
        advantages = None
        if not _fused(certified.parts):
            advantages = _prepared(certified.parts.advantage)(tables.mask, tables.rewards, members)
        slopes = [compiled(tables.scores, known, members, beta, advantages, coefficients) for beta in betas]
    return np.stack([np.concatenate(jax.tree.map(np.asarray, tuple(each)), axis=-1) for each in slopes])


def _carried(slopes: np.ndarray, jacobian: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Carries gradients by scores ``[b, m, G, S]`` on to the parameters ``[b, m, D]``."""
    total = np.zeros((len(slopes), len(members), jacobian.shape[-1]))
    for member, completions in enumerate(members.T):
        # All groups with the same completion at once, as one product of matrices without a copy of the Jacobian.
        order = np.argsort(completions, kind="stable")
        present, starts = np.unique(completions[order], return_index=True)
        for completion, rows in zip(present, np.split(order, starts[1:]), strict=True):
            total[:, rows] += slopes[:, rows, member] @ jacobian[completion]
    return total


def _groups(parts: Parts, scores: Scores, known: tuple, members: Array) -> tuple[Scores, Batch]:
    """Scores and batch of the groups ``members [P, G]``, out of those of all completions."""
    ref, sampler, mask, rewards = known
    take = lambda values: values[members]  # noqa: E731
    # With a mismatch correction the trainer has scored the samples anew, and the sampler's record is what it corrects.
    rescored = parts.mismatch is not None or parts.off_policy is not None
    batch = Batch(
        mask=take(mask),
        rewards=take(rewards),
        old_log_probs=take(jax.lax.stop_gradient(scores.log_probs) if rescored else sampler),
        behaviour_log_probs=take(sampler) if rescored else None,
        ref_log_probs=take(ref),
    )
    return jax.tree.map(take, scores), batch


def _shared(parts: Parts, any_reduction: bool) -> Parts:
    """Forgets what is given as data, so that objectives which differ only in it share a compiled function."""
    if not _fused(parts):
        parts = parts._replace(advantage=Advantage("prepared", _given, True, "", None, parts.advantage.spread))
    return parts._replace(reduction=_linear(None)) if any_reduction else parts


def _fused(parts: Parts) -> bool:
    return parts.kl is not None and parts.kl.sequence_cost is not None


def _given(*_, **__):
    raise AssertionError("advantages and reductions that are given as data are never computed")


def _linear(coefficients: Float[Array, "P G T"] | None) -> Reduction:
    if coefficients is None:
        return Reduction("coefficients", _given, constant_denominator=True)
    reduce = lambda values, mask: Mean(jnp.sum(coefficients * values), jnp.ones((), values.dtype))  # noqa: E731
    return Reduction("coefficients", reduce, constant_denominator=True)


@functools.lru_cache(maxsize=4096)
def _slopes(parts: Parts) -> Callable:
    """Compiles the gradients by scores of any groups out of any tables, each as the only one of its batch."""

    def loss(scores: Scores, batch: Batch, beta: Float[Array, ""], coefficients: Float[Array, "P G T"] | None):
        used = parts if coefficients is None else parts._replace(reduction=_linear(coefficients))
        return Objective(used, Target(), Target(), ()).accumulate(scores, batch, beta)[0].compute()

    def of_groups(scores: Scores, known: tuple, members: Array, beta, advantages, coefficients) -> Scores:
        scores_of_groups, batch = _groups(parts, scores, known, members)
        return jax.grad(loss)(scores_of_groups, batch._replace(advantages=advantages), beta, coefficients)

    def one_by_one(scores: Scores, known: tuple, members: Array, beta, advantages, coefficients) -> Scores:
        data = jax.tree.map(lambda leaf: leaf[:, None], (members, advantages, coefficients))
        alone = jax.vmap(lambda data: of_groups(scores, known, data[0], beta, *data[1:]))
        found = alone(data)
        return jax.tree.map(lambda leaf: leaf[:, 0], found)

    # Weighted by given coefficients, groups do not see each other, and one batch of all of them is faster to trace.
    return jax.jit(of_groups if parts.reduction == _linear(None) else one_by_one, compiler_options=QUICK)


@functools.lru_cache(maxsize=256)
def _prepared(advantage: Advantage) -> Callable:
    """Compiles the advantages of every group ``[m, G]``, as the objective prepares them."""
    bare = objective(advantage, surrogates.reinforce(), reductions.sequence_mean_of_token_sum())

    def one(mask, rewards, members):
        advantages = bare.prepare(Batch(mask[members][None], rewards[members][None])).advantages
        assert advantages is not None
        return advantages[0]

    return jax.jit(jax.vmap(one, in_axes=(None, None, 0)), compiler_options=QUICK)


@functools.lru_cache(maxsize=256)
def _coefficients(reduction: Reduction) -> Callable:
    """Compiles the weight that a reduction gives to each token of every group ``[m, G, T]``; it is linear."""

    def one(mask, members):
        counted = mask[members][None]
        return jax.grad(lambda values: reduction.reduce(values, counted).compute())(jnp.zeros(counted.shape))[0]

    return jax.jit(jax.vmap(one, in_axes=(None, 0)), compiler_options=QUICK)
