"""The exact KL of each next-token distribution over the vocabulary, as a KL term.

F_t = KL(pi(.|y_<t) || p(.|y_<t)) is no function of the sampled token, so it has placements and importance of its own.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from grpo_jax import ratios
from grpo_jax.arguments import check_built
from grpo_jax.kl.penalty import Penalty, Tokens, refuse_useless, to_go
from grpo_jax.kl.targets import Target

_PLACEMENTS = ("loss", "reward", "to_go", "both")


class PrefixWeights(NamedTuple):
    """How the exact KL of a token is weighted by the ratio of what came before it.

    Attributes:
        name: for messages and certificates.
        weights: ``log_ratios [T] -> [T]``.
        on_policy: what the loss term follows on-policy.
        off_policy: what it follows when an older policy sampled.
    """

    name: str
    weights: Callable[[Array], Array]
    on_policy: Target
    off_policy: Target


def no_weights() -> PrefixWeights:
    """No correction: off-policy the local reverse KL at the prefixes of the sampling policy."""
    local = Target(local_reverse=1.0, slope=1.0)
    return PrefixWeights("none", jnp.ones_like, local, Target(sampler_local_reverse=1.0, slope=1.0))


def prefix_weights() -> PrefixWeights:
    """The detached ratio of the prefix, sg(w_{1:t-1}): the local reverse KL at pi's own prefixes."""
    local = Target(local_reverse=1.0, slope=1.0)
    return PrefixWeights("prefix", lambda u: jax.lax.stop_gradient(ratios.prefix_ratio(u)), local, local)


def causal_weights() -> PrefixWeights:
    """The differentiable ratio of the prefix, w_{1:t-1}: the whole sequence's reverse KL, without any reward term."""
    return PrefixWeights("causal", ratios.prefix_ratio, *[Target(reverse=1.0, slope=1.0)] * 2)


def full_vocabulary(
    placement: Literal["loss", "reward", "to_go", "both"] = "both",
    importance: PrefixWeights | None = None,
    allow_biased: bool = False,
) -> Penalty:
    """Builds the full-vocabulary KL term.

    In the ``loss`` it follows `local_reverse`. The effect of a token on *later* KL is a return: sum_{j>t} F_j, without
    F_t, which the token cannot change. ``both`` adds it and follows `reverse`; alone (``to_go``, or the whole sum in
    the ``reward``) it is nearly inert.

    Args:
        placement: ``loss``, ``reward``, ``to_go`` or ``both``.
        importance: correction of the loss term off-policy; None: ``no_weights()``.
        allow_biased: accept ``to_go`` or ``reward`` alone.

    Raises:
        ValueError: unknown placement, causal weights together with the return they replace, or a cost alone.
        TypeError: an importance correction that is its own factory, uncalled.
    """
    check_built("kl.full_vocabulary", PrefixWeights, importance=importance)
    if placement not in _PLACEMENTS:
        raise ValueError(f"kl.full_vocabulary: placement is {placement!r}; choose one of {', '.join(_PLACEMENTS)}")
    correction = no_weights() if importance is None else importance
    if correction.name != "none" and placement != "loss":
        raise ValueError(
            f"kl.full_vocabulary: importance {correction.name} with placement={placement!r}; use placement='loss' "
            "(causal weights already contain the return)"
        )
    in_loss = placement in ("loss", "both")
    path = correction.on_policy if in_loss else Target()
    cost = Target(reverse=1.0, local_reverse=-1.0) if placement != "loss" else Target()
    target = path.plus(cost)

    def loss(tokens: Tokens) -> Float[Array, " T"]:
        return correction.weights(tokens.policy_ratios) * _exact(tokens)

    def future(tokens: Tokens) -> Float[Array, " T"]:
        exact = jnp.where(tokens.mask, _exact(tokens), 0)
        return to_go(exact, tokens.mask) - exact

    def whole(tokens: Tokens) -> Float[Array, ""]:
        return jnp.sum(_exact(tokens), where=tokens.mask)

    term = Penalty(
        estimator="full",
        placement=placement,
        granularity="token",
        importance=correction.name,
        loss=loss if in_loss else None,
        sequence_cost=whole if placement == "reward" else None,
        token_cost=future if placement in ("to_go", "both") else None,
        target=target,
        loss_off_policy=correction.off_policy if in_loss else Target(),
        cost_target=cost,
        needs_full_kl=True,
        allow_biased=allow_biased,
    )
    return refuse_useless(term)


def _exact(tokens: Tokens) -> Float[Array, " T"]:
    if tokens.full_kl is None:
        raise ValueError("kl.full_vocabulary: the scores hold no full_kl; score with the reference's parameters")
    return tokens.full_kl
