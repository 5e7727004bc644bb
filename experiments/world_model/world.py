"""A grid with ice on it, models that know of no ice, and everything about both exactly.

Axis letters: C cells (row by row), A actions and O outcomes, which are the same five moves (stay, up, down, left,
right): an action says where one wants to go, its outcome where one goes. H steps of an episode.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from experiments.path_planning.environment import ACTIONS, destinations

ROWS = (".....", "S.O..", "S.~.G", "S.O..", ".....")
"""S starts, each of them a prompt; G the goal, O pits, which end an episode; ~ ice."""
CELLS = len(ROWS) ** 2
LEADS = np.asarray(destinations(jnp.zeros((len(ROWS), len(ROWS)), bool)))
ENDS = np.array([{"G": 1.0, "O": -1.0}.get(cell, 0.0) for cell in "".join(ROWS)])
"""What it is worth to get into a cell; elsewhere than at an end nothing."""
STEP = -0.05
"""What every step is worth."""
STARTS = np.array([cell for cell, kind in enumerate("".join(ROWS)) if kind == "S"])
HORIZON = 14
PRIOR = 0.1
"""Observations of every outcome that a model imagines to have made before the first one."""
FIRM, ICE = 0.1, 0.8
"""Chances to slip."""


class Learned(NamedTuple):
    """What was learned from the data of one seed.

    Attributes:
        dynamics: chances of every outcome ``[C, A, O]``, of all data.
        halves: the same, once of the odd and once of the even episodes ``[2, C, A, O]``.
    """

    dynamics: Float[Array, "C A O"]
    halves: Float[Array, "2 C A O"]


def truth() -> Float[np.ndarray, "C A O"]:
    """Returns the true chances: one goes where one wants or, slipping, anywhere."""
    slips = np.array([ICE if cell == "~" else FIRM for cell in "".join(ROWS)])[:, None, None]
    return (1 - slips) * np.eye(ACTIONS)[None] + slips / ACTIONS


def behaviour() -> Float[np.ndarray, "C A"]:
    """Returns the chances of the policy that gathered the data, which is also the reference: mostly to the right."""
    return np.broadcast_to(np.array([0.1, 0.2, 0.2, 0.1, 0.4]), (CELLS, ACTIONS)).copy()


def learned(episodes: int, *, key: Key[Array, ""]) -> Learned:
    """Gathers data with the behaviour policy in the true world and learns from it; consumes the key.

    ``(observed + prior) / (number of observations + A prior)`` for each action, whatever the cell: that the ground is
    different somewhere is what such a model cannot say.

    Args:
        episodes: an even number; their starts in turn.
    """
    cells, actions, outcomes, going = walk(
        jnp.log(behaviour()), jnp.asarray(truth()), jnp.resize(STARTS, (episodes,)), key=key
    )
    seen = jnp.zeros((2, CELLS, ACTIONS, ACTIONS))
    half = jnp.broadcast_to((jnp.arange(episodes) % 2)[:, None], cells.shape)
    seen = seen.at[half, cells, actions, outcomes].add(going.astype(jnp.float32))
    return Learned(_chances(seen.sum(axis=0)), _chances(seen))


def _chances(counts: Float[Array, "*halves C A O"]) -> Float[Array, "*halves C A O"]:
    pooled = jnp.sum(counts, axis=-3, keepdims=True) + PRIOR
    return jnp.broadcast_to(pooled / jnp.sum(pooled, axis=-1, keepdims=True), counts.shape)


def walk(
    logits: Float[Array, "C A"], dynamics: Float[Array, "C A O"], starts: Int[Array, " B"], *, key: Key[Array, ""]
) -> tuple[Int[Array, "B H"], Int[Array, "B H"], Int[Array, "B H"], Array]:
    """Samples episodes; returns cells, actions and outcomes, and which steps were taken before the end.

    Args:
        logits: of the policy.
        dynamics: of the world, or of a model of it.
        starts: first cell of each.
        key: consumed.
    """
    leads, final = jnp.asarray(LEADS), jnp.asarray(ENDS != 0)

    def body(cells: Int[Array, " B"], key: Key[Array, ""]) -> tuple[Int[Array, " B"], tuple]:
        acting, going = jax.random.split(key)
        actions = jax.random.categorical(acting, logits[cells])
        outcomes = jax.random.categorical(going, jnp.log(dynamics[cells, actions]))
        following = jnp.where(final[cells], cells, leads[cells, outcomes])
        return following, (cells, actions, outcomes, ~final[cells])

    taken = jax.lax.scan(body, starts, jax.random.split(key, HORIZON))[1]
    cells, actions, outcomes, going = (each.T for each in taken)
    return cells, actions, outcomes, going


def divergence(first: Float[Array, "*axes O"], second: Float[Array, "*axes O"]) -> Float[Array, "*axes"]:
    """Returns KL(first || second) over the last axis, nats; both are positive everywhere."""
    return jnp.sum(first * jnp.log(first / second), axis=-1)


def gained() -> Float[np.ndarray, "C O"]:
    """Returns what a step gains, by where one stood and how one went."""
    return ENDS[LEADS] + STEP


def visits(policy: Float[Array, "C A"], dynamics: Float[Array, "C A O"]) -> Float[Array, "P H C A"]:
    """Returns the chance of acting so in that cell at that step, from every start; ended episodes act no more."""
    going = jnp.asarray(ENDS == 0, jnp.float32)
    leads = jax.nn.one_hot(jnp.asarray(LEADS), CELLS)

    def body(at: Float[Array, "P C"], _) -> tuple[Float[Array, "P C"], Float[Array, "P C A"]]:
        acted = (at * going[None])[..., None] * policy[None]
        return jnp.einsum("pca,cao,cod->pd", acted, dynamics, leads), acted

    first = jax.nn.one_hot(jnp.asarray(STARTS), CELLS)
    return jnp.moveaxis(jax.lax.scan(body, first, length=HORIZON)[1], 0, 1)


def returns(policy: Float[Array, "C A"], dynamics: Float[Array, "C A O"]) -> Float[Array, ""]:
    """Returns the exact expected gain of an episode, over all starts."""
    gains = jnp.einsum("cao,co->ca", dynamics, jnp.asarray(gained()))
    return jnp.mean(jnp.einsum("phca,ca->p", visits(policy, dynamics), gains))


def best() -> float:
    """Returns the largest gain that any policy has in the true world, which may act by the step as well."""
    dynamics, following = truth(), np.zeros(CELLS)
    for _ in range(HORIZON):
        worth = gained() + np.where(ENDS == 0, following, 0)[LEADS]
        following = np.einsum("cao,co->ca", dynamics, worth).max(axis=-1)
    return float(following[STARTS].mean())
