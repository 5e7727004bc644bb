"""Which gradient a KL term follows, worked out from the estimator itself.

Every placement turns an estimator f into a weight w(u) on the score: the expected gradient is E[w(u) s]. In the loss
w = f' (path-wise), in the reward w = f, and with a differentiable importance ratio w = f + f'. For sequences

    E[u s] = grad KL(pi||p)        E[-exp(-u) s] = grad KL(p||pi)        E[1 s] = 0

so whatever w = a u - b exp(-u) + c follows a * reverse + b * forward *exactly*, and anything else follows no objective.
Per token the same holds at frozen prefixes (the `local_` targets). The coefficients are found by fitting w, so a
user's estimator is declared like a shipped one; the oracle proves the declarations by enumeration.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# Wide enough to see a clamp at 10 nats; below -20 k3 itself goes on as its tangent.
_GRID = np.linspace(-16.0, 32.0, 193)
_SCALE = 1 + np.abs(_GRID) + np.exp(-_GRID)
_TOLERANCE = 2e-5


class Target(NamedTuple):
    """A linear combination of known gradients, or none.

    Attributes:
        reverse: coefficient of grad KL(pi||p) over sequences.
        local_reverse: of sum_t E[KL(pi(.|prefix)||p(.|prefix))] with prefixes drawn from pi and frozen.
        forward: of grad KL(p||pi) over sequences.
        local_forward: of the forward KL per token at frozen prefixes of pi.
        sampler_local_reverse: like ``local_reverse`` at prefixes of the sampling policy.
        sampler_local_forward: like ``local_forward`` at prefixes of the sampling policy.
        length: of grad E[1/|y|], a push on length that does not know the reference.
        slope: pull per nat near the reference, w'(0); 0 or less means nothing leads back to it.
        constant: c, the weight on the bare score. It pulls nowhere unless
            completions are divided by their own lengths.
        none: why it follows no objective; empty when the coefficients say all.
    """

    reverse: float = 0.0
    local_reverse: float = 0.0
    forward: float = 0.0
    local_forward: float = 0.0
    sampler_local_reverse: float = 0.0
    sampler_local_forward: float = 0.0
    length: float = 0.0
    slope: float = 0.0
    constant: float = 0.0
    none: str = ""

    @property
    def coefficients(self) -> dict[str, float]:
        """The non-zero coefficients by name."""
        names = self._fields[: self._fields.index("slope")]
        return {name: value for name in names if (value := getattr(self, name))}

    @property
    def name(self) -> str:
        """The target in words: "reverse", "zero", "reverse - local_forward", "none"."""
        if self.none:
            return "none"
        terms = [_term(value, name) for name, value in self.coefficients.items()]
        return " ".join(terms).removeprefix("+ ") or "zero"

    def plus(self, other: "Target") -> "Target":
        """Returns the target followed by the sum of both terms."""
        names = self._fields[: self._fields.index("none")]
        sums = {name: _tidy(getattr(self, name) + getattr(other, name)) for name in names}
        return Target(**sums, none=self.none or other.none)

    def without(self, reason: str) -> "Target":
        """Returns the target `none` with the reason, keeping the slope."""
        return Target(slope=self.slope, none=reason)


class Pull(NamedTuple):
    """The fit of a weight w(u) = reverse * u - forward * exp(-u) + constant.

    Attributes:
        reverse: coefficient of u.
        forward: coefficient of -exp(-u).
        constant: c.
        slope: w'(0) by central difference where w is outside this family, else reverse + forward.
        exact: whether w lies in the family.
    """

    reverse: float
    forward: float
    constant: float
    slope: float
    exact: bool


def value_pull(estimator: Callable) -> Pull:
    """Returns the pull of an estimator in the reward, w = f."""
    return _fit(lambda u: estimator(u))


def path_pull(estimator: Callable) -> Pull:
    """Returns the pull of an estimator in the loss, w = f'."""
    return _fit(jax.vmap(jax.grad(lambda u: jnp.sum(estimator(u)))))


def total_pull(estimator: Callable) -> Pull:
    """Returns the pull of an estimator under a differentiable importance ratio, w = f + f'."""
    return _fit(lambda u: estimator(u) + jax.vmap(jax.grad(lambda x: jnp.sum(estimator(x))))(u))


