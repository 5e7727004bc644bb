"""The warm start: a policy that knows the right way and the wrong one of all kinds of problems."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

import grpo_jax as gj
from experiments.small_scale import sums
from experiments.small_scale.setting import Setting, over_seeds, policy_of, score_of
from experiments.small_scale.sums import Problems
from grpo_jax.types import Params

SHARES = {"sums": 0.3, "longer": 0.4, "operators": 0.15, "format": 0.15}
"""Of the demonstrations that the warm start imitates."""


def warm_started(
    setting: Setting, seeds: int, parts: dict[str, Problems] | None = None, shares: dict[str, float] = SHARES
) -> Params:
    """Imitates demonstrations, some of which forget every carry; what comes out is start and reference of every run.

    Args:
        setting: see there.
        seeds: how many; seed s is the same whatever their number.
        parts: problems by kind; None: of sums.
        shares: of the demonstrations, by kind.

    Returns:
        Parameters with a leading axis ``[S]``.
    """
    policy, start = policy_of(setting), gj.updates.adam(setting.imitation_rate, warmup_steps=50)
    imitate = gj.updates.warm_start(score_of(setting), start)
    parts = parts or {kind: sums.problems(kind, False, 20_000) for kind in sums.KINDS}

    def one(params: Params, key: Key[Array, ""], parts: dict[str, Problems]) -> Params:
        def step(state, key):
            shown = sums.mixture(parts, shares, setting.demonstrations, setting.slips, key=key)
            return imitate.step(state, shown)[0], None

        return jax.lax.scan(step, imitate.init(params), jax.random.split(key, setting.imitated))[0].params

    init = jax.jit(lambda key: policy.init(key=key))
    firsts, seconds = zip(*(jax.random.split(jax.random.key(seed)) for seed in range(seeds)), strict=True)
    params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(init, firsts))
    return over_seeds(one, setting)(params, jnp.stack(seconds), parts)
