"""What an advantage is, and how a plain function becomes one."""

from typing import NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from grpo_jax.advantages.group import Rewards, scorable, spread
from grpo_jax.statistics import masked


@runtime_checkable
class GroupAdvantage(Protocol):
    """Rewards of one group to advantages; the user's own, or one of this package."""

    def __call__(self, rewards: Rewards, mask: Bool[Array, "G"]) -> Float[Array, "G"]:
        """Returns the advantage of each member, 0 where masked.

        Args:
            rewards: rewards ``[G]``, or several of each member ``[G, K]``.
            mask: members that are valid and scorable ``[G]``.
        """
        ...


@runtime_checkable
class AcrossBatch(Protocol):
    """A second step that sees the advantages of all groups together."""

    def __call__(self, advantages: Float[Array, "P G"], mask: Bool[Array, "P G"]) -> Float[Array, "P G"]:
        """Returns the advantages that are trained on ``[P, G]``, 0 where masked."""
        ...


@runtime_checkable
class Spread(Protocol):
    """By how much the rewards of a group differ, as far as this advantage is concerned."""

    def __call__(self, rewards: Rewards, mask: Bool[Array, "G"]) -> Float[Array, ""]:
        """Returns a number ``[]`` that is 0 exactly where the group teaches nothing, else positive."""
        ...


class Advantage(NamedTuple):
    """How the rewards of a group become the weights of its members' log-probabilities.

    A group whose spread is 0, or with fewer than two scorable members, has advantage exactly 0 for everybody.

    Attributes:
        name: the factory and its hyperparameters.
        compute: rewards of one group to advantages; mapped over groups by ``vmap``.
        linear: whether ``compute(r + c) = compute(r) + compute(c)`` for any c ``[G]``: then, and only then, a KL
            return may be subtracted from the reward before it.
        reward_target: the gradient that ``mean_i A_i grad log pi_i`` follows on policy, in words.
        across_batch: what is done after ``compute`` to all groups together; None: nothing.
        spread: decides which groups are degenerate, from the raw rewards.
    """

    name: str
    compute: GroupAdvantage
    linear: bool
    reward_target: str
    across_batch: AcrossBatch | None = None
    spread: Spread = spread


def from_function(
    formula: GroupAdvantage,
    *,
    name: str | None = None,
    linear: bool = False,
    reward_target: str = "not declared",
    across_batch: AcrossBatch | None = None,
) -> Advantage:
    """Builds an advantage from a plain function of one group, which need not care about masked members.

    The function is given 0 in place of rewards that do not count, in float32 at least; whatever it returns for
    masked members, for equal rewards or for fewer than two members is replaced by exactly 0. An estimator that is
    meant to act on equal rewards (a fixed baseline) is built as ``Advantage(...)`` itself.

    Args:
        formula: ``(rewards [G], mask [G]) -> advantages [G]``.
        name: how it is called in logs and certificates; None: the function's own name.
        linear: see ``Advantage``. Declared, not checked.
        reward_target: see ``Advantage``. Declared; the oracle measures it.
        across_batch: see ``Advantage``.

    Returns:
        An advantage of one reward per member.

    Raises:
        ValueError: while tracing, if the function returns another shape than it was given.
    """
    called = name or getattr(formula, "__name__", type(formula).__name__)

    def compute(rewards: Float[Array, "G"], mask: Bool[Array, "G"]) -> Float[Array, "G"]:
        mask = scorable(rewards, mask)
        safe = masked(rewards, mask).astype(jnp.promote_types(rewards.dtype, jnp.float32))
        advantages = formula(safe, mask)
        if jnp.shape(advantages) != safe.shape:
            raise ValueError(
                f"advantage {called!r} returned shape {jnp.shape(advantages)} for rewards of shape {safe.shape}; "
                "return one advantage per member of the group"
            )
        return masked(advantages, mask & (spread(safe, mask) > 0))

    return Advantage(called, compute, linear, reward_target, across_batch)
