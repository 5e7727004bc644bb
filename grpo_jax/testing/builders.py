"""Small random inputs of an objective, and what must not matter in them."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from grpo_jax.types import Batch, Scores


def random_batch(
    *, key: Key[Array, ""], prompts: int = 3, group_size: int = 4, tokens: int = 5, spread: float = 0.3
) -> Batch:
    """Builds a batch with every given field filled in: ragged completions, distinct rewards, off-policy, a reference.

    Args:
        key: typed key, consumed.
        prompts: number of groups, P.
        group_size: completions per group, G.
        tokens: width of the completions, T.
        spread: standard deviation of each log-ratio, in nats.

    Returns:
        A batch ``[P, G, T]``. Every completion has at least one token, the first one of all has T; all members are
        valid; entries at masked positions are as random as the others; ``advantages`` are left to the objective.
    """
    shape = (prompts, group_size, tokens)
    draws = _host_generator(key)
    lengths = draws.integers(1, tokens, shape[:2], endpoint=True)
    lengths[0, 0] = tokens
    old = -draws.standard_exponential(shape)
    rewards = _array(draws.standard_normal(shape[:2]))
    return Batch(
        mask=jnp.asarray(np.arange(tokens) < lengths[..., None]),
        rewards=rewards,
        valid=jnp.asarray(np.ones(shape[:2], bool)),
        task_rewards=rewards,
        old_log_probs=_array(old),
        behaviour_log_probs=_array(old + 0.1 * spread * draws.standard_normal(shape)),
        ref_log_probs=_array(old + spread * draws.standard_normal(shape)),
    ).check()


def random_scores(batch: Batch, *, key: Key[Array, ""], spread: float = 0.3) -> Scores:
    """Builds the scores of a policy near the one that sampled the batch.

    Args:
        batch: a batch ``[P, G, T]``; without old log-probs they are drawn afresh.
        key: typed key, consumed.
        spread: standard deviation of the log-ratio to the old policy, in nats.

    Returns:
        Scores ``[P, G, T]`` with log-probs, entropy and full KL, the latter two positive.
    """
    draws = _host_generator(key)
    shape = batch.mask.shape
    old = -draws.standard_exponential(shape) if batch.old_log_probs is None else np.asarray(batch.old_log_probs)
    return Scores(
        log_probs=_array(old + spread * draws.standard_normal(shape)),
        entropy=_array(draws.standard_exponential(shape)),
        full_kl=_array(spread**2 * draws.standard_exponential(shape)),
    )


def poisoned(scores: Scores, batch: Batch, poison: float = float("nan")) -> tuple[Scores, Batch]:
    """Overwrites what must never be read: per-token fields where masked, and all fields of invalid members.

    Only ``advantages`` stay, since an objective fills them in itself.

    Args:
        scores: scores ``[P, G, T]``.
        batch: the batch ``[P, G, T]``.
        poison: what to write there.

    Returns:
        Scores and batch that every objective must treat exactly like the given ones.
    """
    keep = batch.mask if batch.valid is None else batch.mask & batch.valid[..., None]

    def spoil(values):
        return None if values is None else jnp.where(keep, values, poison)

    def spoil_member(values):
        if values is None or batch.valid is None:
            return values
        valid = batch.valid.reshape(batch.valid.shape + (1,) * (values.ndim - 2))
        return jnp.where(valid, values, poison)

    spoilt = batch._replace(
        rewards=spoil_member(batch.rewards),
        task_rewards=spoil_member(batch.task_rewards),
        old_log_probs=spoil(batch.old_log_probs),
        behaviour_log_probs=spoil(batch.behaviour_log_probs),
        ref_log_probs=spoil(batch.ref_log_probs),
    )
    log_probs = jnp.where(keep, scores.log_probs, poison)
    return Scores(log_probs, spoil(scores.entropy), spoil(scores.full_kl)), spoilt


def _host_generator(key: Key[Array, ""]) -> np.random.Generator:
    """Draws on the host, where a new shape costs no compilation."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def _array(values: np.ndarray) -> Array:
    """Returns float32 values on the default device."""
    return jnp.asarray(values, jnp.float32)
