"""The policies that the claims are computed on, and the KL terms by name; what is expensive is kept."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax import advantages, kl
from grpo_jax.losses import Objective, log_prob_gradient, objective, reductions, surrogates
from grpo_jax.models import position_tabular, prefix_tabular
from grpo_jax.oracle import (
    Enumerated,
    Expectation,
    Groups,
    Instance,
    Record,
    Tables,
    enumerated,
    exactly,
    expectation,
    judge,
    multisets,
    random_instance,
    tables,
)
from grpo_jax.oracle.exact import QUICK
from grpo_jax.types import Batch, Scores

TERMS: dict[str, Callable[[], kl.Penalty]] = {
    "k1 loss": lambda: kl.penalty(kl.k1, "loss", allow_biased=True),
    "k1 reward": lambda: kl.penalty(kl.k1, "reward"),
    "k1 to go": lambda: kl.penalty(kl.k1, "to_go"),
    "k2 loss, sequence": lambda: kl.penalty(kl.k2, "loss", "sequence"),
    "k2 loss": lambda: kl.penalty(kl.k2, "loss"),
    "k3 loss, sequence": lambda: kl.penalty(kl.k3, "loss", "sequence"),
    "k3 loss": lambda: kl.penalty(kl.k3, "loss"),
    "k3 reward": lambda: kl.penalty(kl.k3, "reward", allow_biased=True),
    "k3 both": lambda: kl.penalty(kl.k3, "both"),
    "k3 both, beta/2": lambda: kl.penalty(kl.mixture((0.5, kl.k3)), "both"),
    "full loss": lambda: kl.full_vocabulary("loss"),
    "full reward": lambda: kl.full_vocabulary("reward", allow_biased=True),
    "full both": lambda: kl.full_vocabulary("both"),
    "k3 loss, token ratio": lambda: kl.penalty(kl.k3, "loss", importance=kl.importance.token()),
    "k3 loss, sequence ratio": lambda: kl.penalty(kl.k3, "loss", importance=kl.importance.sequence()),
    "k1 loss, sequence ratio": lambda: kl.penalty(kl.k1, "loss", importance=kl.importance.sequence()),
    "k1 loss, causal ratio": lambda: kl.penalty(kl.k1, "loss", importance=kl.importance.causal()),
}
"""KL terms of sums over tokens, with beta 1."""
NEAR = 0.05
"""How far the reference is moved away from the policy, in standard deviations of the logits."""
REDUCTION = reductions.sequence_mean_of_token_sum()


@functools.cache
def built(name: str) -> Objective:
    """The objective with one of `TERMS`, in which nothing but that term decides what it follows."""
    surrogate = surrogates.sequence_importance_weighted()
    return objective(advantages.leave_one_out(), surrogate, REDUCTION, kl=TERMS[name]())


@functools.cache
def listed() -> Enumerated:
    """Every completion of three tokens, up to three long, token 0 ending: free logits at every prefix."""
    return enumerated(prefix_tabular(3, 3), 3, (0,))


@functools.cache
def drawn(seed: int, off_policy: bool = False, step: float | None = None) -> Tables:
    """A random policy, reference, sampler and rewards; with a step the reference is the policy moved by that much."""
    instance = random_instance(listed(), seed)
    if step is not None:
        moved = lambda own, other: np.asarray(own) + step * np.asarray(other)  # noqa: E731
        instance = instance._replace(ref_params=jax.tree.map(moved, instance.params, instance.ref_params))
    return tables(instance, off_policy)


@functools.cache
def mean_of(name: str, seed: int, off_policy: bool = False, step: float | None = None) -> Expectation:
    """The exact expected gradient of a term, over all groups of two."""
    known = drawn(seed, off_policy, step)
    return expectation(built(name), known, multisets(len(known.mask), 2), reduction=REDUCTION)


def record(name: str, seed: int, off_policy: bool = False, step: float | None = None) -> Record:
    """What the oracle says of a term."""
    found = mean_of(name, seed, off_policy, step)
    return judge(built(name), drawn(seed, off_policy, step), found, 2, off_policy)


def instances(seeds: tuple[int, ...]) -> tuple[int, ...]:
    """Seeds of several instances for each seed, for what differs from one instance to another."""
    return tuple(5 * seed + number for seed in seeds for number in range(5))


def variance_ratios(one: str, other: str, seeds: tuple[int, ...], step: float | None = None) -> list[float]:
    """The variance of one term's gradient over that of another, on-policy, one a seed."""
    return [record(one, seed, step=step).variance / record(other, seed, step=step).variance for seed in seeds]


