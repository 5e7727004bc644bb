"""A policy small enough to list, with a reference, a sampler and rewards, and everything of it that objectives read."""

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from grpo_jax.models import Policy, prefix_tabular
from grpo_jax.oracle import targets
from grpo_jax.oracle.space import LIMIT, Space, completions
from grpo_jax.types import Params, Prompts, Rollout, Scores

JACOBIAN_LIMIT = 2**30
"""Most bytes of the Jacobian of all scores by all parameters."""
REWARD_LEVELS = (0.0, 0.3, 1.0)
"""Random rewards: few levels, so that degenerate groups occur; uneven, so that no normalisation is exact by chance."""


@dataclass(frozen=True, eq=False)
class Enumerated:
    """A policy with the list of all its completions; instances of it share compiled functions.

    Attributes:
        policy: the policy.
        space: its completions.
        rollout: the same as one group of N completions of one prompt.
        temperature: divides the logits of policy, reference and sampler alike.
    """

    policy: Policy
    space: Space
    rollout: Rollout
    temperature: float


class Instance(NamedTuple):
    """Everything random about one certificate.

    Attributes:
        enumerated: the policy and its completions.
        params: of the current policy.
        ref_params: of the reference.
        behaviour_params: of the policy that samples, off-policy.
        rewards: of each completion ``[N]``, or several ``[N, K]``.
    """

    enumerated: Enumerated
    params: Params
    ref_params: Params
    behaviour_params: Params
    rewards: np.ndarray


class Tables(NamedTuple):
    """What objectives read of every completion, float64, and how it depends on the D parameters.

    Attributes:
        scores: of the current policy ``[N, T]`` each.
        ref_log_probs: of the reference ``[N, T]``.
        behaviour_log_probs: of the policy that samples ``[N, T]``.
        mask: the completions' tokens ``[N, T]``.
        rewards: ``[N]`` or ``[N, K]``.
        probabilities: of each completion under the policy that samples ``[N]``.
        weights: probability under the current policy over that under the sampler ``[N]``.
        jacobian: of log-probs, entropies and exact KLs, in this order ``[N, 3 T, D]``.
        targets: the exact gradient of each known objective ``[D]``, by name; "reward" is that of -E[R].
    """

    scores: Scores
    ref_log_probs: np.ndarray
    behaviour_log_probs: np.ndarray
    mask: np.ndarray
    rewards: np.ndarray
    probabilities: np.ndarray
    weights: np.ndarray
    jacobian: np.ndarray
    targets: dict[str, np.ndarray]


def exactly() -> ExitStack:
    """Returns a context in which JAX computes in float64, on the CPU."""
    stack = ExitStack()
    stack.enter_context(jax.enable_x64(True))
    stack.enter_context(jax.default_device(jax.local_devices(backend="cpu")[0]))
    return stack


def enumerated(
    policy: Policy | None = None,
    max_tokens: int = 3,
    end_ids: tuple[int, ...] = (0,),
    *,
    prompt: Sequence[int] = (0,),
    temperature: float = 1.0,
    limit: int = LIMIT,
) -> Enumerated:
    """Lists all completions of a policy.

    Args:
        policy: any policy; None: free logits at every prefix of three tokens.
        max_tokens: longest completion, T.
        end_ids: tokens that end a completion; none: all have ``max_tokens``.
        prompt: token ids of the one prompt.
        temperature: divides the logits, > 0.
        limit: most completions to list.

    Raises:
        ValueError: too many completions, with their number and the alternative.
    """
    policy = prefix_tabular(3, max_tokens) if policy is None else policy
    space = completions(policy.vocabulary_size, max_tokens, end_ids, limit=limit)
    tokens = jnp.asarray(prompt, jnp.int32)[None]
    rollout = Rollout(
        Prompts(tokens, jnp.ones(tokens.shape, bool)),
        jnp.asarray(space.tokens)[None],
        jnp.asarray(space.mask)[None],
        jnp.zeros((1, *space.mask.shape), jnp.float32),
        jnp.ones((1, len(space.mask)), bool),
    )
    return Enumerated(policy, space, rollout, temperature)