def sequence_target(pull: Pull) -> Target:
    """Returns what a weight on the sequence's log-ratio follows."""
    return _declare(pull, Target(reverse=pull.reverse, forward=pull.forward))


def token_target(pull: Pull) -> Target:
    """Returns what a weight on each token's own score follows."""
    return _declare(pull, Target(local_reverse=pull.reverse, local_forward=pull.forward))


def return_target(pull: Pull) -> Target:
    """Returns what the sum (or sum to go) of token values in the reward follows.

    For f = a u - b (exp(-u) - 1): E[u_t] has the reverse gradient in full; E[exp(-u_t)] is 1 whatever the policy, so
    its score part is minus its path-wise part, which is local. A constant beside it, f(0), is charged for each token.
    """
    if pull.exact and abs(pull.constant - pull.forward) > 1e-3:
        return Target(slope=pull.slope).without(
            "where the policies agree it is not 0, so the return charges for length"
        )
    return _declare(pull, Target(reverse=pull.reverse, local_forward=pull.forward))


def check_elementwise(estimator: Callable) -> None:
    """Raises ValueError unless an estimator makes of every log-ratio one real number, whatever stands beside it."""
    with jax.ensure_compile_time_eval():
        grid = jnp.asarray(_GRID)
        try:
            alone = jax.vmap(estimator)(grid)
        except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
            raise ValueError(
                "kl: the estimator cannot be traced; write it with jax.numpy, and jnp.where in place of if"
            ) from error
        together = estimator(grid)
    for found in (alone, together):
        if not isinstance(found, jax.Array) or found.shape != grid.shape:
            what = f"shape {found.shape}" if isinstance(found, jax.Array) else f"a {type(found).__name__}"
            raise ValueError(
                f"kl: the estimator returned {what} for log-ratios of shape {grid.shape}; it must be a function of "
                "each log-ratio by itself and return an array of their shape"
            )
        if not jnp.issubdtype(found.dtype, jnp.floating):
            raise ValueError(f"kl: the estimator returned {found.dtype}; it must return real floating-point numbers")
    if not np.allclose(alone, together, rtol=1e-3, atol=1e-3, equal_nan=True):
        raise ValueError(
            "kl: the estimator's value at a log-ratio depends on the log-ratios beside it; it must be a function of "
            "each by itself. Sums over tokens are what placement and granularity are for"
        )


def at_sampler_prefixes(target: Target) -> Target:
    """Returns a local target moved to the prefixes of the sampling policy."""
    return target._replace(
        local_reverse=0.0,
        local_forward=0.0,
        sampler_local_reverse=target.local_reverse,
        sampler_local_forward=target.local_forward,
    )


def _declare(pull: Pull, target: Target) -> Target:
    if pull.exact:
        return target._replace(slope=pull.slope, constant=pull.constant)
    return Target(slope=pull.slope).without("the weight it puts on the score is not of the form a u - b exp(-u) + c")


def _fit(weight: Callable) -> Pull:
    with jax.ensure_compile_time_eval():
        values = np.asarray(weight(jnp.asarray(_GRID)), np.float64)
        near = np.asarray(weight(jnp.asarray([-1e-2, 1e-2])), np.float64)
    if not (np.all(np.isfinite(near)) and np.all(np.isfinite(values))):
        where = [f"{u:g}" for u in _GRID[~np.isfinite(values)]] or ["near 0"]
        raise ValueError(
            f"kl: the estimator, or its derivative, is not finite at log-ratios {', '.join(where[:3])}; "
            "it must be finite wherever |u| is moderate, since samples go there"
        )
    basis = np.stack([_GRID, -np.exp(-_GRID), np.ones_like(_GRID)], axis=1)
    solution = np.linalg.lstsq(basis / _SCALE[:, None], values / _SCALE, rcond=None)[0]
    error = np.max(np.abs(basis @ solution - values) / _SCALE)
    if error > _TOLERANCE:
        return Pull(0.0, 0.0, 0.0, float(near[1] - near[0]) / 2e-2, exact=False)
    reverse, forward, constant = (_tidy(float(x)) for x in solution)
    return Pull(reverse, forward, constant, _tidy(reverse + forward), exact=True)


def _tidy(value: float) -> float:
    return round(value, 4) + 0.0


def _term(value: float, name: str) -> str:
    size = "" if abs(value) == 1 else f"{abs(value):g} "
    return f"{'+' if value > 0 else '-'} {size}{name}"
