"""Three rewards of one completion, of which the third is against the first."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from experiments.small_scale import sums
from experiments.small_scale.evaluation import world
from experiments.small_scale.setting import Setting, over_seeds, sampler_of
from experiments.small_scale.sums import Problems
from grpo_jax import Rollout
from grpo_jax.losses import Objective
from grpo_jax.types import Params

NAMES = ("right", "form", "brevity")


def three(asked: Problems, rollout: Rollout) -> Float[Array, "P G K"]:
    """Rewards a completion for its answer, its form and its brevity.

    right: 1 for the right completion. form: 1 for at least two tokens, all digits, and then the end. brevity: the share
    of the budget of ``MAX_TOKENS`` that is left over, in [0, 1); a sum of 100 or more has one digit more than the slip.
    """
    lengths = jnp.sum(rollout.mask, axis=-1)
    digits = jnp.sum(rollout.mask & (rollout.tokens < 10), axis=-1)
    ended = jnp.any(rollout.mask & (rollout.tokens == sums.END), axis=-1)
    form = ended & (digits == lengths - 1) & (digits >= 2)
    brevity = 1 - lengths / sums.MAX_TOKENS
    return jnp.stack([sums.is_right(asked, rollout), form.astype(jnp.float32), brevity], axis=-1)


def on_held_out(objective: Objective, setting: Setting) -> Callable[..., dict[str, Array]]:
    """Builds what measures each reward on sampled completions of held-out problems: ``reward_NAME``."""
    asked, compiled = world(setting).held_out["sums"], _compiled(setting)

    def measure(params: Params, snapshots: Params, keys: Array, beta: Array) -> dict[str, Array]:
        found = compiled(params, snapshots, keys, asked)
        return {f"reward_{name}": found[..., place] for place, name in enumerate(NAMES)}

    return measure


@functools.lru_cache
def _compiled(setting: Setting) -> Callable:
    sample = sampler_of(setting, 4)

    def one(params: Params, snapshots: Params, key: Key[Array, ""], asked: Problems) -> Float[Array, "N K"]:
        def at(now: Params) -> Float[Array, " K"]:
            return jnp.mean(three(asked, sample(now, asked.prompts, key=key)), axis=(0, 1))

        everything = jax.tree.map(lambda first, later: jnp.concatenate([first[None], later]), params, snapshots)
        return jax.lax.map(at, everything)

    return over_seeds(one, setting)
