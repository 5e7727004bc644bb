"""What a policy is worth on held-out grids: success, what it fails by, and how far each agent is from the reference."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from experiments.path_planning import policy
from experiments.path_planning.training import Setting, bound_score
from grpo_jax.types import Params, Prompts

AGENT_KL = "kl_agent_{}"
"""Name of an agent's KL, by its number."""


def evaluation(setting: Setting) -> Callable[..., dict[str, Float[Array, ""]]]:
    """Builds ``(params, ref_params, grids, shortest, key) -> scalars by name``; consumes the key.

    ``shortest`` are the planner's steps on each grid ``[P]``. Of sampled episodes: success, collided, unfinished
    (shares that add up to 1); extra_steps, those of the successful episodes beyond the planner's; kl_agent_N, KL(pi||p)
    of each agent's actions in an episode, nats: the exact KL of each action's distribution, summed over the steps.
    success_likeliest is that of agents who always take their likeliest action.
    """

    def look(
        params: Params, ref_params: Params, grids: Prompts, shortest: Int[Array, " P"], key: Key[Array, ""]
    ) -> dict[str, Float[Array, ""]]:
        sampling, following = jax.random.split(key)
        decide = functools.partial(policy.logits, params)
        sampled = policy.play(decide, grids, setting.agents, setting.samples, setting.horizon, key=sampling)
        likeliest = policy.play(
            lambda seen: only_likeliest(decide(seen)), grids, setting.agents, 1, setting.horizon, key=following
        )
        won, finished = sampled.won, sampled.rollout.finished
        steps = jnp.sum(sampled.rollout.mask, axis=-1) / setting.agents
        found = {
            "success": jnp.mean(won),
            "success_likeliest": jnp.mean(likeliest.won),
            "collided": jnp.mean(finished & ~won),
            "unfinished": jnp.mean(~finished),
            "extra_steps": jnp.sum(steps - shortest[:, None], where=won) / jnp.maximum(jnp.sum(won), 1),
        }
        scores = bound_score(setting)(params, sampled.rollout, ref_params=ref_params)
        assert scores.full_kl is not None
        each = jnp.mean(jnp.sum(scores.full_kl.reshape(*won.shape, setting.horizon, -1), axis=2), axis=(0, 1))
        return found | {AGENT_KL.format(agent + 1): each[agent] for agent in range(setting.agents)}

    return jax.jit(look)


def only_likeliest(logits: Float[Array, "N A"]) -> Float[Array, "N A"]:
    """Returns logits that leave nothing but the likeliest action, or those that are alike."""
    return jnp.where(logits == jnp.max(logits, axis=-1, keepdims=True), 0.0, -1e9)
