"""What each order of tuning one number after the other ends at, read off the recorded grid."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from experiments.small_scale.records import last
from experiments.small_scale.seeds import Interval, mean_interval
from experiments.small_scale.tables import markdown
from experiments.tuning_order.grid import Grid
from grpo_jax.oracle.student import t_quantile

AXES = ("learning rate", "beta", "group size")
ORDERS = tuple(itertools.permutations(range(3)))
PRICE = 0.3
"""Of a nat of KL(pi||p), in accuracy."""
MEASURES: dict[str, Callable[[dict[str, Any]], np.ndarray]] = {
    f"accuracy - {PRICE:g} KL": lambda row: last(row, "accuracy_sums") - PRICE * last(row, "reverse_kl"),
    "accuracy": lambda row: last(row, "accuracy_sums"),
}
"""What is tuned for, of each seed."""

Point = tuple[int, ...]
Way = Callable[[np.ndarray], np.ndarray]
"""Scores on the seeds to tune on ``[rates, betas, groups]`` to the probability of ending at each point, as large."""


def name_of(order: Sequence[int]) -> str:
    """Returns an order in words."""
    return ", ".join(AXES[axis] for axis in order)


ARTICLE = name_of(ORDERS[0])
"""Learning rate, beta, group size."""


def scores(rows: dict[tuple, dict[str, Any]], grid: Grid, measure: str) -> np.ndarray:
    """Returns a measure of every run ``[rates, betas, groups, S]``."""
    cells = [[[MEASURES[measure](rows[g, r, b]) for g in grid.groups] for b in grid.betas] for r in grid.rates]
    return np.array(cells)


def tuned(mean: np.ndarray, order: Sequence[int], begin: Point) -> Point:
    """Returns where tuning one axis after the other ends.

    Args:
        mean: scores ``[rates, betas, groups]``.
        order: the axes, the first one first.
        begin: the point to start from.
    """
    point = list(begin)
    for axis in order:
        line = mean[tuple(slice(None) if each == axis else point[each] for each in range(3))]
        point[axis] = int(np.argmax(line))
    return tuple(point)


def visited(shape: Point) -> int:
    """Returns how many points one axis after the other takes; where it starts is one of the first axis."""
    return sum(shape) - len(shape) + 1


def everywhere(shape: Point) -> list[Point]:
    """Returns every point of a grid."""
    return list(itertools.product(*map(range, shape)))


def middle(shape: Point) -> Point:
    """Returns the point in the middle of a grid; of two the one with the smaller value."""
    return tuple((size - 1) // 2 for size in shape)


def ways(shape: Point, starts: Sequence[Point]) -> dict[str, tuple[Way, int]]:
    """Returns the ways of tuning by name, each with the number of points that it trains at most.

    Args:
        shape: of the grid.
        starts: points that tuning one axis after the other starts from, each with the same probability.
    """
    one_pass, size = visited(shape), math.prod(shape)

    def ends(at: Sequence[Point], weights: Sequence[float] | None = None) -> np.ndarray:
        found = np.zeros(shape)
        np.add.at(found, tuple(np.array(at).T), 1 / len(at) if weights is None else weights)
        return found

    def in_order(order: Sequence[int]) -> Way:
        return lambda mean: ends([tuned(mean, order, begin) for begin in starts])

    def at_random(mean: np.ndarray) -> np.ndarray:
        # Of n points drawn without replacement the best is the one of rank i with this probability.
        ranks = [math.comb(size - 1 - rank, one_pass - 1) / math.comb(size, one_pass) for rank in range(size)]
        ranked = np.unravel_index(np.argsort(-mean.ravel(), kind="stable"), shape)
        return ends([tuple(map(int, at)) for at in zip(*ranked, strict=True)], ranks)

    found = {name_of(order): (in_order(order), one_pass) for order in ORDERS}
    return found | {
        "the article's order twice": (in_order(ORDERS[0] * 2), 2 * one_pass - 1),
        "points at random": (at_random, one_pass),
        "all of the grid": (lambda mean: ends([tuple(map(int, np.unravel_index(np.argmax(mean), shape)))]), size),
        "not tuned": (lambda mean: ends(starts), 0),
    }


def reached(values: np.ndarray, way: Way) -> tuple[np.ndarray, float]:
    """Returns what a way of tuning reaches on seeds that it was not tuned on ``[S]``, and how often the best point.

    Every half of the seeds is tuned on once; a seed's number is the mean over the halves that it is not in.

    Args:
        values: scores ``[rates, betas, groups, S]``.
        way: of tuning.

    Returns:
        The scores, and the probability of ending at the point that is the best one on the seeds tuned on.
    """
    seeds = values.shape[-1]
    total, count, hits = np.zeros(seeds), np.zeros(seeds), []
    for half in itertools.combinations(range(seeds), seeds // 2):
        mean = values[..., list(half)].mean(axis=-1)
        ends, others = way(mean), np.setdiff1d(range(seeds), half)
        total[others] += np.einsum("rbg,rbgs->s", ends, values[..., others])
        count[others] += 1
        hits.append(ends.ravel()[np.argmax(mean)])
    return total / count, float(np.mean(hits))


def above(values: np.ndarray, way: Way, other: Way) -> tuple[Interval, float]:
    """Returns how much more one way reaches than another, and what would have been seen with 80 %.

    Seeds choose for each other, so the values of ``reached`` are not independent: the 95 % interval is the jackknife's,
    from doing everything again without each seed.

    Args:
        values: scores ``[rates, betas, groups, S]``, at least three seeds.
        way: of tuning.
        other: to compare with.
    """

    def more(some: np.ndarray) -> float:
        return float(np.mean(reached(some, way)[0] - reached(some, other)[0]))

    seeds, mean = values.shape[-1], more(values)
    without = [more(np.delete(values, seed, axis=-1)) for seed in range(seeds)]
    error = math.sqrt((seeds - 1) * np.var(without))
    half = t_quantile(seeds - 1) * error
    return Interval(mean, mean - half, mean + half), half + t_quantile(seeds - 1, 0.6) * error


def report(rows: dict[tuple, dict[str, Any]], grid: Grid) -> str:
    """Returns a Markdown table for each measure, and the best point of the grid."""
    parts = []
    for measure in MEASURES:
        values = scores(rows, grid, measure)
        best = np.unravel_index(np.argmax(values.mean(axis=-1)), values.shape[:-1])
        rate, beta, group = (each[at] for each, at in zip((grid.rates, grid.betas, grid.groups), best, strict=True))
        top = f"rate {rate:g}, beta {beta:g}, group size {group}: {mean_interval(values[best])}"
        parts.append(f"{_table(values, measure)}\n\nbest of the grid by all seeds, {measure}: {top}")
    return "\n\n".join(parts)


def _table(values: np.ndarray, measure: str) -> str:
    shape = values.shape[:-1]
    more = "above the article's order"
    heads = ["way of tuning", "points", measure, more, "seen with 80 %", "at best", "from the middle", more]
    lines = []
    anywhere, usual = ways(shape, everywhere(shape)), ways(shape, [middle(shape)])
    for name, (way, points) in anywhere.items():
        found, share = reached(values, way)
        cells = [
            name,
            f"{points}",
            _plain(found),
            "",
            "",
            f"{share:.2f}",
            _plain(reached(values, usual[name][0])[0]),
            "",
        ]
        if name != ARTICLE:
            difference, seen = above(values, way, anywhere[ARTICLE][0])
            cells[3:5] = [_signed(difference), f"{seen:.3f}"]
            cells[7] = _signed(above(values, usual[name][0], usual[ARTICLE][0])[0])
        lines.append(cells)
    return markdown(heads, lines)


def _plain(values: np.ndarray) -> str:
    found = mean_interval(values)
    return f"{found.mean:.3f} ±{found.high - found.mean:.3f}"


def _signed(found: Interval) -> str:
    return f"{found.mean:+.3f} ({found.low:+.3f} to {found.high:+.3f})"


def points(rows: dict[tuple, dict[str, Any]], grid: Grid) -> str:
    """Returns the grid as a Markdown table: accuracy, and KL in nats, means over seeds, for each group size."""
    heads = ("learning rate", "beta", *(f"group size {group}" for group in grid.groups))
    lines = []
    for rate, beta in itertools.product(grid.rates, grid.betas):
        found = [rows[group, rate, beta] for group in grid.groups]
        cells = [f"{np.mean(last(row, 'accuracy_sums')):.3f}, {np.mean(last(row, 'reverse_kl')):.2f}" for row in found]
        lines.append([f"{rate:g}", f"{beta:g}", *cells])
    return markdown(heads, lines)
