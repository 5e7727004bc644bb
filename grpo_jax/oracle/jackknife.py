"""From the inner products of independent gradients to estimates with 95 % intervals.

With x_b the gradient of block b, S their sum and B their number, ``(|S|^2 - sum_b |x_b|^2) / (B (B - 1))`` contains
products of different blocks only, so its expectation is exactly |E x|^2: noise, which makes the norm of a mean too
large, cancels. Leaving one block out changes S by x_b, so the same with every block left out in turn follows from
|x_b|^2 and <x_b, S> alone; their spread is the jackknife's standard error, for any function of such products.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from grpo_jax.oracle.blocks import Products
from grpo_jax.oracle.references import Basis
from grpo_jax.oracle.student import t_quantile

ROUNDING = 1e-5
"""Size of a difference, relative to the gradients of single blocks, below which it may be float32's rounding."""
APART = 1e-5
"""Log-ratio in nats below which policy and reference differ, and gradients of KL consist, of float32's rounding."""


Combination = tuple[float, ...] | Float[Array, " n"]
"""Coefficients of the gradients in `Products`."""


class Interval(NamedTuple):
    """An estimate with its interval; NaN where it is not defined, or infinite where nothing bounds it.

    Attributes:
        value: the estimate.
        low: lower end.
        high: upper end.
    """

    value: Float[Array, "*shape"]
    low: Float[Array, "*shape"]
    high: Float[Array, "*shape"]


class Findings(NamedTuple):
    """What the gradients of blocks say of a KL term; in units of beta and of the declared scale.

    The *unit* is the gradient that the objective declares, or the reverse KL's where it declares none or zero.

    Attributes:
        cosine: between the expected gradient and the unit; not defined where one of them is not told from 0.
        cosine_reverse: between the expected gradient and the reverse KL's.
        relative_bias: norm of the expected difference from what is declared, over the norm of the unit.
        resolution: the relative bias that a sample like this one finds in about half of the cases.
        squared_bias: squared norm of the expected difference.
        squared_unit: squared norm of the unit.
        variance: trace of the covariance of the gradient for one group.
        mean_squared_error: squared bias plus variance, of the gradient of one group.
        projections: of the expected gradient on random unit vectors ``[K]``.
        differences: of the expected difference on the same ``[K]``.
        groups: groups in the sample.
        effective_sample_size: (sum w)^2 / (n sum w^2) of the importance weights, in (0, 1]; 1 on-policy.
        mean_weight: mean of the importance weights, whose expectation is 1, give or take four standard errors.
    """

    cosine: Interval
    cosine_reverse: Interval
    relative_bias: Interval
    resolution: Float[Array, ""]
    squared_bias: Interval
    squared_unit: Interval
    variance: Interval
    mean_squared_error: Float[Array, ""]
    projections: Interval
    differences: Interval
    groups: Float[Array, ""]
    effective_sample_size: Float[Array, ""]
    mean_weight: Interval


class Jackknifed(NamedTuple):
    """A statistic of all blocks, and of all but one, for each that is left out.

    Attributes:
        whole: of all blocks, scalar.
        without: without each block ``[B]``.
    """

    whole: Float[Array, ""]
    without: Float[Array, " B"]

    def interval(self) -> Interval:
        """Returns the estimate with its Student interval."""
        half = t_quantile(len(self.without) - 1) * standard_error(self.without)
        return Interval(self.whole, self.whole - half, self.whole + half)


