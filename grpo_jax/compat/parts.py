"""What libraries do to a KL term that no part of ours does by default: plain clamps, their own ratios, old samples.

Each is written with the public interfaces (an estimator is a function of u, a `Penalty` is functions of tokens), so
that the certificate of a library's objective is worked out and checked like that of any other.
"""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from grpo_jax.kl import Estimator, Penalty, Target, Tokens
from grpo_jax.kl import targets as pulls
from grpo_jax.kl.estimators import name_of
from grpo_jax.kl.importance import Importance
from grpo_jax.losses import Objective, Surrogate
from grpo_jax.ratios import bounded_exp, geometric_mean_ratio, log_ratio, sequence_ratio


def cut(estimator: Estimator, limit: float | None = 10.0, input_limit: float | None = None) -> Estimator:
    """Builds an estimator with plain clamps: beyond them value *and* gradient are lost.

    ``clip(k(clip(u, -input_limit, input_limit)), -limit, limit)``. A k3 cut at 10 lets a token go once
    p / pi > e^2.610869, where the policy is furthest from its reference; `grpo_jax.kl.clamped` keeps the pull.

    Args:
        estimator: any estimator.
        limit: largest absolute value, nats, > 0; None: no limit.
        input_limit: largest absolute log-ratio, nats, > 0; None: no limit.

    Raises:
        ValueError: a limit not positive.
    """
    _check_limits("cut", limit, input_limit)

    def cut_estimator(log_ratio: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return _clipped(estimator(_clipped(log_ratio, input_limit)), limit)

    return _named(cut_estimator, _cut_name(name_of(estimator), limit, input_limit))


def low_var_kl(limit: float | None = 10.0) -> Estimator:
    """Builds the k3 of verl, SkyRL and slime: the exponent clamped to 20 nats, the value to ``limit``, both plainly.

    Args:
        limit: largest value, nats, > 0; None: no limit on the value.

    Raises:
        ValueError: limit not positive.
    """
    return _named(cut(_plain_k3, limit, 20.0), "low_var_kl" if limit is None else f"low_var_kl({limit:g})")


def own_ratio(estimator: Estimator, limit: float | None = 10.0, input_limit: float | None = 20.0) -> Estimator:
    """Builds an estimator weighted by pi / sg(pi), which is 1 and carries the score: gradient k(u) + k'(u).

    ``clip(w k(clip(u)), -limit, limit)`` with w = exp(log pi - sg(log pi)), detached where the log-ratio was clamped.
    For k3 the gradient is u (where nothing is clamped), that of k2; for k1 it is u + 1, for k2 u^2/2 + u.

    Args:
        estimator: any estimator.
        limit: largest absolute value, nats, > 0; None: no limit.
        input_limit: largest absolute log-ratio, nats, > 0; None: no limit.

    Raises:
        ValueError: a limit not positive.

    References: "On a few pitfalls in KL divergence gradient estimation for RL" (arXiv 2506.09477).
    """
    inner = cut(estimator, None, input_limit)

    def weighted(log_ratio: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        score = jnp.exp(log_ratio - jax.lax.stop_gradient(log_ratio))
        inside = jnp.abs(log_ratio) <= (jnp.inf if input_limit is None else input_limit)
        return _clipped(jnp.where(inside, score, 1) * inner(log_ratio), limit)

    _check_limits("own_ratio", limit, None)
    return _named(weighted, _cut_name(f"own_ratio({name_of(estimator)})", limit, input_limit))


def cut_term(term: Penalty, limit: float | None) -> Penalty:
    """Returns a KL term in the loss whose weighted values are clamped plainly: no target holds beyond the limit.

    Args:
        term: a KL term in the loss.
        limit: largest absolute value of importance weight times estimate, nats, > 0; None: the term as it is.

    Raises:
        ValueError: limit not positive, or a term that is not in the loss.
    """
    _check_limits("cut_term", limit, None)
    if limit is None:
        return term
    weighted = term.loss
    if weighted is None or term.placement != "loss":
        raise ValueError(f"compat.cut_term: '{term.name}' is not in the loss; cut its estimator instead")
    reason = f"beyond {limit:g} nats the weighted value is cut, and its gradient with it"
    return term._replace(
        estimator=_cut_name(term.estimator, limit, None),
        loss=lambda tokens: _clipped(weighted(tokens), limit),
        target=term.target.without(reason),
        loss_off_policy=term.loss_off_policy.without(reason),
    )


def at_sampling(term: Penalty) -> Penalty:
    """Returns a KL term in the reward as libraries charge it: once, from the policy that sampled.

    u is log pi_old - log p. On-policy nothing changes; off-policy it is the KL of the old policy that is returned.

    Raises:
        ValueError: a term in the loss alone, of which nothing is charged.
    """
    sequence_cost, token_cost = term.sequence_cost, term.token_cost
    if sequence_cost is None and token_cost is None:
        raise ValueError(f"compat.at_sampling: '{term.name}' charges nothing; place it in reward, to_go or own_token")
    return term._replace(
        estimator=f"{term.estimator} at sampling",
        sequence_cost=None if sequence_cost is None else lambda tokens: sequence_cost(_sampled(tokens)),
        token_cost=None if token_cost is None else lambda tokens: token_cost(_sampled(tokens)),
        cost_target=term.cost_target.without("the cost is the KL of the policy that sampled, not of the current one"),
    )


def geometric_mean() -> Importance:
    """Builds GSPO's ratio, exp(mean_t log rho_t), on the estimate of every token: no importance weight of anything."""

    def weights(log_ratios: Float[Array, " T"], mask: Bool[Array, " T"]) -> Float[Array, " T"]:
        return jnp.broadcast_to(geometric_mean_ratio(log_ratios, mask), log_ratios.shape)

    def declare(estimator: Callable) -> tuple[Target, Target]:
        slope = pulls.total_pull(estimator).slope
        none = Target(slope=slope).without("the geometric mean of a completion's ratios is no importance weight")
        return none, none

    return Importance("geometric_mean", weights, declare, None)


def sequence_clipped(low: float = 0.2, high: float = 0.2) -> Surrogate:
    """Builds the clipped surrogate on the ratio of the whole completion, the product over its tokens.

    ``-min(rho A, clip(rho, 1 - low, 1 + high) A)``, rho = pi(y) / pi_old(y): one value a completion, at its last token,
    so that it belongs with ``reductions.sequence_mean_of_token_sum()``.

    Args:
        low: bound below 1, in [0, 1).
        high: bound above 1, >= 0.

    Raises:
        ValueError: bounds out of range.
    """
    if not (0 <= low < 1 and high >= 0):
        raise ValueError(f"compat.sequence_clipped: bounds are {low} and {high}; low must be in [0, 1), high >= 0")

    def clips(ratio, advantages):
        return ((advantages > 0) & (ratio > 1 + high)) | ((advantages < 0) & (ratio < 1 - low))

    def whole(log_probs, old_log_probs, mask):
        return jnp.broadcast_to(sequence_ratio(log_ratio(log_probs, old_log_probs, mask)), log_probs.shape)

    def loss(log_probs, old_log_probs, advantages, mask):
        ratio = whole(log_probs, old_log_probs, mask)
        kept = jnp.where(clips(ratio, advantages), jnp.clip(ratio, 1 - low, 1 + high), ratio)
        positions = jnp.arange(mask.shape[0])
        last = jnp.max(jnp.where(mask, positions, -1))
        return jnp.where(positions == last, -kept * advantages, 0)

    def is_clipped(log_probs, old_log_probs, advantages, mask):
        return clips(whole(log_probs, old_log_probs, mask), advantages)

    return Surrogate(f"sequence_clipped({low:g}, {high:g})", loss, is_clipped, "bounded", per_token=False)


def capped_ratio_k2(value: Estimator, cap: float) -> Callable[[Tokens], Array]:
    """Builds a term of value k(u) and gradient min(rho_t, cap) u, rho_t detached.

    Args:
        value: the estimator that is reported.
        cap: largest ratio, > 0.

    Raises:
        ValueError: cap not positive.
    """
    if not cap > 0:
        raise ValueError(f"compat.capped_ratio_k2: cap is {cap}; it must be > 0, the largest ratio (10 is OpenRLHF's)")

    def loss(tokens: Tokens) -> Float[Array, " T"]:
        weight = jax.lax.stop_gradient(jnp.minimum(bounded_exp(tokens.policy_ratios), cap))
        surrogate = weight * jnp.square(tokens.log_ratios) / 2
        return surrogate + jax.lax.stop_gradient(value(tokens.log_ratios) - surrogate)

    return loss


def noted(built: Objective, *differences: str) -> Objective:
    """Returns the objective with sentences about what the library does otherwise among its notes."""
    return replace(built, notes=(*built.notes, *differences))


def _sampled(tokens: Tokens) -> Tokens:
    return tokens._replace(log_ratios=tokens.log_ratios - tokens.policy_ratios)


def _plain_k3(log_ratio: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    return jnp.expm1(-log_ratio) + log_ratio


def _clipped(values: Float[Array, "*shape"], limit: float | None) -> Float[Array, "*shape"]:
    return values if limit is None else jnp.clip(values, -limit, limit)


def _check_limits(place: str, limit: float | None, input_limit: float | None) -> None:
    for name, value in (("limit", limit), ("input_limit", input_limit)):
        if value is not None and not value > 0:
            raise ValueError(f"compat.{place}: {name} is {value}; it must be > 0 nats, or None for no limit")


def _cut_name(name: str, limit: float | None, input_limit: float | None) -> str:
    inputs = "" if input_limit is None else f", u at {input_limit:g}"
    return f"{name}{inputs}" if limit is None else f"cut({name}, {limit:g}{inputs})"


def _named(estimator: Estimator, name: str) -> Estimator:
    setattr(estimator, "__name__", name)  # noqa: B010 (a Protocol has no __name__ to assign to)
    return estimator
