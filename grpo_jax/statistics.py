"""Averages kept as (total, count) until the end, so that micro-batches, devices and hosts give one number."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class Mean(NamedTuple):
    """A mean that is not yet divided.

    Attributes:
        total: sum of the values, scalar.
        count: the denominator, scalar, never negative. Zero: there was nothing to average.
    """

    total: Float[Array, ""]
    count: Float[Array, ""]

    def merge(self, other: "Mean") -> "Mean":
        """Returns the mean over both sets of values."""
        return Mean(self.total + other.total, self.count + other.count)

    def compute(self) -> Float[Array, ""]:
        """Returns total / count; exactly 0, with gradient 0, where count is 0."""
        return self.total / jnp.where(self.count > 0, self.count, 1)


class Moments(NamedTuple):
    """Count, mean and summed squared deviation: two passes, merged without cancellation (Chan et al. 1979)."""

    count: Float[Array, ""]
    mean: Float[Array, ""]
    squares: Float[Array, ""]

    def merge(self, other: "Moments") -> "Moments":
        """Returns the moments of both sets of values together."""
        count = self.count + other.count
        safe = jnp.where(count > 0, count, 1)
        delta = other.mean - self.mean
        mean = self.mean + delta * other.count / safe
        squares = self.squares + other.squares + delta**2 * self.count * other.count / safe
        return Moments(count, mean, squares)

    def std(self) -> Float[Array, ""]:
        """Returns the population standard deviation (ddof 0); 0 where there is nothing."""
        return jnp.sqrt(self.squares / jnp.where(self.count > 0, self.count, 1))


class Maximum(NamedTuple):
    """The largest value; minus infinity where there was none."""

    value: Float[Array, ""]

    def merge(self, other: "Maximum") -> "Maximum":
        """Returns the larger of both."""
        return Maximum(jnp.maximum(self.value, other.value))


Statistic = Mean | Moments | Maximum


def masked(values: Float[Array, "*shape"], mask: Bool[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns the values with masked entries exactly 0, in value and in gradient, whatever stood there."""
    return jnp.where(mask, values, 0)


def mean_of(values: Float[Array, "*shape"], mask: Bool[Array, "*shape"]) -> Mean:
    """Returns the mean of the unmasked values, undivided."""
    return Mean(jnp.sum(masked(values, mask)), jnp.sum(mask, dtype=values.dtype))


def moments_of(values: Float[Array, "*shape"], mask: Bool[Array, "*shape"]) -> Moments:
    """Returns count, mean and summed squared deviation of the unmasked values."""
    mean = mean_of(values, mask)
    centre = mean.compute()
    squares = jnp.sum(jnp.square(masked(values - centre, mask)))
    return Moments(mean.count, centre, squares)


def maximum_of(values: Float[Array, "*shape"], mask: Bool[Array, "*shape"]) -> Maximum:
    """Returns the largest unmasked value."""
    return Maximum(jnp.max(jnp.where(mask, values, -jnp.inf), initial=-jnp.inf))
