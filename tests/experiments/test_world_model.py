"""The icy grid: what is exact about it is what sampling says, and what a model that knows of no ice gets wrong."""

import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from experiments.world_model import report, run, training, world

HERE = Path(run.__file__).parent
REAL = world.truth()
POLICY = world.behaviour()
learned = jax.jit(world.learned, static_argnums=0)
KNOWN = learned(40, key=jax.random.key(2))


def test_chances_of_the_world_and_of_the_behaviour_are_chances():
    for chances in (REAL, POLICY):
        np.testing.assert_allclose(chances.sum(-1), 1)
        assert (chances > 0).all()
    assert sorted(set(world.ENDS)) == [-1, 0, 1]
    assert (world.ENDS[world.STARTS] == 0).all()


def test_returns_are_what_a_plain_recursion_over_time_says():
    policy = np.random.default_rng(1).dirichlet(np.ones(5), world.CELLS)
    worth = np.zeros(world.CELLS)
    for _ in range(world.HORIZON):
        new = np.zeros(world.CELLS)
        for cell, action, outcome in itertools.product(range(world.CELLS), range(5), range(5)):
            if world.ENDS[cell] == 0:
                to = world.LEADS[cell, outcome]
                chance = policy[cell, action] * REAL[cell, action, outcome]
                new[cell] += chance * (world.STEP + (world.ENDS[to] or worth[to]))
        worth = new
    found = world.returns(jnp.asarray(policy, jnp.float32), jnp.asarray(REAL, jnp.float32))
    np.testing.assert_allclose(found, worth[world.STARTS].mean(), rtol=1e-4)
    assert found < world.best()


def test_visits_are_the_shares_of_sampled_episodes():
    starts = jnp.tile(jnp.asarray(world.STARTS), 4000)
    walked = world.walk(jnp.log(POLICY), jnp.asarray(REAL), starts, key=jax.random.key(0))
    cells, actions, _, going = map(np.asarray, walked)
    expected = np.asarray(world.visits(jnp.asarray(POLICY), jnp.asarray(REAL))).mean(axis=0)
    for step in (0, 3, world.HORIZON - 1):
        shares = np.zeros((world.CELLS, 5))
        np.add.at(shares, (cells[:, step], actions[:, step]), going[:, step] / len(starts))
        np.testing.assert_allclose(shares, expected[step], atol=0.01)


def test_a_model_of_much_data_is_right_on_firm_ground_and_wrong_on_ice():
    wrong = np.asarray(world.divergence(learned(4000, key=jax.random.key(1)).dynamics, jnp.asarray(REAL)))
    ice = np.array([cell == "~" for cell in "".join(world.ROWS)])
    assert wrong[~ice].max() < 0.01
    assert wrong[ice].min() > 0.3
    few = world.divergence(KNOWN.dynamics, jnp.asarray(REAL))
    assert few[~ice].max() > wrong[~ice].max()


def test_halves_are_learned_from_different_episodes_and_the_whole_from_both():
    first, second = np.asarray(KNOWN.halves)
    assert np.abs(first - second).max() > 0.001
    low, high = np.minimum(first, second), np.maximum(first, second)
    rare = world.PRIOR / 10  # the prior counts once for the whole, twice for the halves
    assert (low - rare <= KNOWN.dynamics).all()
    assert (high + rare >= KNOWN.dynamics).all()


def test_costs_are_the_divergences_that_they_are_named_after():
    known = KNOWN
    against = training.costs("model to truth", known)
    np.testing.assert_allclose(
        against[3, 2], np.sum(known.dynamics[3, 2] * np.log(known.dynamics[3, 2] / REAL[3, 2])), rtol=1e-4
    )
    assert (training.costs("model to model", known) >= 0).all()
    assert not training.costs("policy to reference", known).any()


def test_what_each_token_was_moved_adds_up_to_the_kl_of_the_policy_and_is_zero_for_the_reference():
    still = training.looked(jnp.log(POLICY), KNOWN)
    np.testing.assert_allclose(still["moved"], 0, atol=1e-6)
    moved = training.looked(jnp.log(POLICY).at[:, 4].add(1.0), KNOWN)
    np.testing.assert_allclose(moved["moved"].sum(axis=-1).mean(), moved["policy_kl"], rtol=1e-5)
    step = jax.nn.softmax(jnp.log(POLICY[0]).at[4].add(1.0))
    np.testing.assert_allclose(moved["moved"][:, 0], np.sum(step * np.log(step / POLICY[0])), rtol=1e-4)


def test_the_readme_has_the_recorded_runs():
    rows = [json.loads(line) for line in (HERE / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    assert report.table(rows) in readme
    assert report.verdicts(rows) in readme
    assert all(row["seeds"] >= 5 for row in rows)
