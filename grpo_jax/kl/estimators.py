"""KL estimators: functions of the log-ratio u = log pi - log p in nats, elementwise.

An estimator is any such function, so a user's own is one line: ``lambda u: jnp.tanh(u)``. What gradient it follows
depends on where it is placed (`grpo_jax.kl.penalty`) and is found from the function itself (`grpo_jax.kl.targets`).
"""

from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from grpo_jax.ratios import EXPONENT_LIMIT


@runtime_checkable
class Estimator(Protocol):
    """A KL estimator: maps log-ratios u to values, elementwise, differentiable."""

    def __call__(self, log_ratio: Float[Array, "*shape"], /) -> Float[Array, "*shape"]:
        """Returns the estimate of each entry, in nats."""
        ...


def k1(log_ratio: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The log-ratio itself, u.

    Unbiased in value, can be negative. Its path-wise gradient is the bare score, so in the loss it pulls nowhere.

    References: Schulman, "Approximating KL divergence" (2020).
    """
    return log_ratio


def k2(log_ratio: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Half the squared log-ratio, u^2 / 2.

    Biased in value; in the loss its gradient is u times the score, sample by sample that of k1 in the reward.

    References: Schulman, "Approximating KL divergence" (2020).
    """
    return jnp.square(log_ratio) / 2


@jax.custom_jvp
def _expm1_plus(log_ratio: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    # expm1 may be one unit in the last place below its argument; the derivative below does not see this maximum.
    return jnp.maximum(jnp.expm1(-log_ratio) + log_ratio, 0)


_expm1_plus.defjvps(lambda tangent, _, log_ratio: -jnp.expm1(-log_ratio) * tangent)


def k3(log_ratio: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The non-negative estimator, exp(-u) - 1 + u.

    Unbiased in value and never negative, also in floating point. In the loss it follows the *forward* KL; in the reward
    it is biased and pulls almost nowhere near the reference. Below u = -20 it goes on as its tangent, so that value and
    restoring gradient stay finite where the policy has all but lost a token that the reference wants.

    References: Schulman, "Approximating KL divergence" (2020).
    """
    bounded = jnp.maximum(log_ratio, -EXPONENT_LIMIT)
    return _expm1_plus(bounded) - (log_ratio - bounded) * jnp.expm1(-bounded)


def absolute(log_ratio: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The absolute log-ratio: |u|. Biased; its gradient in the loss has the sign of u, no size, and is 0 at u = 0."""
    # The derivative of jnp.abs at 0 is 1, so that a policy equal to its reference would be moved.
    return log_ratio * jnp.sign(log_ratio)


def straight_through(value: Estimator, gradient: Estimator) -> Estimator:
    """Builds an estimator with the value of one and the path-wise gradient of another.

    ``gradient(u) + sg(value(u) - gradient(u))``. With k3 as value and k2 as gradient, what is logged is unbiased and
    non-negative while the loss follows `local_reverse` (token) or `reverse` (sequence).
    """

    def estimator(log_ratio: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        surrogate = gradient(log_ratio)
        return surrogate + jax.lax.stop_gradient(value(log_ratio) - surrogate)

    return _named(estimator, f"straight_through({name_of(value)}, {name_of(gradient)})")


def mixture(*parts: tuple[float, Estimator]) -> Estimator:
    """Builds a weighted sum of estimators: ``mixture((0.5, k1), (0.5, k3))``.

    Args:
        *parts: pairs of weight and estimator. What the mixture follows is the same mixture of what the parts follow.

    Raises:
        ValueError: without parts.
    """
    if not parts:
        raise ValueError("kl.mixture: no parts given; pass pairs such as (0.5, kl.k1), (0.5, kl.k3)")

    def estimator(log_ratio: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return sum((weight * part(log_ratio) for weight, part in parts), jnp.zeros_like(log_ratio))

    return _named(estimator, " + ".join(f"{weight:g} {name_of(part)}" for weight, part in parts))


def clamped(estimator: Estimator, limit: float = 10.0) -> Estimator:
    """Builds an estimator whose value is clamped to [-limit, limit] while its gradient stays that of the unclamped one.

    A plain clamp has no gradient beyond the limit: k3 clamped at 10 lets a token go once p/pi > e^2.610869. Here the
    pull goes on. In the reward, where only the value counts, a clamp always changes what is followed.

    Args:
        estimator: the estimator to clamp.
        limit: largest absolute value, nats, > 0.

    Raises:
        ValueError: limit not positive.
    """
    if not limit > 0:
        raise ValueError(f"kl.clamped: limit is {limit}; it must be > 0 nats (10 is common)")

    def clamped_estimator(log_ratio: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        value = estimator(log_ratio)
        return value + jax.lax.stop_gradient(jnp.clip(value, -limit, limit) - value)

    return _named(clamped_estimator, f"clamped({name_of(estimator)}, {limit:g})")


def name_of(estimator: Estimator) -> str:
    """Returns the estimator's name for messages and certificates."""
    return getattr(estimator, "__name__", type(estimator).__name__)


def _named(estimator: Estimator, name: str) -> Estimator:
    setattr(estimator, "__name__", name)  # noqa: B010 (a Protocol has no __name__ to assign to)
    return estimator
