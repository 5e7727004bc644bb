"""Groups whose members all got the same reward: detection, and what their terms of the loss are worth.

Such a group has advantage 0 but, with beta > 0, still a KL gradient. That gradient is the regulariser, not a defect, so
the default keeps it; every other choice changes the objective, and says how. Detection takes max - min of the raw task
rewards, never a standard deviation (which is float residue for rewards such as 0.7) and never rewards shaped by KL.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Denominator = Literal["all", "live"]


class Group(NamedTuple):
    """What a rule sees of one group.

    Attributes:
        rewards: raw task rewards of the members ``[G]``; 0 where not scorable.
        mask: scorable members ``[G]``.
        spread: max - min of the raw task rewards, scalar.
        degenerate: whether spread <= tolerance or fewer than two members are scorable, scalar.
    """

    rewards: Float[Array, " G"]
    mask: Bool[Array, " G"]
    spread: Float[Array, ""]
    degenerate: Bool[Array, ""]


class Degenerate(NamedTuple):
    """A rule for degenerate groups.

    Attributes:
        name: for messages and certificates.
        weight: ``Group -> []`` in [0, 1], multiplied into every term of the group's tokens, KL and entropy included.
            Where it is 0 the gradient is exactly 0.
        counts_dead: whether tokens of groups with weight 0 stay in the reduction's denominator.
        shape: ``(Group, entropy [G T], mask [G T]) -> advantages [G T]`` for degenerate groups; None: they keep 0.
        tolerance: spread up to which a group counts as degenerate, in units of the reward.
        price: what the rule does to the objective, in words.
        reweights: whether a group's weight is ever not 1, so that the KL term follows another objective; a rule has
            to say, since what an objective declares depends on it.
    """

    name: str
    weight: Callable[[Group], Array]
    counts_dead: bool
    shape: Callable[[Group, Array, Array], Array] | None
    tolerance: float
    price: str
    reweights: bool


def keep(tolerance: float = 0.0) -> Degenerate:
    """Builds the rule that changes nothing: degenerate groups have advantage 0 and their KL gradient.

    Args:
        tolerance: spread of rewards up to which a group is *reported* as degenerate, >= 0.
    """
    _check_tolerance("keep", tolerance)
    return Degenerate("keep", lambda group: jnp.ones_like(group.spread), True, None, tolerance, "none", False)


def mask(denominator: Denominator = "all", tolerance: float = 0.0) -> Degenerate:
    """Builds the rule that drops degenerate groups: gradient exactly 0, KL and entropy included.

    The KL term is then averaged only over prompts of middling difficulty, which biases its gradient (by 13.0 % with
    ``all`` and 14.4 % with ``live`` in the five-action instance of the tests).

    Args:
        denominator: ``all`` divides by the tokens of every group, so live groups are untouched; ``live`` by those of
            live groups only, so that live groups weigh more the fewer they are.
        tolerance: spread of rewards up to which a group is dropped, >= 0.

    Raises:
        ValueError: unknown denominator or negative tolerance.
    """
    _check_tolerance("mask", tolerance)
    counts_dead = _counts_dead("mask", denominator)
    price = "the KL term no longer sees prompts whose completions all score alike"
    return Degenerate(f"mask({denominator})", _live, counts_dead, None, tolerance, price, True)


def smooth(scale: float = 1e-3, denominator: Denominator = "all", tolerance: float = 0.0) -> Degenerate:
    """Builds the weight tanh(std / scale): exactly 0 for identical rewards, 1 for well separated ones.

    A shifted sigmoid, ``sigmoid((std - 1e-6) * 1000)``, is 0.49975 at std 0 and masks nothing.

    Args:
        scale: std of the rewards at which the weight is 0.76, > 0, in units of the reward.
        denominator: as in `mask`.
        tolerance: spread up to which the weight is exactly 0, >= 0.

    Raises:
        ValueError: scale not positive, unknown denominator or negative tolerance.
    """
    _check_tolerance("smooth", tolerance)
    counts_dead = _counts_dead("smooth", denominator)
    if not 0 < scale < float("inf"):
        raise ValueError(f"degenerate.smooth: scale is {scale}; it must be > 0, in units of the reward")

    def weight(group: Group) -> Float[Array, ""]:
        count = jnp.maximum(jnp.sum(group.mask), 1)
        centred = jnp.where(group.mask, group.rewards - jnp.sum(group.rewards, where=group.mask) / count, 0)
        std = jnp.sqrt(jnp.sum(jnp.square(centred)) / count)
        return jnp.where(group.degenerate, 0, jnp.tanh(std / scale))

    price = "the KL term is weighted by how much a prompt's rewards differ"
    return Degenerate(f"smooth({scale:g}, {denominator})", weight, counts_dead, None, tolerance, price, True)


def entropy_shaped(alpha: float = 0.1, threshold: float = 0.5, tolerance: float = 0.0) -> Degenerate:
    """Builds RL-ZVP: degenerate groups get token advantages from the detached entropy H_t.

    All right: A_t = alpha H_t. All wrong: A_t = -alpha (max_k H_k - H_t), k over the completion's tokens. It is added
    to the group's own advantage, which holds a KL return in the reward, and the rewards' small differences where the
    tolerance is positive.

    Args:
        alpha: advantage per nat of entropy, > 0.
        threshold: a group whose (equal) rewards exceed it counts as all right, in units of the reward.
        tolerance: spread of rewards up to which a group is degenerate, >= 0.

    Raises:
        ValueError: alpha not positive or negative tolerance.

    References: RL-ZVP (arXiv 2509.21880), eq. 5.
    """
    _check_tolerance("entropy_shaped", tolerance)
    if not 0 < alpha < float("inf"):
        raise ValueError(f"degenerate.entropy_shaped: alpha is {alpha}; it must be > 0, advantage per nat")

    def shape(group: Group, entropy: Float[Array, "G T"], tokens: Bool[Array, "G T"]) -> Float[Array, "G T"]:
        best = jnp.max(group.rewards, where=group.mask, initial=-jnp.inf)
        highest = jnp.max(entropy, axis=-1, where=tokens, initial=0.0, keepdims=True)
        right, wrong = alpha * entropy, -alpha * (highest - entropy)
        shaped = jnp.where(best > threshold, right, wrong)
        return jnp.where(group.degenerate & group.mask[:, None] & tokens, shaped, 0)

    price = "degenerate groups are trained on their entropy"
    name = f"entropy_shaped({alpha:g})"
    return Degenerate(name, lambda group: jnp.ones_like(group.spread), True, shape, tolerance, price, False)


def _live(group: Group) -> Float[Array, ""]:
    return jnp.where(group.degenerate, 0, 1).astype(group.spread.dtype)


def _counts_dead(rule: str, denominator: str) -> bool:
    if denominator not in ("all", "live"):
        raise ValueError(f"degenerate.{rule}: denominator is {denominator!r}; choose 'all' or 'live'")
    return denominator == "all"


def _check_tolerance(rule: str, tolerance: float) -> None:
    if not tolerance >= 0:
        raise ValueError(f"degenerate.{rule}: tolerance is {tolerance}; it must be >= 0, in units of the reward")
