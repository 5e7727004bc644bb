"""Orders of tuning on grids made by hand, the traced learning rate, and that the page says what was recorded."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import grpo_jax as gj
from experiments.small_scale import records
from experiments.small_scale.seeds import detectable, mean_interval
from experiments.tuning_order import grid, orders, run

README = (run.HERE / "README.md").read_text(encoding="utf-8")


def test_the_step_at_a_traced_rate_is_that_of_adam_at_the_rate():
    params = {"w": jnp.array([0.3, -2.0])}
    ours, theirs = grid.step_at(jnp.float32(3e-3)), gj.updates.adam(3e-3, warmup_steps=5)
    states = [each.init(params) for each in (ours, theirs)]
    for number in range(3):
        gradient = {"w": jnp.array([0.1 + number, 5.0 * number])}
        (one, first), (other, second) = (
            each.update(gradient, state, params) for each, state in zip((ours, theirs), states, strict=True)
        )
        np.testing.assert_allclose(one["w"], other["w"], rtol=1e-6)
        states = [first, second]


def test_where_an_order_ends_depends_on_it_unless_the_axes_add_up():
    """On a ridge, where rate and beta must change together, the first axis to be tuned decides."""
    ridge = np.array([[[1.0], [0.0]], [[0.2], [2.0]]])
    assert orders.tuned(ridge, (0, 1, 2), (0, 1, 0)) == (1, 1, 0)
    assert orders.tuned(ridge, (1, 0, 2), (0, 1, 0)) == (0, 0, 0)
    added = np.add.outer(np.add.outer([0.0, 3.0, 1.0], [2.0, 0.0]), [0.0, 1.0])
    for order, begin in itertools.product(orders.ORDERS, np.ndindex(added.shape)):
        assert orders.tuned(added, order, begin) == (1, 0, 1)


def test_points_at_random_are_the_mean_over_all_draws():
    tune = np.random.default_rng(0).normal(size=(3, 2, 1))
    assert orders.visited(tune.shape) == 4
    expected = np.zeros(6)
    subsets = list(itertools.combinations(range(6), 4))
    for subset in subsets:
        expected[max(subset, key=lambda at: tune.ravel()[at])] += 1 / len(subsets)
    way, points = orders.ways(tune.shape, [(0, 0, 0)])["points at random"]
    assert points == 4
    np.testing.assert_allclose(way(tune).ravel(), expected, atol=1e-12)


def test_a_seed_is_judged_by_what_others_chose():
    """Seeds 0 and 1 like the first rate, 2 and 3 the second: only halves of one kind agree with themselves."""
    values = np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.9, 0.9]])[:, None, None, :]
    found = orders.ways((2, 1, 1), [(0, 0, 0), (1, 0, 0)])
    reached, share = orders.reached(values, found["all of the grid"][0])
    # Of the three halves without seed 0 the pairs (1, 2) and (1, 3) choose the first rate, (2, 3) the second.
    np.testing.assert_allclose(reached, [2 / 3, 2 / 3, 0.0, 0.0], atol=1e-12)
    assert share == 1
    untuned, share = orders.reached(values, found["not tuned"][0])
    np.testing.assert_allclose(untuned, [0.5, 0.5, 0.45, 0.45])
    assert share == 0.5


def test_the_interval_is_that_of_a_mean_where_nothing_is_chosen():
    """Between two fixed points the jackknife is Student's interval of the differences, paired by seed."""
    values = np.random.default_rng(1).normal(size=(2, 1, 1, 6))
    one, other = (lambda mean, at=at: np.eye(2)[at].reshape(2, 1, 1) for at in (0, 1))
    found, seen = orders.above(values, one, other)
    differences = values[0, 0, 0] - values[1, 0, 0]
    np.testing.assert_allclose(found, mean_interval(differences))
    assert seen == pytest.approx(detectable(differences))


def test_the_page_has_the_recorded_runs():
    rows = records.recorded(run.HERE / "results.jsonl", grid.LABELS)
    tried = grid.Grid()
    assert sorted(rows) == sorted(itertools.product(tried.groups, tried.rates, tried.betas))
    assert all(row["seeds"] >= 5 for row in rows.values())
    assert orders.points(rows, tried) in README
    assert orders.report(rows, tried) in README
    assert (run.HERE / "figure.png").exists()
