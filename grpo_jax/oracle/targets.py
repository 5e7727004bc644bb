"""The objectives that a KL term may follow, written out as sums over all completions and differentiated.

The tree of prefixes gives every next-token distribution from the completions' log-probabilities alone: no estimator, no
importance weight and no score function stands between these gradients and the objectives' definitions.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from grpo_jax.oracle.space import Space

NAMES = (
    "reverse",
    "local_reverse",
    "forward",
    "local_forward",
    "sampler_local_reverse",
    "sampler_local_forward",
    "length",
)
"""The gradients that a KL term may follow, as in `grpo_jax.kl.Target`."""


def values(
    log_probs: Float[Array, "N T"],
    ref_log_probs: Float[Array, "N T"],
    behaviour_log_probs: Float[Array, "N T"],
    rewards: Float[Array, " N"] | Float[Array, "N K"],
    space: Space,
) -> Float[Array, " targets"]:
    """Returns the value of each objective of `NAMES`, then -E[R] of the mean reward.

    Args:
        log_probs: of the current policy; carries the gradient.
        ref_log_probs: of the reference.
        behaviour_log_probs: of the policy that samples.
        rewards: of each completion; of several the mean counts.
        space: all completions.
    """
    policy, reference = jnp.sum(log_probs, axis=1), jnp.sum(ref_log_probs, axis=1)
    probabilities = jnp.exp(policy)
    n, t = space.edges.T
    ours, theirs = log_probs[n, t], ref_log_probs[n, t]
    prefixes = int(space.edge_nodes.max()) + 1

    def visits(log_probs):
        through = jnp.where(space.mask, jnp.exp(jnp.sum(log_probs, axis=1))[:, None], 0)
        reached = jnp.zeros(prefixes, log_probs.dtype).at[np.where(space.mask, space.nodes, 0)].add(through)
        return jax.lax.stop_gradient(reached)[space.edge_nodes]

    local_reverse = jnp.exp(ours) * (ours - theirs)
    local_forward = jnp.exp(theirs) * (theirs - ours)
    own, sampler = visits(log_probs), visits(behaviour_log_probs)
    lengths = np.sum(space.mask, axis=1)
    single = rewards if rewards.ndim == 1 else jnp.mean(rewards, axis=1)
    return jnp.stack(
        [
            jnp.sum(probabilities * (policy - reference)),
            jnp.sum(own * local_reverse),
            jnp.sum(jnp.exp(reference) * (reference - policy)),
            jnp.sum(own * local_forward),
            jnp.sum(sampler * local_reverse),
            jnp.sum(sampler * local_forward),
            jnp.sum(probabilities / lengths),
            -jnp.sum(probabilities * single),
        ]
    )


def gradients(
    log_probs: Callable,
    flat: Float[Array, " D"],
    ref_log_probs: Float[Array, "N T"],
    behaviour_log_probs: Float[Array, "N T"],
    rewards: Float[Array, " N"] | Float[Array, "N K"],
    space: Space,
) -> dict[str, Float[Array, " D"]]:
    """Returns the gradient of each objective by the parameters.

    Args:
        log_probs: ``parameters [D] -> [N, T]``.
        flat: the parameters.
        ref_log_probs: of the reference.
        behaviour_log_probs: of the policy that samples.
        rewards: of each completion.
        space: all completions.
    """

    def of_parameters(flat):
        return values(log_probs(flat), ref_log_probs, behaviour_log_probs, rewards, space)

    rows = jax.jacrev(of_parameters)(flat)
    return dict(zip((*NAMES, "reward"), rows, strict=True))