def random_instance(listed: Enumerated, seed: int = 0, rewards: int = 1) -> Instance:
    """Draws policy, reference, sampler and rewards.

    Args:
        listed: the policy and its completions.
        seed: what is drawn; the same seed gives the same instance.
        rewards: how many rewards each completion has, K; with 1 they are ``[N]``.

    Returns:
        Three draws of the policy's own ``init`` and rewards out of `REWARD_LEVELS`, none of which is constant.

    Raises:
        ValueError: a negative seed.
    """
    if seed < 0:
        raise ValueError(f"oracle: seed is {seed}; give 0 or more")
    with exactly():
        keys = jax.random.split(jax.random.key(seed), 3)
        params, ref_params, behaviour_params = (
            jax.tree.map(_float64, listed.policy.init(key=key)) for key in (keys[0], keys[1], keys[2])
        )
    draws = np.random.default_rng(seed)
    count = len(listed.space.mask)
    columns = [draws.permutation(np.resize(REWARD_LEVELS, count)) for _ in range(rewards)]
    drawn = columns[0] if rewards == 1 else np.stack(columns, axis=1)
    return Instance(listed, params, ref_params, behaviour_params, drawn)


def tables(instance: Instance, off_policy: bool = False) -> Tables:
    """Evaluates an instance once for all objectives.

    Args:
        instance: the instance.
        off_policy: whether ``behaviour_params`` sample, else the current policy does.

    Raises:
        ValueError: the Jacobian would not fit into `JACOBIAN_LIMIT`, rewards do not fit, or a score is not finite.
    """
    listed = instance.enumerated
    if len(instance.rewards) != len(listed.space.mask):
        raise ValueError(f"oracle: {len(instance.rewards)} rewards for {len(listed.space.mask)} completions")
    with exactly():
        policies = [instance.params, instance.ref_params]
        policies.append(instance.behaviour_params if off_policy else instance.params)
        policies = [jax.tree.map(_float64, params) for params in policies]
        check_jacobian(listed, policies[0])
        fields = _evaluation(listed)(*policies, np.asarray(instance.rewards, np.float64))
        found = Tables(*jax.tree.map(np.asarray, fields))
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(found)):
        raise ValueError("oracle: a log-probability of this policy is not finite; every completion must be possible")
    return found


def check_jacobian(listed: Enumerated, params: Params) -> None:
    """Raises ValueError where the derivatives of all scores by all parameters would not fit into memory."""
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    entries = 3 * listed.space.mask.size * size
    if 8 * entries > JACOBIAN_LIMIT:
        raise ValueError(
            f"oracle: {len(listed.space.mask):,} completions of {listed.space.mask.shape[1]} tokens by {size:,} "
            f"parameters make a Jacobian of {8 * entries / 2**30:.1f} GiB, more than {JACOBIAN_LIMIT / 2**30:g}; take "
            "a smaller policy, or estimate by Monte Carlo from samples: grpo_jax.oracle.certify_sampled"
        )


def _float64(leaf):
    return jnp.asarray(leaf, jnp.float64)


@functools.lru_cache(maxsize=64)
def _evaluation(listed: Enumerated) -> Callable:
    score = functools.partial(listed.policy.score, rollout=listed.rollout, temperature=listed.temperature)
    mask = listed.space.mask

    def evaluate(params: Params, ref_params: Params, behaviour_params: Params, rewards) -> tuple:
        flat, unravel = ravel_pytree(params)

        def stacked(flat):
            scores = score(unravel(flat), entropy=True, ref_params=ref_params)
            return jnp.stack([scores.log_probs[0], scores.entropy[0], scores.full_kl[0]])

        ref, behaviour = (score(other).log_probs[0].astype(flat.dtype) for other in (ref_params, behaviour_params))
        values = stacked(flat)
        return (
            Scores(*values),
            ref,
            behaviour,
            jnp.asarray(mask),
            rewards,
            jnp.exp(jnp.sum(behaviour, axis=1)),
            jnp.exp(jnp.sum(values[0] - behaviour, axis=1)),
            jnp.moveaxis(_jacobian(stacked, flat), 1, 0).reshape(len(mask), -1, flat.size),
            targets.gradients(lambda flat: stacked(flat)[0], flat, ref, behaviour, rewards, listed.space),
        )

    return jax.jit(evaluate)


def _jacobian(function: Callable, point):
    """The Jacobian, forwards or backwards, a few directions at a time."""
    shape = jax.eval_shape(function, point).shape
    outputs = int(np.prod(shape))
    if point.size <= outputs:
        columns = jax.lax.map(
            lambda direction: jax.jvp(function, (point,), (direction,))[1],
            jnp.eye(point.size, dtype=point.dtype),
            batch_size=64,
        )
        return jnp.moveaxis(columns, 0, -1)
    values, pull_back = jax.vjp(function, point)
    rows = jax.lax.map(
        lambda direction: pull_back(direction.reshape(shape))[0], jnp.eye(outputs, dtype=values.dtype), batch_size=64
    )
    return rows.reshape(*shape, point.size)
