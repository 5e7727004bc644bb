"""Training on fixed data: all seeds and all betas of one form in one compiled function, with exact evaluation."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

import grpo_jax as gj
from experiments.offline import mdp
from experiments.offline.mdp import Data, World
from grpo_jax.losses import Objective


class Plan(NamedTuple):
    """How long is trained, and on how much.

    Attributes:
        seeds: each with a world and data of its own.
        sizes: groups of the data.
        updates: each on all of the data.
        every: updates between two evaluations.
        learning_rate: Adam's, in units of a logit.
    """

    seeds: int = 16
    sizes: tuple[int, ...] = (4, 16, 64)
    updates: int = 300
    every: int = 30
    learning_rate: float = 0.03


SMOKE = Plan(seeds=2, sizes=(2,), updates=4, every=2)
MEASURES = ("gain", "promised", "kl", "regret", "effective")


def material(plan: Plan, groups: int) -> tuple[World, Data]:
    """Draws the world and the data of every seed ``[seeds, ...]``."""
    worlds = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(mdp.world(seed) for seed in range(plan.seeds)))
    keys = jnp.stack([jax.random.fold_in(jax.random.key(seed), groups) for seed in range(plan.seeds)])
    return worlds, jax.jit(jax.vmap(lambda known, key: mdp.sample(known, groups, key=key)))(worlds, keys)


def trained(objective: Objective, plan: Plan, worlds: World, data: Data, betas: tuple[float, ...]) -> dict:
    """Trains from the behaviour policy and evaluates before and after every so many updates.

    Returns:
        By name ``[betas, seeds, 1 + updates / every]``; values in standard deviations of the behaviour's return. gain:
        true value over that of the behaviour policy. promised: the same as the exactly weighted data has it. kl: KL to
        the behaviour policy, nats per trajectory. regret: how far gain - beta kl is below the best. effective: share of
        the trajectories that carry the weighted estimate, (sum w)^2 / (N sum w^2).
    """
    one = lambda known, given, beta: _run(objective, plan, known, given, beta)  # noqa: E731
    several = jax.jit(jax.vmap(jax.vmap(one, (0, 0, None)), (None, None, 0)))
    return {name: np.asarray(each) for name, each in several(worlds, data, jnp.asarray(betas)).items()}


def _run(objective: Objective, plan: Plan, known: World, data: Data, beta: Float[Array, ""]) -> dict:
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(plan.learning_rate))
    theirs = _chosen(known.behaviour, data)
    batch = gj.Batch(jnp.ones(theirs.shape, bool), data.returns, old_log_probs=theirs, ref_log_probs=theirs)

    def loss(logits: Float[Array, "T S A"]) -> Float[Array, ""]:
        log_probs = jax.nn.log_softmax(logits)
        exact = jnp.sum(jnp.exp(log_probs) * (log_probs - known.behaviour), axis=-1)[jnp.arange(mdp.STEPS), data.states]
        return objective(gj.Scores(_chosen(log_probs, data), full_kl=exact), batch, beta)[0]

    def update(carry: tuple, _: None) -> tuple:
        logits, state = carry
        updates, state = optimizer.update(jax.grad(loss)(logits), state)
        return (optax.apply_updates(logits, updates), state), None

    def block(carry: tuple, _: None) -> tuple:
        carry, _ = jax.lax.scan(update, carry, None, plan.every)
        return carry, jax.nn.log_softmax(carry[0])

    start = (known.behaviour, optimizer.init(known.behaviour))
    _, policies = jax.lax.scan(block, start, None, plan.updates // plan.every)
    policies = jnp.concatenate([known.behaviour[None], policies])
    return jax.lax.map(lambda policy: _judged(known, data, theirs, policy, beta), policies)


def _chosen(log_probs: Float[Array, "T S A"], data: Data) -> Float[Array, "P G T"]:
    """Returns the log-probabilities of the actions that were taken."""
    return log_probs[jnp.arange(mdp.STEPS), data.states, data.actions]


def _judged(known: World, data: Data, theirs: Array, policy: Float[Array, "T S A"], beta: Float[Array, ""]) -> dict:
    ours, base = mdp.worth(known, policy), mdp.worth(known, known.behaviour)
    best = mdp.worth(known, mdp.optimum(known, beta))
    weights = jnp.exp(jnp.sum(_chosen(policy, data) - theirs, axis=-1))
    advantages = jax.vmap(gj.advantages.leave_one_out().compute)(data.returns, jnp.ones(weights.shape, bool))
    found = (
        ours.value - base.value,
        jnp.mean(weights * advantages),
        ours.kl,
        best.value - beta * best.kl - (ours.value - beta * ours.kl),
        jnp.sum(weights) ** 2 / (weights.size * jnp.sum(weights**2)),
    )
    return dict(zip(MEASURES, found, strict=True))
