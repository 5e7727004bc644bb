"""A policy trained in a learned model of its world, with the library's objective and nothing else of it."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key

import grpo_jax as gj
from experiments.world_model.world import (
    HORIZON,
    STARTS,
    Learned,
    behaviour,
    divergence,
    gained,
    returns,
    truth,
    visits,
    walk,
)


class Setting(NamedTuple):
    """Sizes.

    Attributes:
        episodes: data that a model is learned from.
        updates: of training.
        group: episodes of a start in each update, G.
        rate: learning rate of Adam.
    """

    episodes: int = 40
    updates: int = 300
    group: int = 32
    rate: float = 0.05


SMOKE = Setting(episodes=4, updates=3, group=4)
PENALTIES = ("model to truth", "model to model", "policy to reference")
"""What the penalty is on: KL(model || truth), KL(half of the data || other half), KL(pi || p)."""


def objective() -> gj.losses.Objective:
    """Builds the loss: leave-one-out advantages, and k1 as a return for the KL of the policy."""
    return gj.objective(
        advantage=gj.advantages.leave_one_out(),
        surrogate=gj.surrogates.reinforce(),
        reduction=gj.reductions.sequence_mean_of_token_sum(),
        kl=gj.kl.penalty(gj.kl.k1, placement="to_go"),
    )


def costs(penalty: str, learned: Learned) -> Float[Array, "C A"]:
    """Returns what a penalty costs for acting so in that cell, nats; the policy's own KL costs nothing here."""
    if penalty == "model to truth":
        return divergence(learned.dynamics, jnp.asarray(truth()))
    if penalty == "model to model":
        return divergence(*learned.halves)
    return jnp.zeros(learned.dynamics.shape[:2])


def trainer(setting: Setting) -> Callable[..., Float[Array, "C A"]]:
    """Builds ``(model [C, A, O], costs [C, A], beta, key) -> logits [C, A]``; consumes the key.

    It maximises, among episodes that the model dreams up, E[gain - sum of costs] - beta KL(pi || p), where p, the
    behaviour policy, is also where training starts.
    """
    loss, optimizer, starts = objective(), optax.adam(setting.rate), jnp.repeat(STARTS, setting.group)
    shape, reference = (len(STARTS), setting.group, HORIZON), jnp.log(jnp.asarray(behaviour()))

    def run(
        model: Float[Array, "C A O"], costs: Float[Array, "C A"], beta: Float[Array, ""], key: Key[Array, ""]
    ) -> Float[Array, "C A"]:
        def update(state: tuple, key: Key[Array, ""]) -> tuple[tuple, None]:
            logits, opt_state = state
            cells, actions, outcomes, going = walk(logits, model, starts, key=key)
            rewards = jnp.sum(_gains(cells, outcomes) - costs[cells, actions], axis=-1, where=going)
            batch = gj.Batch(
                mask=going.reshape(shape),
                rewards=rewards.reshape(shape[:2]),
                ref_log_probs=reference[cells, actions].reshape(shape),
            )

            def of(logits: Float[Array, "C A"]) -> Float[Array, ""]:
                log_probs = jax.nn.log_softmax(logits)[cells, actions]
                return loss(gj.Scores(log_probs.reshape(shape)), batch, beta)[0]

            change, opt_state = optimizer.update(jax.grad(of)(logits), opt_state)
            return (optax.apply_updates(logits, change), opt_state), None

        state = reference, optimizer.init(reference)
        return jax.lax.scan(update, state, jax.random.split(key, setting.updates))[0][0]

    return run


def _gains(cells: Array, outcomes: Array) -> Array:
    return jnp.asarray(gained())[cells, outcomes]


def looked(logits: Float[Array, "C A"], learned: Learned) -> dict[str, Float[Array, "..."]]:
    """Returns what a policy is worth, exactly.

    true_return and model_return: expected gain in the true world, and in the model of it. model_kl: KL(model || truth)
    of an episode in the model, nats. policy_kl: KL(pi || p) of an episode in the true world, nats; moved: the same at
    each step from each start ``[P, H]``.
    """
    real, policy = jnp.asarray(truth()), jax.nn.softmax(logits)
    wrong = jnp.einsum("phca,ca->p", visits(policy, learned.dynamics), divergence(learned.dynamics, real))
    each = divergence(policy, jnp.asarray(behaviour()))
    moved = jnp.einsum("phca,c->ph", visits(policy, real), each)
    return {
        "true_return": returns(policy, real),
        "model_return": returns(policy, learned.dynamics),
        "model_kl": jnp.mean(wrong),
        "policy_kl": jnp.mean(jnp.sum(moved, axis=-1)),
        "moved": moved,
    }