def distances(name: str, target: str, seeds: tuple[int, ...], off_policy: bool = False) -> np.ndarray:
    """Relative distances of a term's expected gradient to a target, one a seed."""
    return np.array([distance(record(name, seed, off_policy), target) for seed in seeds])


def distance(found: Record, target: str) -> float:
    """The relative distance of a term's expected gradient to a target that is not itself 0."""
    value = found.distances[target]
    assert value is not None
    return value


def relative(difference: np.ndarray, target: np.ndarray) -> float:
    """The norm of the first relative to that of the second."""
    return float(np.linalg.norm(difference) / np.linalg.norm(target))


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    """The cosine of the angle between two vectors."""
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


def single(logits, reference, sampler=None, rewards=None) -> Tables:
    """Completions of one token: the policy's, the reference's and the sampler's logits ``[V]``, rewards ``[V]``."""
    size = len(logits)
    policy, ref, old = (
        {"logits": np.array(each, float)[None, None]} for each in (logits, reference, sampler or logits)
    )
    known = np.zeros(size) if rewards is None else np.array(rewards, float)
    return tables(Instance(_one_token(size), policy, ref, old, known), sampler is not None)


@functools.cache
def _one_token(size: int) -> Enumerated:
    return enumerated(position_tabular(size, 1), 1, ())


@functools.cache
def three_actions() -> Tables:
    """Three actions, sampled by an older policy; the reference is (.5, .3, .2)."""
    return single((0.2, -0.3, 0.5), np.log([0.5, 0.3, 0.2]), (0.6, -0.1, 0.0))


@functools.cache
def five_actions() -> Tables:
    """Five actions with 0/1 rewards, succeeding with probability .62652, at a KL of .00506 from the reference."""
    policy, reference = (0.96, -0.26, -1.08, -1.17, -0.46), (1.10, -0.12, -0.71, -0.83, -0.48)
    return single(policy, reference, rewards=(1, 0, 0, 1, 0))


class Fours(NamedTuple):
    """All groups of four of the five actions, without regard to order.

    Attributes:
        groups: the groups.
        probabilities: of each ``[M]``.
        live: whether its rewards differ ``[M]``.
        varied: whether its actions differ ``[M]``.
    """

    groups: Groups
    probabilities: np.ndarray
    live: np.ndarray
    varied: np.ndarray


@functools.cache
def fours() -> Fours:
    """The groups of four of `five_actions`."""
    known, groups = five_actions(), multisets(5, 4)
    probabilities = np.prod(known.probabilities[groups.members], axis=1) * groups.multiplicity
    live, varied = (np.ptp(values, axis=1) > 0 for values in (known.rewards[groups.members], groups.members))
    return Fours(groups, probabilities, live, varied)


def full_kl(known: Tables) -> np.ndarray:
    """The exact KLs of all next tokens on a completion's way, summed ``[N]``."""
    assert known.scores.full_kl is not None
    return np.sum(known.scores.full_kl, axis=1)


def as_batch(known: Tables, members: np.ndarray) -> tuple[Scores, Batch]:
    """On-policy scores and batch of groups ``members [P, G]``; to be made under `exactly`."""
    take = lambda values: jnp.asarray(np.asarray(values)[members])  # noqa: E731
    batch = Batch(take(known.mask), take(known.rewards), ref_log_probs=take(known.ref_log_probs))
    return Scores(take(known.scores.log_probs), take(known.scores.entropy)), batch


@functools.cache
def compiled_gradient(objective: Objective) -> Callable:
    """Compiles ``(scores, batch, beta) -> [P, G, T]``, the gradient of the loss by every token's log-prob."""
    return jax.jit(functools.partial(log_prob_gradient, objective), compiler_options=QUICK)


def advantages_of(advantage: advantages.Advantage, rewards: np.ndarray, dtype: type = np.float64) -> np.ndarray:
    """The advantages ``[G]`` of one group without masked members."""
    compute = jax.jit(advantage.compute, compiler_options=QUICK)
    with exactly():
        return np.asarray(compute(jnp.asarray(rewards, dtype), jnp.ones(len(rewards), bool)))


def advantages_used(objective: Objective, known: Tables, members: np.ndarray, beta: float) -> np.ndarray:
    """The advantages ``[P, G]`` that an objective with the plain surrogate trains on, of one-token completions."""
    with exactly():
        slope = compiled_gradient(objective)(*as_batch(known, members), beta)
    return -np.asarray(slope)[..., 0] * members.size
