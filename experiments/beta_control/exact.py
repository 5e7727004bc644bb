"""The same rules on a policy that is enumerated and trained without samples, so that nothing is left to chance.

A policy of free logits that follows the natural gradient of E[r] - beta KL(pi||p) stays on one line: pi is proportional
to p exp(c r), and c' = speed (1 - beta c). With beta held during an update this is solved exactly; where beta stays, c
goes to 1 / beta, the optimum, with the time constant 1 / (speed beta).
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from experiments.beta_control.rules import COMPLETIONS, TARGET, one_of
from experiments.fixed_points.training import LISTED, instance
from grpo_jax.kl.controllers import Controller

SPEED = 0.1
"""Natural-gradient time of an update: near the target's beta some 25 updates are one time constant."""
AT_ONCE = 1e4
"""So fast that the policy is at its optimum after every update."""
FARTHEST = 1e4
"""Of the tilt c; a policy that far is all but deterministic."""


class Worlds(NamedTuple):
    """Problems: completions with their probability under the reference, their rewards and their lengths.

    Attributes:
        log_probs: of the reference ``[W, N]``.
        rewards: in (0, 1) ``[W, N]``.
        lengths: tokens ``[N]``.
    """

    log_probs: Float[Array, "W N"]
    rewards: Float[Array, "W N"]
    lengths: Float[Array, " N"]


def worlds(count: int) -> Worlds:
    """Draws problems whose best completion is at least three targets away: -log p(best) >= 3 TARGET."""
    found, seed, score = [], 0, jax.jit(lambda params: LISTED.policy.score(params, LISTED.rollout, 1.0).log_probs)
    while len(found) < count:
        drawn = instance(seed)
        log_probs = np.sum(np.asarray(score(jax.tree.map(jnp.float32, drawn.ref_params)))[0], axis=1)
        if -log_probs[np.argmax(drawn.rewards)] >= 3 * TARGET:
            found.append((log_probs, drawn.rewards))
        seed += 1
    log_probs, rewards = (jnp.asarray(np.stack(each), jnp.float32) for each in zip(*found, strict=True))
    return Worlds(log_probs, rewards, jnp.asarray(np.sum(LISTED.space.mask, axis=1), jnp.float32))


def tilted(log_probs: Float[Array, " N"], rewards: Float[Array, " N"], tilt: Float[Array, ""]) -> Float[Array, " N"]:
    """Returns log-probabilities of the policy proportional to p exp(c r)."""
    return jax.nn.log_softmax(log_probs + tilt * (rewards - jnp.max(rewards)))


def moved(tilt: Array, beta: Array, speed: Array, rewarded: Array) -> Array:
    """Returns c after one update: c' = speed (rewarded - beta c) for a unit of time, beta of either sign."""
    rate = jnp.clip(speed * beta, -50, 1e6)
    near = jnp.abs(rate) < 1e-4
    passed = jnp.where(near, 1 - rate / 2, -jnp.expm1(-rate) / jnp.where(near, 1, rate))
    return jnp.clip(tilt * jnp.exp(-rate) + speed * rewarded * passed, -FARTHEST, FARTHEST)


def simulation(rules: Mapping[str, Controller], steps: int, idle: int = 0, lost: int | None = None) -> Callable:
    """Builds the training of every problem under every rule, each from the reference.

    Args:
        rules: by name; all fed one statistic.
        steps: updates.
        idle: updates before there is any reward to learn from; the controller is fed the KL, 0, in the meantime.
        lost: update whose KL is not finite where it reaches the controller; None: none.

    Returns:
        ``(worlds, speed) -> {name: {"kl", "reward", "beta": [W, steps]}}``: the KL in nats per completion and the
        expected reward before each update, and beta in it.
    """
    chosen = one_of(tuple(rules.values()))
    per_token = chosen.statistic == "nats_per_token"

    def one(number, log_probs, rewards, lengths, speed):
        def step(carry, time):
            tilt, state = carry
            beta = chosen.beta(state)
            ours = tilted(log_probs, rewards, tilt)
            chance = jnp.exp(ours)
            kl = jnp.sum(chance * (ours - log_probs))
            fed = kl / (chance @ lengths) if per_token else kl
            fed = fed if lost is None else jnp.where(time == lost, jnp.nan, fed)
            tilt = moved(tilt, beta, speed, (time >= idle).astype(jnp.float32))
            return (tilt, chosen.update(state, fed, float(COMPLETIONS))), (kl, chance @ rewards, beta)

        start = (jnp.float32(0), chosen.init()._replace(number=number))
        return jax.lax.scan(step, start, jnp.arange(steps))[1]

    over_worlds = jax.vmap(one, (None, 0, 0, None, None))
    compiled = jax.jit(jax.vmap(over_worlds, (0, None, None, None, None)))

    def run(given: Worlds, speed: float) -> dict[str, dict[str, np.ndarray]]:
        found = compiled(jnp.arange(len(rules)), *given, jnp.float32(speed))
        kls, rewards, betas = (np.asarray(each) for each in found)
        return {name: {"kl": kls[row], "reward": rewards[row], "beta": betas[row]} for row, name in enumerate(rules)}

    return run
