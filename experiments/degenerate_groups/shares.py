"""What groups of equal rewards are worth in training: how many there are, and how much of the gradient is theirs.

Completions are sampled and scored in a function that no objective enters, so that it is compiled once.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

import grpo_jax as gj
from experiments.small_scale import sums
from experiments.small_scale.setting import Setting, over_seeds, sampler_of, score_of
from grpo_jax.losses import Objective
from grpo_jax.types import Batch, Params, Rollout

Sampled = tuple[Rollout, Batch]


@functools.lru_cache
def shares(objective: Objective, setting: Setting) -> Callable[..., dict[str, Array]]:
    """Builds the measures of every policy that is looked at, each on a batch of its own that is not trained on.

    Returns:
        ``(params [S, ...], snapshots [S, K, ...], keys [S], beta)`` to degenerate_groups: share of the groups, and
        gradient_share: norm of the gradient of their terms over the norm of the gradient of all terms; ``[S, 1 + K]``.
    """
    share, sampled = gj.updates.gradient_share(score_of(setting), objective), sampled_of(setting)

    def one(params: Params, snapshots: Params, batches: Sampled, beta: Float[Array, ""]) -> Float[Array, " K"]:
        policies = looked_at(params, snapshots)
        return jax.lax.map(lambda now: share(now[0], *now[1], beta), (policies, batches))

    measured = over_seeds(one, setting)

    def measure(params: Params, snapshots: Params, keys: Array, beta: Float[Array, ""]) -> dict[str, Array]:
        batches, equal = sampled(params, snapshots, keys)
        return {"degenerate_groups": equal, "gradient_share": measured(params, snapshots, batches, beta)}

    return measure


@functools.lru_cache
def sampled_of(setting: Setting) -> Callable[..., tuple[Sampled, Array]]:
    """Returns the compiled function that samples what is measured on, and the share of groups of equal rewards."""
    score, sample = score_of(setting), sampler_of(setting, setting.group)

    def at(params: Params, ref_params: Params, trained: sums.Problems, key: Key[Array, ""]) -> tuple[Sampled, Array]:
        choosing, sampling = jax.random.split(key)
        asked = sums.draw(trained, 2 * setting.prompts, key=choosing)
        rollout = sample(params, asked.prompts, key=sampling)
        rewards = sums.is_right(asked, rollout)
        batch = Batch(rollout.mask, rewards, ref_log_probs=score(ref_params, rollout).log_probs)
        equal = jnp.max(rewards, axis=1) == jnp.min(rewards, axis=1)
        return (rollout, batch), jnp.mean(equal, dtype=jnp.float32)

    def one(params: Params, snapshots: Params, key: Key[Array, ""], trained: sums.Problems) -> tuple[Sampled, Array]:
        policies = looked_at(params, snapshots)
        keys = jax.random.split(key, jax.tree.leaves(policies)[0].shape[0])
        return jax.lax.map(lambda now: at(now[0], params, trained, now[1]), (policies, keys))

    compiled, trained = over_seeds(one, setting), sums.problems("sums", False)
    return lambda params, snapshots, keys: compiled(params, snapshots, keys, trained)


def looked_at(params: Params, snapshots: Params) -> Params:
    """Returns the policies of all evaluations, the first before training ``[1 + K, ...]``."""
    return jax.tree.map(lambda first, later: jnp.concatenate([first[None], later]), params, snapshots)
