"""Importance corrections of a KL term in the loss, for completions that an older policy sampled.

Each factory returns a function of one completion ``(log_ratios [T], mask [T]) -> weights [T]`` with the log-ratio of
the current to the sampling policy. What stays differentiable in the weight decides what is followed:

| correction | weight of token t | token estimator follows, off-policy |
|---|---|---|
| ``none`` | 1 | no objective |
| ``token`` | rho_t | the local target at the sampler's prefixes |
| ``prefix`` | sg(w_{1:t-1}) rho_t | the local target |
| ``sequence`` | w_{1:T} | the sequence target |
| ``causal`` | w_{1:t} | the sequence target, mostly with less variance |
| ``detached_sequence`` | sg(w_{1:T}) | what the estimator follows on-policy |
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from grpo_jax import ratios
from grpo_jax.kl import targets
from grpo_jax.kl.targets import Target


class Importance(NamedTuple):
    """A correction and what it makes of an estimator.

    Attributes:
        name: for messages and certificates.
        weights: ``(log_ratios [T], mask [T]) -> [T]``, the weight of each token's estimate.
        token: the estimator's target per token, ``estimator -> (on-policy, off-policy)``.
        sequence: the same for the estimate of a whole sequence; None where the correction has no sequence form.
    """

    name: str
    weights: Callable
    token: Callable[[Callable], tuple[Target, Target]]
    sequence: Callable[[Callable], tuple[Target, Target]] | None


_UNCORRECTED = "completions of another policy, with no importance weight"


def none() -> Importance:
    """No correction: exact on-policy, follows no objective off-policy."""

    def uncorrected(target: Target) -> tuple[Target, Target]:
        return target, target.without(_UNCORRECTED)

    return Importance(
        "none",
        lambda log_ratios, mask: jnp.ones_like(log_ratios),
        lambda estimator: uncorrected(targets.token_target(targets.path_pull(estimator))),
        lambda estimator: uncorrected(targets.sequence_target(targets.path_pull(estimator))),
    )


def token() -> Importance:
    """Each token weighted by its own differentiable ratio rho_t.

    References: DeepSeek-V3.2 (arXiv 2512.02556), eq. 7.
    """

    def declare(estimator: Callable) -> tuple[Target, Target]:
        local = targets.token_target(targets.total_pull(estimator))
        return local, targets.at_sampler_prefixes(local)

    return Importance("token", lambda log_ratios, mask: ratios.bounded_exp(log_ratios), declare, None)


def prefix() -> Importance:
    """The token's differentiable ratio times the detached ratio of its prefix: local targets at pi's own prefixes."""

    def weights(log_ratios: Float[Array, " T"], mask: Bool[Array, " T"]) -> Float[Array, " T"]:
        return jax.lax.stop_gradient(ratios.prefix_ratio(log_ratios)) * ratios.bounded_exp(log_ratios)

    def declare(estimator: Callable) -> tuple[Target, Target]:
        local = targets.token_target(targets.total_pull(estimator))
        return local, local

    return Importance("prefix", weights, declare, None)


def sequence() -> Importance:
    """The differentiable ratio of the whole sequence on every term: the sequence target, at the highest variance."""

    def weights(log_ratios: Float[Array, " T"], mask: Bool[Array, " T"]) -> Float[Array, " T"]:
        return jnp.broadcast_to(ratios.sequence_ratio(log_ratios), log_ratios.shape)

    def declare(estimator: Callable) -> tuple[Target, Target]:
        whole = targets.sequence_target(targets.total_pull(estimator))
        return whole, whole

    return Importance("sequence", weights, _token_total, declare)


def causal() -> Importance:
    """The differentiable ratio of all up to the token, w_{1:t}: the sequence target without the future's noise."""
    return Importance("causal", lambda log_ratios, mask: ratios.causal_ratio(log_ratios), _token_total, None)


def detached_sequence() -> Importance:
    """The ratio of the whole sequence as a constant: off-policy what the estimator in the loss follows on-policy."""

    def weights(log_ratios: Float[Array, " T"], mask: Bool[Array, " T"]) -> Float[Array, " T"]:
        whole = jax.lax.stop_gradient(ratios.sequence_ratio(log_ratios))
        return jnp.broadcast_to(whole, log_ratios.shape)

    def twice(target: Target) -> tuple[Target, Target]:
        return target, target

    return Importance(
        "detached_sequence",
        weights,
        lambda estimator: twice(targets.token_target(targets.path_pull(estimator))),
        lambda estimator: twice(targets.sequence_target(targets.path_pull(estimator))),
    )


def _token_total(estimator: Callable) -> tuple[Target, Target]:
    # The gradient of E[sum_t f(u_t)] in full: its score part is a return, its path-wise part local.
    score = targets.return_target(targets.value_pull(estimator))
    path = targets.token_target(targets.path_pull(estimator))
    both = score.plus(path)
    return both, both
