"""What a whole composition promises: the KL term's target, and what everything around it does to that."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from grpo_jax.kl import Target
from grpo_jax.losses import Degenerate, Group, Objective, Reduction
from grpo_jax.losses.declaration import SCALES
from grpo_jax.oracle.instance import exactly


class Declaration(NamedTuple):
    """What a composition promises, in units of the exact gradients.

    Attributes:
        target: the gradient of its KL term, with the reason where it is none.
        scale: what reduction and advantage multiply it by.
        reward: the factor on the gradient of E[R]; None: no promise, or of something else.
        other_utility: whether the reward is promised to follow something else than a known multiple of E[R].
    """

    target: Target
    scale: float
    reward: float | None
    other_utility: bool


def declaration(certified: Objective, group_size: int, off_policy: bool) -> Declaration:
    """Returns what an objective declares, with what its advantage and its rule for degenerate groups do to it.

    Args:
        certified: the objective.
        group_size: members of a group, G.
        off_policy: whether another policy than the current one samples.
    """
    parts = certified.parts
    target = certified.off_policy_target if off_policy else certified.target
    words = parts.advantage.reward_target
    factor = SCALES.get(words, lambda size: None)(group_size)
    scale = _scale(parts.reduction)
    rescored = parts.mismatch is not None or parts.off_policy is not None
    if parts.kl is not None and parts.kl.sequence_cost is not None:
        scale *= 1.0 if factor is None else factor
    # A weight below 1 leaves the reward's gradient alone only where it is that of groups without one.
    shaped = parts.degenerate.shape is not None or _weight(parts.degenerate) != 1
    corrected = not off_policy or (parts.surrogate.corrects == "sequence" and not rescored)
    exact = corrected and not shaped and parts.reduction.constant_denominator and parts.entropy_coefficient == 0
    rewarded = None if factor is None or not exact else factor * _scale(parts.reduction)
    return Declaration(target, scale, rewarded, exact and factor is None and "not declared" != words)


def undeclared(certified: Objective) -> tuple[str, ...]:
    """Returns what an objective should declare and does not, a sentence each.

    A KL term that pulls nowhere says so by its constant weight on the score; a bare ``Target()`` says nothing.
    """
    said = []
    if certified.parts.kl is not None and Target() in (certified.target, certified.off_policy_target):
        said.append(f"KL term '{certified.parts.kl.name}' has no target")
    if certified.parts.advantage.reward_target == "not declared":
        said.append(f"advantage {certified.parts.advantage.name} has no reward_target")
    return tuple(said)


@functools.lru_cache(maxsize=256)
def _scale(reduction: Reduction) -> float:
    with jax.ensure_compile_time_eval(), exactly():  # also where it is asked for while something is being compiled
        one = jnp.ones((1, 1, 1))
        return float(reduction.reduce(one, one > 0).compute())


@functools.lru_cache(maxsize=256)
def _weight(rule: Degenerate) -> float:
    """The weight of a group whose rewards differ by very little."""
    with jax.ensure_compile_time_eval():
        rewards = jnp.array([0.0, 1e-6 + rule.tolerance])
        spread = jnp.max(rewards) - jnp.min(rewards)
        return float(rule.weight(Group(rewards, rewards >= 0, spread, jnp.asarray(False))))