def findings(products: Products, basis: Basis) -> Findings:
    """Returns every statistic of the blocks' inner products; may be jitted.

    Args:
        products: what `block_products` measured.
        basis: which of them is what.
    """
    mean, difference, unit = basis.mean, basis.difference, basis.unit
    bias, size = mean_product(products, difference, difference), mean_product(products, unit, unit)
    rounding = ROUNDING**2 * jnp.mean(jnp.einsum("i,bij,j->b", jnp.asarray(unit), products.own, jnp.asarray(unit)))
    squared_bias, resolution = _squared(products, difference, bias, rounding)
    seen = (size.interval().low > 0) & (products.apart > APART)
    variance = one_group_variance(products, basis.sample)
    number, total, squares = products.weights
    return Findings(
        cosine=_cosine(products, mean, unit, rounding),
        cosine_reverse=_cosine(products, mean, basis.reverse, rounding),
        relative_bias=_relative(bias, size, squared_bias, seen),
        resolution=jnp.where(seen, jnp.sqrt(resolution / jnp.where(seen, size.whole, 1)), jnp.nan),
        squared_bias=squared_bias,
        squared_unit=size.interval(),
        variance=variance.interval(),
        mean_squared_error=jnp.maximum(bias.whole, 0) + variance.whole,
        projections=_student(products.projections @ jnp.asarray(mean)),
        differences=_student(products.projections @ jnp.asarray(difference)),
        groups=jnp.sum(products.groups),
        effective_sample_size=jnp.square(total) / jnp.maximum(number * squares, 1e-30),
        mean_weight=_mean_weight(number, total, squares),
    )


def _mean_weight(number: Array, total: Array, squares: Array) -> Interval:
    count = jnp.maximum(number, 1)
    mean = total / count
    error = 4 * jnp.sqrt(jnp.maximum(squares / count - jnp.square(mean), 0) / count)
    return Interval(mean, mean - error, mean + error)


def mean_product(products: Products, one: Combination, other: Combination) -> Jackknifed:
    """Returns the unbiased estimate of the product of two expected gradients, given as combinations of the basis."""
    a, b = jnp.asarray(one), jnp.asarray(other)
    own = jnp.einsum("i,bij,j->b", a, products.own, b)
    forth, back = (jnp.einsum("i,bij,j->b", x, products.sums, y) for x, y in ((a, b), (b, a)))
    count, total, alone = len(own), jnp.sum(forth), jnp.sum(own)
    without = (total - forth - back + own) - (alone - own)
    return Jackknifed((total - alone) / (count * (count - 1)), without / ((count - 1) * (count - 2)))


def one_group_variance(products: Products, one: Combination) -> Jackknifed:
    """Returns the trace of a gradient's covariance, of the mean over blocks scaled up to one group."""
    a = jnp.asarray(one)
    own = jnp.einsum("i,bij,j->b", a, products.own, a)
    rows = jnp.einsum("i,bij,j->b", a, products.sums, a)
    count, total, alone = len(own), jnp.sum(rows), jnp.sum(own)
    whole = (alone - total / count) / (count - 1)
    without = (alone - own - (total - 2 * rows + own) / (count - 1)) / (count - 2)
    groups = jnp.mean(products.groups)
    return Jackknifed(whole * groups, without * groups)


def standard_error(without: Float[Array, " B"]) -> Float[Array, ""]:
    """Returns the jackknife's standard error from a statistic with each block left out."""
    count = len(without)
    return jnp.sqrt((count - 1) / count * jnp.sum(jnp.square(without - jnp.mean(without))))


def _combined(function: Callable, *parts: Jackknifed) -> Jackknifed:
    return Jackknifed(function(*(part.whole for part in parts)), function(*(part.without for part in parts)))


