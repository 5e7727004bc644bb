"""The gradient of single completions by the library's own objectives, and its mean and variance over all of them."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.minimal_model.configurations import Configuration
from grpo_jax.losses import Objective
from grpo_jax.models import count_model
from grpo_jax.oracle import exactly
from grpo_jax.types import Batch, Prompts, Rollout, Scores

POLICY = count_model()
LENGTHS = (2, 3, 4, 6, 8, 10, 12, 15, 20)
"""The lengths of the article's figure; all are padded to the longest, so that they share a compiled function."""
CHUNK = 2**13
"""Completions that are differentiated at a time."""
OPTIMISED = {"xla_backend_optimization_level": 3, "xla_cpu_use_fusion_emitters": True}
"""There is enough to compute here to be worth it, also where tests have XLA compile in a hurry."""


class Instance(NamedTuple):
    """The three policies, each ``{"intercept": a, "slope": b}``.

    Attributes:
        policy: whose gradient is taken.
        reference: what it is pulled to.
        sampler: what the completions are drawn from.
    """

    policy: dict
    reference: dict
    sampler: dict


class Moments(NamedTuple):
    """What is known of one completion's gradient by (a, b), for C configurations.

    Attributes:
        mean: expected gradient ``[C, 2]``.
        variance: trace of the covariance ``[C]``.
    """

    mean: np.ndarray
    variance: np.ndarray


def parameters(intercept: float, slope: float) -> dict[str, np.float64]:
    return {"intercept": np.float64(intercept), "slope": np.float64(slope)}


A, B = parameters(0.118, 0.353), parameters(-0.176, 0.105)
"""Policy and reference: a least-squares reconstruction from the published figure, not the authors' numbers."""


def moments(configurations: Sequence[Configuration], instance: Instance, length: int) -> Moments:
    """Sums over every completion of ``length`` tokens."""
    first = np.zeros((len(configurations), 2))
    second = np.zeros(len(configurations))
    for start in range(0, 2**length, CHUNK):
        index = np.arange(start, min(start + CHUNK, 2**length))
        tokens = (index[:, None] >> np.arange(length)) & 1
        for probabilities, found in gradients(configurations, instance, tokens):
            first += np.einsum("n,cnd->cd", probabilities, found)
            second += np.einsum("n,cnd,cnd->c", probabilities, found, found)
    return Moments(first, second - np.sum(np.square(first), axis=1))


def gradients(
    configurations: Sequence[Configuration], instance: Instance, tokens: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the sampler's probability of each completion ``[n]`` and its gradients ``[C, n, 2]``, in chunks.

    Args:
        configurations: what is differentiated.
        instance: the policies.
        tokens: the completions ``[N, T]``, all of one length.
    """
    compiled = _compiled(tuple(each.objective for each in configurations))
    count, length = tokens.shape
    mask = np.broadcast_to(np.arange(LENGTHS[-1]) < length, (CHUNK, LENGTHS[-1]))
    for start in range(0, count, CHUNK):
        rows = tokens[start : start + CHUNK]
        padded = np.pad(rows, ((0, CHUNK - len(rows)), (0, LENGTHS[-1] - length))).astype(np.int32)
        with exactly():
            found = compiled(instance, padded, mask)
        yield np.asarray(found[0])[: len(rows)], np.asarray(found[1])[:, : len(rows)]


@functools.lru_cache
def _compiled(objectives: tuple[Objective, ...]) -> Callable:
    exact = any(each.needs_full_kl for each in objectives)

    def of_completions(instance: Instance, tokens, mask):
        ours = functools.partial(_score, tokens=tokens, mask=mask, reference=instance.reference if exact else None)
        sampled = _score(instance.sampler, tokens, mask).log_probs
        batch = Batch(
            mask=mask[:, None],
            rewards=jnp.zeros((CHUNK, 1)),
            old_log_probs=sampled,
            ref_log_probs=_score(instance.reference, tokens, mask).log_probs,
        )
        slopes = [_by_scores(each, ours(instance.policy), batch) for each in objectives]
        tangents = [
            jax.jvp(ours, (instance.policy,), (direction,))[1] for direction in (parameters(1, 0), parameters(0, 1))
        ]
        found = jnp.stack([jnp.stack([_along(slope, each) for each in tangents], axis=-1) for slope in slopes])
        return jnp.exp(jnp.sum(sampled, axis=(1, 2))), found

    return jax.jit(of_completions, compiler_options=OPTIMISED)


def _by_scores(objective: Objective, scores: Scores, batch: Batch) -> Scores:
    """Differentiates every completion's own loss; each is a group of one, and the objective their mean."""
    return jax.grad(lambda scores: CHUNK * objective(scores, batch, 1.0)[0])(scores)


def _along(slope: Scores, tangent: Scores):
    products = jax.tree.map(lambda x, y: jnp.sum(x * y, axis=(1, 2)), slope, tangent)
    return sum(jax.tree.leaves(products))


def _score(params: dict, tokens, mask, reference: dict | None = None) -> Scores:
    prompts = Prompts(jnp.zeros((CHUNK, 1), jnp.int32), jnp.ones((CHUNK, 1), bool))
    blank, finished = jnp.zeros((CHUNK, 1, LENGTHS[-1])), jnp.ones((CHUNK, 1), bool)
    rollout = Rollout(prompts, tokens[:, None], mask[:, None], blank, finished)
    return POLICY.score(params, rollout, 1.0, ref_params=reference)


def kl_gradients(policy: dict, reference: dict) -> tuple[np.ndarray, np.ndarray]:
    """Returns KL(policy || reference) of completions of 1, 2, .. tokens in nats ``[T]``, and its gradients ``[T, 2]``.

    The number of ones so far is all that a prefix matters for, so this takes O(T^2) and no list of completions.
    """
    with exactly():
        values, slopes = _kl(policy, reference)
    return np.asarray(values), np.stack([slopes["intercept"], slopes["slope"]], axis=1)


@jax.jit
def _kl(policy: dict, reference: dict):
    return _kl_by_length(policy, reference), jax.jacfwd(_kl_by_length)(policy, reference)


def _kl_by_length(policy: dict, reference: dict):
    """KL = sum_t sum_c P(c ones before t) KL(next token), for every length."""
    counts = jnp.arange(LENGTHS[-1])
    ours, theirs = (params["intercept"] + params["slope"] * counts for params in (policy, reference))
    one, zero = jax.nn.sigmoid(ours), jax.nn.sigmoid(-ours)
    local = one * (jax.nn.log_sigmoid(ours) - jax.nn.log_sigmoid(theirs))
    local += zero * (jax.nn.log_sigmoid(-ours) - jax.nn.log_sigmoid(-theirs))

    def step(reached, _):
        return reached * zero + jnp.roll(reached * one, 1).at[0].set(0), reached @ local

    return jnp.cumsum(jax.lax.scan(step, (counts == 0).astype(local.dtype), None, LENGTHS[-1])[1])
