"""Policy-gradient surrogates: the loss of each token of one completion, before any reduction.

Every factory returns a `Surrogate` whose functions take one completion: ``log_probs`` and ``old_log_probs`` ``[T]``,
``advantages`` ``[T]`` and ``mask`` ``[T]``. rho_t = pi_t / pi_old,t is differentiable. Minimising the loss raises the
advantage-weighted likelihood. On-policy (old = current) the token surrogates all have the gradient -A_t s_t.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from grpo_jax.ratios import bounded_exp, geometric_mean_ratio, log_ratio, score_carrier, sequence_ratio


class Surrogate(NamedTuple):
    """A policy loss as pure functions of one completion.

    Attributes:
        name: for messages and certificates.
        loss: ``(log_probs, old_log_probs, advantages, mask) -> [T]``.
        is_clipped: same arguments -> bool ``[T]``, where a bound took the gradient away; the sign of A counts.
        corrects: which ratio weights the advantages: ``nothing``, ``token`` (rho_t), ``sequence`` (the exact importance
            weight of the completion) or ``bounded`` (a clipped or geometric-mean ratio, exact on-policy only).
        per_token: whether the advantage may differ from token to token.
    """

    name: str
    loss: Callable[[Array, Array, Array, Array], Array]
    is_clipped: Callable[[Array, Array, Array, Array], Array]
    corrects: str
    per_token: bool = True


def _never(log_probs: Array, old_log_probs: Array, advantages: Array, mask: Array) -> Array:
    return jnp.zeros_like(mask)


def _check_range(place: str, low: float, high: float) -> None:
    if not 0 <= low < 1:
        raise ValueError(f"{place}: low is {low}; it must be in [0, 1), the ratio is kept above 1 - low")
    if not high >= 0:
        raise ValueError(f"{place}: high is {high}; it must be >= 0, the ratio is kept below 1 + high")


def reinforce() -> Surrogate:
    """Builds -A_t log pi_t, blind to which policy sampled.

    References: Williams (1992); as RLOO in Ahmadian et al. (arXiv 2402.14740).
    """
    return Surrogate("reinforce", lambda log_probs, old, advantages, mask: -advantages * log_probs, _never, "nothing")


def importance_weighted() -> Surrogate:
    """Builds -rho_t A_t: each token corrected by its own ratio, prefixes and futures not."""

    def loss(log_probs, old_log_probs, advantages, mask):
        return -bounded_exp(log_ratio(log_probs, old_log_probs, mask)) * advantages

    return Surrogate("importance_weighted", loss, _never, "token")


def sequence_importance_weighted() -> Surrogate:
    """Builds -sg(w_{1:T}) pi_t/sg(pi_t) A_t: the exact importance weight of the completion, at its variance."""

    def loss(log_probs, old_log_probs, advantages, mask):
        weight = jax.lax.stop_gradient(sequence_ratio(log_ratio(log_probs, old_log_probs, mask)))
        return -weight * score_carrier(jnp.where(mask, log_probs, 0)) * advantages

    return Surrogate("sequence_importance_weighted", loss, _never, "sequence")


def clipped(low: float = 0.2, high: float = 0.2) -> Surrogate:
    """Builds the PPO surrogate -min(rho A, clip(rho, 1 - low, 1 + high) A).

    Args:
        low: how far below 1 the ratio still has a gradient when A < 0, in [0, 1).
        high: how far above 1 when A > 0, >= 0. DAPO: 0.28.

    Raises:
        ValueError: bounds out of range.

    References: Schulman et al. (arXiv 1707.06347), eq. 7; Yu et al. (arXiv 2503.14476), eq. 8.
    """
    _check_range("surrogates.clipped", low, high)

    def loss(log_probs, old_log_probs, advantages, mask):
        return _clip(bounded_exp(log_ratio(log_probs, old_log_probs, mask)), advantages, low, high)

    def is_clipped(log_probs, old_log_probs, advantages, mask):
        ratio = bounded_exp(log_ratio(log_probs, old_log_probs, mask))
        return _outside(ratio, advantages, low, high)

    return Surrogate(f"clipped({low:g}, {high:g})", loss, is_clipped, "bounded")


def dual_clipped(low: float = 0.2, high: float = 0.2, cap: float = 3.0) -> Surrogate:
    """Builds the clipped surrogate with a second bound for A < 0: max(min(rho A, clip(rho) A), cap A), negated.

    Args:
        low: as in `clipped`.
        high: as in `clipped`.
        cap: largest ratio that a negative advantage is multiplied by, > 1.

    Raises:
        ValueError: bounds out of range.

    References: Ye et al. (arXiv 1912.09729), eq. 5.
    """
    _check_range("surrogates.dual_clipped", low, high)
    if not cap > 1:
        raise ValueError(f"surrogates.dual_clipped: cap is {cap}; it must be > 1 (3 is common)")

    def loss(log_probs, old_log_probs, advantages, mask):
        single = _clip(bounded_exp(log_ratio(log_probs, old_log_probs, mask)), advantages, low, high)
        return jnp.where(advantages < 0, jnp.minimum(single, -cap * advantages), single)

    def is_clipped(log_probs, old_log_probs, advantages, mask):
        ratio = bounded_exp(log_ratio(log_probs, old_log_probs, mask))
        return _outside(ratio, advantages, low, high) | ((advantages < 0) & (ratio > cap))

    return Surrogate(f"dual_clipped({low:g}, {high:g}, {cap:g})", loss, is_clipped, "bounded")


def cispo(low: float | None = None, high: float = 0.28) -> Surrogate:
    """Builds -sg(clip(rho_t)) A_t log pi_t: the weight is bounded, the gradient of no token is lost.

    Args:
        low: the weight is kept above 1 - low, in [0, 1); None: no lower bound, as in the paper's runs.
        high: the weight is kept below 1 + high, >= 0.

    Raises:
        ValueError: bounds out of range.

    References: MiniMax-M1 (arXiv 2506.13585), eq. 4 and 5.
    """
    floor = 1.0 if low is None else low
    _check_range("surrogates.cispo", 0.0 if low is None else low, high)

    def weights(log_probs, old_log_probs, mask):
        return bounded_exp(log_ratio(log_probs, old_log_probs, mask))

    def loss(log_probs, old_log_probs, advantages, mask):
        bounded = jnp.clip(weights(log_probs, old_log_probs, mask), 1 - floor, 1 + high)
        return -jax.lax.stop_gradient(bounded) * advantages * log_probs

    def is_clipped(log_probs, old_log_probs, advantages, mask):
        ratio = weights(log_probs, old_log_probs, mask)
        return (ratio > 1 + high) | (ratio < 1 - floor)

    return Surrogate(f"cispo({low}, {high:g})", loss, is_clipped, "bounded")


def gspo(low: float = 3e-4, high: float = 4e-4) -> Surrogate:
    """Builds GSPO: the clipped surrogate on s = exp(mean_t log rho_t), one ratio and one advantage a completion.

    The same value stands at every token, so that a mean over tokens is the value of the completion.

    Args:
        low: bound below 1; far smaller than for token ratios, because a geometric mean hardly moves.
        high: bound above 1.

    Raises:
        ValueError: bounds out of range.

    References: Zheng et al. (arXiv 2507.18071), eq. 5 to 7.
    """
    _check_range("surrogates.gspo", low, high)
    return Surrogate(
        f"gspo({low:g}, {high:g})",
        lambda log_probs, old, advantages, mask: _clip(_gspo_ratio(log_probs, old, mask), advantages, low, high),
        lambda log_probs, old, advantages, mask: _outside(_gspo_ratio(log_probs, old, mask), advantages, low, high),
        "bounded",
        per_token=False,
    )


def gspo_token(low: float = 3e-4, high: float = 4e-4) -> Surrogate:
    """Builds GSPO's token form: the ratio sg(s) pi_t / sg(pi_t), so that advantages may differ within a completion.

    References: Zheng et al. (arXiv 2507.18071), eq. 13 and 14.
    """
    _check_range("surrogates.gspo_token", low, high)

    def ratios(log_probs, old_log_probs, mask):
        whole = jax.lax.stop_gradient(_gspo_ratio(log_probs, old_log_probs, mask))
        return whole * score_carrier(jnp.where(mask, log_probs, 0))

    return Surrogate(
        f"gspo_token({low:g}, {high:g})",
        lambda log_probs, old, advantages, mask: _clip(ratios(log_probs, old, mask), advantages, low, high),
        lambda log_probs, old, advantages, mask: _outside(ratios(log_probs, old, mask), advantages, low, high),
        "bounded",
    )


def sapo(positive: float = 1.0, negative: float = 1.05) -> Surrogate:
    """Builds SAPO: a soft gate instead of a clip, -(4/tau) sigmoid(tau (rho_t - 1)) A_t.

    At rho = 1 the gate has derivative 1 for every tau, so on-policy it is the plain policy gradient.

    Args:
        positive: tau for A > 0, > 0.
        negative: tau for A <= 0, > 0; larger closes the gate sooner.

    Raises:
        ValueError: a temperature not positive.

    References: Gao et al., "Soft Adaptive Policy Optimization" (arXiv 2511.20347).
    """
    if not (positive > 0 and negative > 0):
        raise ValueError(f"surrogates.sapo: temperatures are {positive} and {negative}; both must be > 0")

    def loss(log_probs, old_log_probs, advantages, mask):
        ratio = bounded_exp(log_ratio(log_probs, old_log_probs, mask))
        tau = jnp.where(advantages > 0, positive, negative)
        return -4 / tau * jax.nn.sigmoid(tau * (ratio - 1)) * advantages

    return Surrogate(f"sapo({positive:g}, {negative:g})", loss, _never, "bounded")


def _clip(ratio: Float[Array, " T"], advantages: Float[Array, " T"], low: float, high: float) -> Float[Array, " T"]:
    # Not the minimum of both: at a bound, or on-policy with a bound of 0, a tie would halve the gradient.
    kept = jnp.where(_outside(ratio, advantages, low, high), jnp.clip(ratio, 1 - low, 1 + high), ratio)
    return -kept * advantages


def _outside(ratio: Float[Array, " T"], advantages: Float[Array, " T"], low: float, high: float) -> Bool[Array, " T"]:
    return ((advantages > 0) & (ratio > 1 + high)) | ((advantages < 0) & (ratio < 1 - low))


def _gspo_ratio(log_probs: Array, old_log_probs: Array, mask: Array) -> Float[Array, " T"]:
    ratio = geometric_mean_ratio(log_ratio(log_probs, old_log_probs, mask), mask)
    return jnp.broadcast_to(ratio, log_probs.shape)
