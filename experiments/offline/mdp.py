"""A small Markov decision process in which every policy is evaluated exactly, and fixed data from a behaviour policy.

Axes: S states, A actions, T steps, P groups, G trajectories of a group, which share their first state.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

STATES, ACTIONS, STEPS, GROUP = 6, 3, 5, 16
_SUCCESSORS = 2
_SHARPNESS = 1.5


class World(NamedTuple):
    """Dynamics, rewards and the policy that the data comes from.

    Attributes:
        successor: probability of the next state ``[S, A, S]``.
        rewards: of each step ``[S, A]``, in standard deviations of the behaviour policy's return.
        start: probability of the first state ``[S]``.
        behaviour: log-probabilities ``[T, S, A]``.
    """

    successor: Float[Array, "S A S"]
    rewards: Float[Array, "S A"]
    start: Float[Array, " S"]
    behaviour: Float[Array, "T S A"]


class Data(NamedTuple):
    """Trajectories of the behaviour policy.

    Attributes:
        states: ``[P, G, T]``.
        actions: ``[P, G, T]``.
        returns: sums of rewards ``[P, G]``.
    """

    states: Int[Array, "P G T"]
    actions: Int[Array, "P G T"]
    returns: Float[Array, "P G"]


class Worth(NamedTuple):
    """What a policy is worth, exactly: scalars.

    Attributes:
        value: expected return.
        kl: KL to the behaviour policy of whole trajectories, nats.
    """

    value: Float[Array, ""]
    kl: Float[Array, ""]


def world(seed: int) -> World:
    """Draws a world: two successors of each state and action, normal rewards, a behaviour policy with favourites.

    References:
        Archibald et al. 1995 for such random processes ("Garnet").
    """
    drawn = np.random.default_rng(seed)
    successor = np.zeros((STATES, ACTIONS, STATES))
    for state, action in np.ndindex(STATES, ACTIONS):
        chosen = drawn.choice(STATES, _SUCCESSORS, replace=False)
        successor[state, action, chosen] = drawn.dirichlet(np.ones(_SUCCESSORS))
    logits = jnp.asarray(_SHARPNESS * drawn.standard_normal((STEPS, STATES, ACTIONS)), jnp.float32)
    rewards, start = drawn.standard_normal((STATES, ACTIONS)), np.full(STATES, 1 / STATES)
    given = [jnp.asarray(each, jnp.float32) for each in (successor, rewards, start)]
    made = World(given[0], given[1], given[2], jax.nn.log_softmax(logits))
    return made._replace(rewards=made.rewards / deviation(made))


def sample(known: World, groups: int, *, key: Key[Array, ""]) -> Data:
    """Samples ``GROUP`` trajectories of the behaviour policy from each of some first states. Consumes the key."""
    first, rest = jax.random.split(key)
    starts = jax.random.categorical(first, jnp.log(known.start), shape=(groups, 1))
    states = jnp.broadcast_to(starts, (groups, GROUP))

    def step(state: Int[Array, "P G"], given: tuple) -> tuple:
        log_probs, key = given
        acting, moving = jax.random.split(key)
        action = jax.random.categorical(acting, log_probs[state])
        following = jax.random.categorical(moving, jnp.log(known.successor[state, action]))
        return following, (state, action, known.rewards[state, action])

    _, (states, actions, rewards) = jax.lax.scan(step, states, (known.behaviour, jax.random.split(rest, STEPS)))
    return Data(jnp.moveaxis(states, 0, -1), jnp.moveaxis(actions, 0, -1), jnp.sum(rewards, axis=0))


def worth(known: World, log_probs: Float[Array, "T S A"]) -> Worth:
    """Returns value and KL of a policy, by dynamic programming."""

    def step(later: Worth, given: tuple) -> tuple:
        ours, theirs = given
        probabilities = jnp.exp(ours)
        value = jnp.sum(probabilities * (known.rewards + known.successor @ later.value), axis=1)
        kl = jnp.sum(probabilities * (ours - theirs + known.successor @ later.kl), axis=1)
        return Worth(value, kl), None

    end = Worth(jnp.zeros(STATES), jnp.zeros(STATES))
    first, _ = jax.lax.scan(step, end, (log_probs, known.behaviour), reverse=True)
    return Worth(known.start @ first.value, known.start @ first.kl)


def optimum(known: World, beta: Float[Array, ""]) -> Float[Array, "T S A"]:
    """Returns the policy with the largest value - beta KL; log-probabilities, by dynamic programming.

    pi(a) is behaviour(a) exp(q(a) / beta) up to a constant, and the best action alone at beta 0.
    """
    temperature = jnp.maximum(beta, 1e-4)

    def step(later: Float[Array, " S"], theirs: Float[Array, "S A"]) -> tuple:
        scaled = theirs + (known.rewards + known.successor @ later) / temperature
        return temperature * jax.nn.logsumexp(scaled, axis=1), jax.nn.log_softmax(scaled)

    return jax.lax.scan(step, jnp.zeros(STATES), known.behaviour, reverse=True)[1]


def deviation(known: World) -> Float[Array, ""]:
    """Returns the standard deviation of the behaviour policy's return, by dynamic programming."""

    def step(later: tuple, theirs: Float[Array, "S A"]) -> tuple:
        mean, square = (known.successor @ each for each in later)
        probabilities = jnp.exp(theirs)
        squares = known.rewards**2 + 2 * known.rewards * mean + square
        return (jnp.sum(probabilities * (known.rewards + mean), 1), jnp.sum(probabilities * squares, 1)), None

    (mean, square), _ = jax.lax.scan(step, (jnp.zeros(STATES), jnp.zeros(STATES)), known.behaviour, reverse=True)
    return jnp.sqrt(known.start @ square - (known.start @ mean) ** 2)
