"""Where training must end, from the declared target alone: closed forms and recursions over the tree of prefixes.

NumPy, a root search and the definition of each target; nothing of the library, no gradient and no step.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

Completion = tuple[int, ...]
"""Its tokens, the end token included."""


class Problem(NamedTuple):
    """A tree of prefixes with a reference at every prefix and a reward at every leaf.

    Attributes:
        reference: next-token distribution ``[V]`` of every prefix.
        rewards: of every completion.
        beta: strength of the KL term.
    """

    reference: Mapping[Completion, np.ndarray]
    rewards: Mapping[Completion, float]
    beta: float


def predicted(problem: Problem, target: str) -> dict[Completion, float]:
    """Returns the probability of each completion at the stationary point of -E[R] + beta * target.

    Args:
        problem: the tree.
        target: in the words of ``Target.name``; one of the four that hold the policy anywhere.
    """
    whole = {"reverse": tilted, "forward": harmonic}
    if target in whole:
        names = list(problem.rewards)
        reference = np.array([through(problem.reference, name) for name in names])
        rewards = np.array([problem.rewards[name] for name in names])
        return dict(zip(names, whole[target](reference, rewards, problem.beta), strict=True))
    return prefix_by_prefix(problem, {"local_reverse": tilted, "local_forward": harmonic}[target])


def tilted(reference: np.ndarray, rewards: np.ndarray, beta: float) -> np.ndarray:
    """Returns p exp(R / beta) / Z, where -E[R] + beta KL(pi||p) is least."""
    weights = reference * np.exp((rewards - np.max(rewards)) / beta)
    return weights / np.sum(weights)


def harmonic(reference: np.ndarray, rewards: np.ndarray, beta: float) -> np.ndarray:
    """Returns beta p / (lambda - R), where -E[R] + beta KL(p||pi) is least; lambda makes it sum to one.

    The sum falls from infinity just above max R to less than one at max R + beta; halving finds the place.
    """
    # As the distance above max R, whose smallest values would be lost beside the reward itself.
    gaps, low, high = np.max(rewards) - rewards, 0.0, beta
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.sum(beta * reference / (middle + gaps)) > 1 else (low, middle)
    return beta * reference / (high + gaps)


def prefix_by_prefix(problem: Problem, choose: Callable) -> dict[Completion, float]:
    """Returns the point where every prefix is at its own optimum, given what comes after it.

    A frozen prefix sees the expected *reward* of each token under the later policy but none of the KL that is still
    to come, which is what makes these points differ from the optimum. Leaves first, so there is nothing to iterate.
    """
    policy = {}

    def value(prefix: Completion) -> float:
        if prefix in problem.rewards:
            return problem.rewards[prefix]
        reference = problem.reference[prefix]
        returns = np.array([value((*prefix, token)) for token in range(len(reference))])
        policy[prefix] = choose(reference, returns, problem.beta)
        return float(policy[prefix] @ returns)

    value(())
    return {name: through(policy, name) for name in problem.rewards}


def through(policy: Mapping[Completion, np.ndarray], completion: Completion) -> float:
    """Returns the probability of a completion: the product along its path."""
    return float(np.prod([policy[completion[:t]][token] for t, token in enumerate(completion)]))
