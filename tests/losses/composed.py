"""Six objectives that between them use every kind of part, and one batch in which everything that can happen does."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax import advantages, kl
from grpo_jax.losses import degenerate, mismatch, objective, reductions, surrogates
from grpo_jax.testing import random_batch, random_scores
from grpo_jax.types import Batch, Scores

QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
OBJECTIVES = {
    "grpo": objective(
        advantages.standardised(),
        surrogates.clipped(),
        reductions.token_mean(),
        kl=kl.penalty(kl.k3, "loss"),
        entropy_coefficient=0.01,
    ),
    "rloo": objective(
        advantages.leave_one_out(),
        surrogates.importance_weighted(),
        reductions.sequence_mean_of_token_sum(),
        kl=kl.penalty(kl.k1, "reward"),
        degenerate=degenerate.mask("live"),
        entropy_coefficient=0.01,
    ),
    "dapo": objective(
        advantages.batch_whitened(),
        surrogates.dual_clipped(0.2, 0.28),
        reductions.constant_length(6),
        kl=kl.penalty(kl.k1, "to_go"),
        degenerate=degenerate.mask("all"),
        mismatch=mismatch.truncated_token(),
        off_policy=mismatch.off_policy_sequences(0.05),
    ),
    "gspo": objective(
        advantages.centred(),
        surrogates.gspo(0.1, 0.1),
        reductions.sequence_mean_of_token_mean(),
        kl=kl.penalty(kl.k2, "loss", "sequence", kl.importance.detached_sequence()),
        degenerate=degenerate.smooth(0.5),
    ),
    "exact": objective(
        advantages.separately_standardised([0.7, 0.3]),
        surrogates.sequence_importance_weighted(),
        reductions.token_mean(),
        kl=kl.full_vocabulary("both"),
        degenerate=degenerate.entropy_shaped(),
    ),
    "cispo": objective(
        advantages.max_rl(),
        surrogates.cispo(),
        reductions.sequence_mean_of_token_mean(),
        kl=kl.penalty(kl.k3, "loss", importance=kl.importance.causal()),
        degenerate=degenerate.mask("live"),
        mismatch=mismatch.masked_sequence(),
    ),
}
DEAD_RULE = {"rloo", "dapo", "cispo", "gspo"}
BETA = 0.3


def example(name, seed=0):
    """Scores and batch ``[4, 5, 6]``.

    Group 0 is whole; group 1 scored alike; in group 2 one member is invalid, one unscorable and one has no token; of
    group 3 only one member is valid. Completions have gaps, and one token was not recorded by the sampler.
    """
    keys = jax.random.split(jax.random.key(seed), 3)
    batch = random_batch(key=keys[0], prompts=4, group_size=5, tokens=6)
    scores = random_scores(batch, key=keys[1])
    rewards = np.array(jnp.abs(batch.rewards))
    rewards[1] = 0.7
    rewards[2, 1] = np.nan
    mask = np.array(batch.mask)
    mask[0] = True
    mask[0, 0, 2] = mask[1, 1, 0] = mask[2, 2] = False
    valid = np.ones((4, 5), bool)
    valid[2, 0] = False
    valid[3, 1:] = False
    recorded = np.array(batch.behaviour_log_probs)
    recorded[0, 0, 1] = np.nan
    rewards = jnp.asarray(rewards)
    if name == "exact":
        rewards = jnp.stack([rewards, jnp.where(rewards == 0.7, 0.2, jnp.roll(rewards, 2, axis=1) ** 2)], axis=-1)
        rewards = rewards.at[2, 1].set(jnp.nan)
    batch = batch._replace(
        mask=jnp.asarray(mask),
        valid=jnp.asarray(valid),
        rewards=rewards,
        task_rewards=rewards,
        behaviour_log_probs=jnp.asarray(recorded),
        advantages=jnp.full((4, 5), jnp.nan),
    )
    return scores, batch.check()


def floats(batch):
    """The fields of a batch that could carry a gradient."""
    kept = {name: getattr(batch, name) for name in ("rewards", "task_rewards", "old_log_probs", "ref_log_probs")}
    return kept | {"behaviour_log_probs": batch.behaviour_log_probs}


@functools.cache
def evaluated(name):
    """A compiled ``(scores, batch, beta) -> (loss, gradient by scores, gradient by the batch, metrics)``."""

    def evaluate(scores: Scores, batch: Batch, beta):
        def loss(scores, fields):
            return OBJECTIVES[name](scores, batch._replace(**fields), beta)

        (value, metrics), gradients = jax.value_and_grad(loss, (0, 1), has_aux=True)(scores, floats(batch))
        return value, *gradients, metrics

    return jax.jit(evaluate, compiler_options=QUICK)


@functools.cache
def accumulated(name):
    """A compiled ``(scores, prepared batch, beta) -> (gradients by the scores and by the batch, (Mean, metrics))``."""

    def accumulate(scores, batch, beta):
        def total(scores, fields):
            mean, metrics = OBJECTIVES[name].accumulate(scores, batch._replace(**fields), beta)
            return mean.total, (mean, metrics)

        return jax.grad(total, (0, 1), has_aux=True)(scores, floats(batch) | {"advantages": batch.advantages})

    return jax.jit(accumulate, compiler_options=QUICK)


@functools.cache
def result_of(name):
    """What ``evaluated`` gives for the example."""
    return evaluated(name)(*example(name), BETA)
