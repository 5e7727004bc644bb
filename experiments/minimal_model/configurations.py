"""What is compared: the article's four configurations and ours, each as the objective that the library trains with."""

from typing import NamedTuple

import jax.numpy as jnp

from grpo_jax import kl, objective, reductions, surrogates
from grpo_jax.advantages import Advantage
from grpo_jax.kl import importance
from grpo_jax.losses import Objective

UNCHANGED = Advantage("unchanged", lambda rewards, mask: jnp.where(mask, rewards, 0), True, "E[R]")
"""No baseline, as in the article: the reward itself. A library that trains has none; one that is compared needs it."""
CORRECTED = surrogates.sequence_importance_weighted()
"""Weighs a completion's return by pi(y) / mu(y); where the policy itself samples, it is plain REINFORCE."""


class Configuration(NamedTuple):
    """An objective whose gradient, at reward 0 and beta 1, is one sample of a KL gradient.

    Attributes:
        name: estimator, placement and what is special, as pictures and tables call it.
        objective: the objective; its targets say what it follows.
        published: how its columns in published.csv end; "" where the article has none.
    """

    name: str
    objective: Objective
    published: str = ""


def of(name: str, term: kl.Penalty, published: str = "", surrogate=CORRECTED) -> Configuration:
    return Configuration(
        name, objective(UNCHANGED, surrogate, reductions.sequence_mean_of_token_sum(), kl=term), published
    )


ARTICLE = (
    of("k1 loss", kl.penalty(kl.k1, "loss", allow_biased=True), "k1_loss"),
    of("k1 reward", kl.penalty(kl.k1, "reward"), "k1_reward"),
    of("k3 loss", kl.penalty(kl.k3, "loss"), "k3_loss"),
    of("k3 reward", kl.penalty(kl.k3, "reward", allow_biased=True), "k3_reward"),
)
"""Token sums; what stands in the reward is the whole completion's return."""
OURS = (
    of("k1 to go", kl.penalty(kl.k1, "to_go")),
    of("k2 loss, sequence", kl.penalty(kl.k2, "loss", "sequence")),
    of("k3 both", kl.penalty(kl.k3, "both")),
    of("full both", kl.full_vocabulary("both")),
    of("k1 loss, sequence ratio", kl.penalty(kl.k1, "loss", "token", importance.sequence())),
    of("k3 loss, sequence ratio", kl.penalty(kl.k3, "loss", "token", importance.sequence())),
    of("k1 loss, causal ratio", kl.penalty(kl.k1, "loss", "token", importance.causal())),
    of("k3 loss, causal ratio", kl.penalty(kl.k3, "loss", "token", importance.causal())),
    of("full loss", kl.full_vocabulary("loss")),
)
"""All follow the reverse KL of whole sequences but the last, whose prefixes are frozen."""
OFF_POLICY = (
    of("k1 reward", kl.penalty(kl.k1, "reward")),
    of("k1 to go", kl.penalty(kl.k1, "to_go")),
    of("k2 loss, sequence, detached ratio", kl.penalty(kl.k2, "loss", "sequence", importance.detached_sequence())),
    of("k3(U) loss, sequence ratio", kl.penalty(kl.k3, "loss", "sequence", importance.sequence())),
    of("k1 loss, sequence ratio", kl.penalty(kl.k1, "loss", "token", importance.sequence())),
    of("k3 loss, sequence ratio", kl.penalty(kl.k3, "loss", "token", importance.sequence())),
    of("k1 loss, causal ratio", kl.penalty(kl.k1, "loss", "token", importance.causal())),
    of("k3 loss, causal ratio", kl.penalty(kl.k3, "loss", "token", importance.causal())),
    of("full loss, causal ratio", kl.full_vocabulary("loss", kl.causal_weights())),
    of("k3 loss, token ratio", kl.penalty(kl.k3, "loss", "token", importance.token())),
    of("k1 reward, no weights", kl.penalty(kl.k1, "reward"), surrogate=surrogates.reinforce()),
    of("k2 loss, sequence, no weights", kl.penalty(kl.k2, "loss", "sequence")),
)
"""For samples of another policy: with weights of whole sequences or of all up to the token, and three without."""
