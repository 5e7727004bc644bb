"""Estimators of the known gradients from samples: what a sampled certificate holds an objective against.

Each is a loss of the tokens whose expected gradient is the target's on-policy and, through importance weights that are
1 on-policy, off-policy too. Where the next-token distributions suffice they take the exact KL of each (Rao-Blackwell:
the expectation over the token that was sampled), so that less noise is left than in estimators of the log-ratio.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from grpo_jax import kl
from grpo_jax.advantages import leave_one_out
from grpo_jax.kl import Penalty, Target, Tokens
from grpo_jax.kl import importance as corrections
from grpo_jax.losses import Objective, objective, reductions, surrogates
from grpo_jax.ratios import bounded_exp, sequence_ratio


class Basis(NamedTuple):
    """Which combinations of the gradients in `Products` are what.

    Attributes:
        follows: the target of the reference; where nothing is declared, or zero, the reverse KL.
        sample: the KL term's gradient.
        mean: another with the same expectation and less noise: the difference and the unit, where those add up to it.
        difference: from the KL term's gradient to what it should be.
        unit: the gradient that lengths and angles are measured against.
        reverse: the gradient of the reverse KL.
    """

    follows: Target
    sample: tuple[float, ...]
    mean: tuple[float, ...]
    difference: tuple[float, ...]
    unit: tuple[float, ...]
    reverse: tuple[float, ...]


def basis(target: Target) -> Basis:
    """Returns the gradients that are needed to judge an objective which declares a target."""
    reverse, coefficients = Target(reverse=1.0), target.coefficients
    if target.none:
        coefficients = reverse.coefficients
    if not coefficients:
        return Basis(reverse, (1.0, 0.0), (1.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.0, 1.0))
    first, second = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0)
    if set(coefficients) == {"reverse"}:
        size = coefficients["reverse"]
        return Basis(reverse, (1.0, 0.0, size), (1.0, size, 0.0), first, (0.0, size, 0.0), second)
    both = (1.0, 0.0, 1.0)
    return Basis(Target()._replace(**coefficients), both, both, first, (0.0, 0.0, 1.0), second)


def reference(target: Target) -> Objective:
    """Builds the objective whose KL term follows a target, on-policy and off-policy, estimated with little noise.

    Its KL term is all in the loss, and its reduction is ``sequence_mean_of_token_sum``.

    Args:
        target: what to follow; not one that is `none`.

    Raises:
        ValueError: there is nothing to follow.
    """
    if target.none or not target.coefficients:
        raise ValueError(f"oracle: {target.name} is no gradient that a reference could follow; take Target(reverse=1)")
    terms = _terms()
    parts = [(value, terms[name]) for name, value in target.coefficients.items()]

    def loss(tokens: Tokens) -> Float[Array, " T"]:
        return sum((value * _loss(part, tokens) for value, part in parts), jnp.zeros_like(tokens.log_ratios))

    named = terms["reverse"]._replace(estimator=f"reference for {target.name}", importance="as needed")
    term = named._replace(loss=loss, target=target, loss_off_policy=target)
    return objective(leave_one_out(), surrogates.reinforce(), reductions.sequence_mean_of_token_sum(), kl=term)


def _loss(term: Penalty, tokens: Tokens) -> Float[Array, " T"]:
    assert term.loss is not None
    return term.loss(tokens)


@functools.cache
def _terms() -> dict[str, Penalty]:
    exact = functools.partial(kl.full_vocabulary, "loss", allow_biased=True)
    plain = functools.partial(kl.penalty, placement="loss", allow_biased=True)
    return {
        "reverse": exact(kl.causal_weights()),
        "local_reverse": exact(kl.prefix_weights()),
        "sampler_local_reverse": exact(kl.no_weights()),
        "forward": plain(kl.k3, granularity="sequence", importance=corrections.detached_sequence()),
        "local_forward": plain(_forward, importance=corrections.prefix()),
        "sampler_local_forward": plain(_forward, importance=corrections.token()),
        "length": _length(exact(kl.no_weights())),
    }


def _forward(log_ratio: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    # p/pi log p/pi under the differentiable ratio of the token has the gradient of KL(p||pi); 1 takes noise away.
    return 1 - log_ratio * bounded_exp(-log_ratio)


def _length(term: Penalty) -> Penalty:
    target = Target(length=1.0)
    loss: Callable[[Tokens], Array] = lambda tokens: (  # noqa: E731
        sequence_ratio(tokens.policy_ratios) * tokens.mask / jnp.square(jnp.maximum(jnp.sum(tokens.mask), 1))
    )
    return term._replace(loss=loss, target=target, loss_off_policy=target, importance="sequence")
