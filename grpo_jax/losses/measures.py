"""What is reported of every batch, undivided, so that micro-batches merge to the numbers of the whole."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from grpo_jax.kl import k3
from grpo_jax.losses.surrogates import Surrogate
from grpo_jax.losses.terms import Terms, known_mean, per_completion, tokens_of_valid
from grpo_jax.ratios import bounded_exp, causal_ratio
from grpo_jax.statistics import Mean, Statistic, maximum_of, mean_of, moments_of
from grpo_jax.types import Batch, Scores


def measures(surrogate: Surrogate, scores: Scores, batch: Batch, terms: Terms) -> dict[str, Statistic]:
    """Returns the statistics of a batch by name.

    KL is estimated by k3, weighted by the causal ratio when an older policy sampled: unbiased and, unlike k1, hardly
    ever far from its mean. It is where a token is sampled that the policy has all but given up: at a log-ratio of -11
    that token reads e^11 - 12 nats, ``kl_token_max`` shows it, and the batch's mean says little. ``kl_per_sequence``
    and ``kl`` are in nats per completion, ``kl_per_token`` per token.

    Groups that exist count in every statistic whatever the rule for degenerate ones, except those of the ratio and the
    KL, which cover the groups that are trained.
    """
    exists = jnp.any(tokens_of_valid(batch), axis=-1)
    ratio = bounded_exp(terms.tokens.policy_ratios)
    clipped = per_completion(surrogate.is_clipped)(terms.log_probs, terms.old_log_probs, terms.advantages, terms.active)
    scorable = known_mean(batch.rewards)
    groups = jnp.any(exists, axis=-1)
    lengths = jnp.sum(batch.mask, axis=-1, dtype=ratio.dtype)
    found: dict[str, Statistic] = {
        "reward": moments_of(jnp.where(terms.member, scorable, 0), terms.member),
        "advantage": moments_of(terms.group_advantages, terms.member),
        "length": mean_of(lengths, exists),
        "degenerate": mean_of(terms.degenerate.astype(ratio.dtype), groups),
        "unscorable": mean_of((exists & ~terms.member).astype(ratio.dtype), exists),
        "ratio": mean_of(ratio, terms.active),
        "ratio_max": maximum_of(ratio, terms.active),
        "clipped": mean_of(clipped.astype(ratio.dtype), terms.active),
    }
    if scores.entropy is not None:
        found["entropy"] = mean_of(terms.entropy, terms.active)
    if batch.ref_log_probs is not None or scores.full_kl is not None:
        found |= _kl_measures(batch, terms)
    if batch.behaviour_log_probs is not None:
        found |= _mismatch_measures(batch, terms)
    return found


def _kl_measures(batch: Batch, terms: Terms) -> dict[str, Statistic]:
    weights = per_completion(causal_ratio)(terms.tokens.policy_ratios)
    exact = terms.tokens.full_kl if batch.ref_log_probs is None else None
    per_token = weights * (k3(terms.tokens.log_ratios) if exact is None else exact)
    per_token = jnp.where(terms.active, per_token, 0)
    per_sequence = jnp.sum(per_token, axis=-1)
    trained = jnp.any(terms.active, axis=-1)
    return {
        "kl": moments_of(per_sequence, trained),
        "kl_max": maximum_of(per_sequence, trained),
        "kl_token_max": maximum_of(per_token, terms.active),
        "kl_per_sequence": mean_of(per_sequence, trained),
        "kl_per_token": mean_of(per_token, terms.active),
    }


def _mismatch_measures(batch: Batch, terms: Terms) -> dict[str, Statistic]:
    record = batch.behaviour_log_probs
    assert record is not None
    known = terms.active & ~jnp.isnan(record)
    difference: Float[Array, "P G T"] = jnp.abs(terms.old_log_probs - jnp.where(known, record, 0))
    return {
        "mismatch": mean_of(difference, known),
        "mismatch_max": maximum_of(difference, known),
        "mismatch_weight": mean_of(terms.correction, terms.active),
        "unrecorded": Mean(
            jnp.sum(terms.active & ~known, dtype=difference.dtype), jnp.sum(terms.active, dtype=difference.dtype)
        ),
    }