def _cosine(products: Products, one: Combination, other: Combination, rounding: Float[Array, ""]) -> Interval:
    """Returns the interval of a cosine: the union of the jackknife's and of that of the squared norm of what is left.

    What is left of the one when its part along the other is taken away has the sine's share of its squared norm, and
    near 0, where the jackknife of the cosine fails, `_squared` does not.
    """
    both, mine, yours = (mean_product(products, *pair) for pair in ((one, other), (one, one), (other, other)))
    seen = (mine.interval().low > 0) & (yours.interval().low > 0) & (products.apart > APART)
    plain = _combined(lambda x, y, z: x * _root(1 / y) * _root(1 / z), both, mine, yours).interval()
    rest = jnp.asarray(one) - both.whole / yours.whole * jnp.asarray(other)
    left, _ = _squared(products, rest, mean_product(products, rest, rest), rounding)
    ends = [jnp.sign(both.whole) * jnp.sqrt(jnp.clip(1 - end / mine.whole, 0, 1)) for end in (left.low, left.high)]
    low, high = (
        choose(plain_end, choose(*ends)) for choose, plain_end in ((jnp.minimum, plain.low), (jnp.maximum, plain.high))
    )
    return Interval(*(jnp.where(seen, jnp.clip(end, -1, 1), jnp.nan) for end in (plain.value, low, high)))


def _root(square: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    return jnp.where((square > 0) & jnp.isfinite(square), jnp.sqrt(jnp.maximum(square, 0)), jnp.nan)


def _squared(
    products: Products, one: Combination, square: Jackknifed, rounding: Float[Array, ""]
) -> tuple[Interval, Float[Array, ""]]:
    """Returns the interval of a squared norm, and the least square that would be told from 0.

    At 0 the estimate is no longer normal and its jackknifed error can be near 0 by chance. So the interval also
    contains every square theta for which the estimate is within t standard errors of the kind that theta would have:
    ``4 theta lambda / B + 2 tau^2 / (B (B - 1))`` with tau^2 the trace of the squared covariance, measured on pairs of
    neighbouring blocks, and lambda an eigenvalue of it, taken as tau^2 over the trace.
    """
    count = len(square.without)
    t, plain = t_quantile(count - 1), square.interval()
    trace = jnp.maximum(one_group_variance(products, one).whole / jnp.mean(products.groups), 0)
    a = jnp.asarray(one)
    pairs = jnp.einsum("i,bij,j->b", a, products.neighbours, a) - square.whole
    tau = jnp.minimum(jnp.sqrt(jnp.mean(jnp.square(pairs))), trace)
    slope = 4 * jnp.where(trace > 0, jnp.square(tau) / jnp.where(trace > 0, trace, 1), 0) / count
    level = 2 * jnp.square(tau) / (count * (count - 1))

    def edge(sign: float) -> Float[Array, ""]:
        middle = square.whole + t**2 * slope / 2
        inside = jnp.square(middle) - jnp.square(square.whole) + t**2 * level
        return middle + sign * jnp.sqrt(jnp.maximum(inside, 0))

    low, high = jnp.minimum(edge(-1.0), plain.low), jnp.maximum(edge(1.0), plain.high)
    least = t**2 * slope / 2 + jnp.sqrt(jnp.square(t**2 * slope / 2) + 2 * t**2 * level)
    return Interval(square.whole, jnp.maximum(low - rounding, 0), high + rounding), least + rounding


def _relative(bias: Jackknifed, size: Jackknifed, squared: Interval, seen: Array) -> Interval:
    """Returns the interval of |difference| / |unit|, the union of both kinds; NaN where the unit is not seen."""
    safe = jnp.where(seen, size.whole, 1)
    ratio = _combined(jnp.divide, bias, size).interval()
    low = jnp.minimum(ratio.low, squared.low / safe)
    high = jnp.maximum(ratio.high, squared.high / safe)
    ends = (bias.whole / safe, low, high)
    return Interval(*(jnp.where(seen, jnp.sqrt(jnp.maximum(end, 0)), jnp.nan) for end in ends))


def _student(blocks: Float[Array, "B K"]) -> Interval:
    """Returns means over blocks with Student's intervals, which need no more than their normality."""
    count = blocks.shape[0]
    mean = jnp.mean(blocks, axis=0)
    spread = jnp.sqrt(jnp.sum(jnp.square(blocks - mean[None]), axis=0) / (count - 1))
    half = t_quantile(count - 1) * spread / math.sqrt(count)
    return Interval(mean, mean - half, mean + half)
