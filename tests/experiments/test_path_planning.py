"""Several agents on a grid: what they may do, that the planner is exact, and that the library knows the policy."""

import functools
import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.path_planning import environment, planner, policy, report, run, training
from experiments.path_planning.environment import Grid, State
from experiments.small_scale.records import recorded

HERE = Path(run.__file__).parent
STAY, UP, DOWN, LEFT, RIGHT = range(5)


def grid(text, starts, goals):
    """Builds a grid from rows of # and ., and (row, column) of every start and goal."""
    walls = np.array([[cell == "#" for cell in row] for row in text.split()])
    flat = [jnp.array([row * len(walls) + column for row, column in places], jnp.int32) for places in (starts, goals)]
    return Grid(jnp.asarray(walls), *flat)


OPEN = grid("... ... ...", [(0, 0), (0, 1), (2, 2)], [(0, 1), (0, 2), (2, 2)])
LANE = grid("...# #### #### ####", [(0, 0), (0, 1), (0, 2)], [(0, 2), (0, 1), (0, 0)])
step = jax.jit(
    lambda grid, state, actions: environment.step(grid, environment.destinations(grid.walls), state, actions)
)
distances = jax.jit(environment.distances)
search = jax.jit(functools.partial(planner.joint_distances, horizon=9))


def after(grid, actions, cells=None):
    state = environment.start(grid)
    state = state if cells is None else state._replace(cells=jnp.array(cells, jnp.int32))
    return step(grid, state, jnp.array(actions, jnp.int32))


def test_walls_and_edges_keep_agents_where_they_are():
    leads = environment.destinations(grid(".#. ... ...", [(0, 0)], [(2, 2)]).walls)
    assert leads[0].tolist() == [0, 0, 3, 0, 0]
    assert leads[4].tolist() == [4, 4, 7, 3, 5]
    assert leads[8].tolist() == [8, 5, 8, 7, 8]


@pytest.mark.parametrize(
    ("cells", "actions", "collides"),
    [
        ((0, 2, 8), (RIGHT, LEFT, STAY), True),  # into one cell
        ((0, 1, 8), (RIGHT, STAY, STAY), True),  # into one that stands
        ((0, 1, 8), (RIGHT, LEFT, STAY), True),  # through each other
        ((3, 4, 8), (RIGHT, RIGHT, STAY), False),  # after one that leaves
        ((0, 1, 8), (UP, UP, DOWN), False),  # against the edge
        ((8, 0, 1), (STAY, RIGHT, LEFT), True),  # whichever agents it are
    ],
)
def test_a_collision_is_the_same_cell_or_an_exchange(cells, actions, collides):
    state = after(OPEN, actions, cells)
    assert bool(state.ended) == collides
    assert not state.won


def test_three_agents_may_move_around_in_a_circle():
    cells = jnp.array([0, 1, 3])
    assert not environment.collided(cells, jnp.array([1, 3, 0]))
    assert environment.collided(cells, jnp.array([1, 0, 3]))


def test_an_episode_is_won_when_all_are_home_at_once_and_nothing_moves_afterwards():
    won = after(OPEN, (RIGHT, RIGHT, STAY))
    assert won.won
    assert won.ended
    later = step(OPEN, won, jnp.array([LEFT, LEFT, UP]))
    assert later.cells.tolist() == won.cells.tolist() == OPEN.goals.tolist()
    assert later.won


def test_being_home_alone_wins_nothing_and_a_collision_is_final():
    one_home = after(OPEN, (STAY, RIGHT, STAY))
    assert not one_home.ended
    crashed = after(OPEN, (RIGHT, STAY, STAY))
    assert crashed.ended
    assert not crashed.won
    assert not step(OPEN, State(OPEN.starts, crashed.ended, crashed.won), jnp.array([RIGHT, RIGHT, STAY])).won


def test_distances_are_those_of_a_walk_around_the_walls():
    walled = grid(".#. .#. ...", [(0, 0)], [(0, 2)])
    assert distances(walled.walls, jnp.int32(2)).tolist() == [6, 9, 0, 5, 9, 1, 4, 3, 2]
    closed = grid("... ### ...", [(0, 0)], [(0, 2)])
    assert distances(closed.walls, jnp.int32(2)).tolist() == [2, 1, 0] + [9] * 6


def test_drawn_grids_are_fit_and_survive_as_prompts():
    grids = environment.draw(6, 4, 3, 0.3, key=jax.random.key(0))
    for number in range(6):
        one = jax.tree.map(lambda leaf, number=number: leaf[number], grids)
        back = environment.grid_of(environment.prompt(one), 3)
        assert all(np.array_equal(left, right) for left, right in zip(one, back, strict=True))
        cells = np.concatenate([one.starts, one.goals])
        assert len(set(cells[:3])) == len(set(cells[3:])) == 3
        assert not np.asarray(one.walls).reshape(-1)[cells].any()
        away = [distances(one.walls, goal)[start] for start, goal in zip(*one[1:], strict=True)]
        assert all(0 < steps < 16 for steps in away)


def test_a_grid_too_full_to_be_drawn_is_an_error():
    with pytest.raises(ValueError, match="density is 0.95"):
        environment.draw(2, 3, 3, 0.95, key=jax.random.key(0))


def brute_force(grid, horizon):
    """Breadth-first search over joint positions, one by one, backwards from the goals."""
    leads = np.asarray(environment.destinations(grid.walls))
    found = {tuple(grid.goals.tolist()): 0}
    frontier = list(found)
    for count in range(1, horizon + 1):
        new = []
        for here in frontier:
            for there in itertools.product(*(sorted(set(leads[cell].tolist())) for cell in here)):
                exchanged = any(there[i] == here[j] and there[j] == here[i] for i in range(3) for j in range(i))
                if len(set(there)) == 3 and not exchanged and there not in found:
                    found[there] = count
                    new.append(there)
        frontier = new
    return found


@pytest.mark.parametrize("text", ["... ... ...", ".#. ... ...", ".#. ... .#.", "... #.# ..."])
def test_the_planner_knows_the_distance_of_every_joint_position(text):
    # It stops once the starts are reached, and starts in one cell never are: so it searches everything.
    one = grid(text, [(0, 0)] * 3, [(0, 0), (2, 0), (2, 2)])
    expected = np.full((9, 9, 9), 10)
    for cells, steps in brute_force(one, 9).items():
        expected[cells] = steps
    np.testing.assert_array_equal(search(one), expected)


def test_a_plan_is_legal_and_as_short_as_the_planner_says():
    one = grid("... #.# ...", [(0, 0), (0, 2), (2, 0)], [(0, 2), (0, 0), (2, 2)])
    passed = planner.plan(one, 9)
    many = jax.tree.map(lambda leaf: leaf[None], one)
    assert len(passed) - 1 == planner.shortest(many, 9)[0] == brute_force(one, 9)[tuple(one.starts.tolist())]
    state = environment.start(one)
    leads = np.asarray(environment.destinations(one.walls))
    for here, there in itertools.pairwise(passed):
        actions = [int(np.flatnonzero(leads[a] == b)[0]) for a, b in zip(here, there, strict=True)]
        assert not state.ended
        state = step(one, state, jnp.array(actions, jnp.int32))
    assert state.won


def test_where_nobody_can_pass_there_is_no_plan():
    assert planner.shortest(jax.tree.map(lambda leaf: leaf[None], LANE), 9)[0] == 10
    with pytest.raises(ValueError, match="at most 9 steps"):
        planner.plan(LANE, 9)


def test_the_planner_refuses_another_number_of_agents():
    with pytest.raises(ValueError, match="2 agents"):
        planner.joint_distances(grid("... ... ...", [(0, 0), (1, 1)], [(0, 1), (2, 2)]), 9)


AGENTS, HORIZON = 3, 5
PARAMS = jax.tree.map(lambda leaf: leaf + 0.1, policy.init(AGENTS, 8, key=jax.random.key(1)))
OTHER = policy.init(AGENTS, 8, key=jax.random.key(2))
observed = jax.jit(lambda grid: policy.observations(policy.map_of(grid), grid.starts))
score = jax.jit(functools.partial(policy.score, AGENTS), static_argnames="entropy")


@pytest.fixture(scope="module")
def played():
    asked = environment.prompts(environment.draw(4, 4, AGENTS, 0.2, key=jax.random.key(3)))
    decide = functools.partial(policy.logits, PARAMS)
    play = jax.jit(functools.partial(policy.play, decide, agents=AGENTS, episodes=3, horizon=HORIZON))
    return play(asked, key=jax.random.key(4))


def test_scores_are_the_log_probs_that_episodes_were_sampled_with(played):
    rollout = played.rollout.check()
    np.testing.assert_allclose(score(PARAMS, rollout).log_probs, rollout.log_probs, atol=1e-5)
    assert np.abs(score(OTHER, rollout).log_probs - rollout.log_probs).max() > 0.01


def test_an_episode_counts_up_to_the_step_that_ends_it(played):
    steps = np.asarray(played.rollout.mask).reshape(4, 3, HORIZON, AGENTS)
    assert (steps.all(-1) == steps.any(-1)).all()
    lengths = steps.all(-1).sum(-1)
    assert set(np.unique(lengths)) > {HORIZON}
    assert (np.asarray(played.rollout.finished) | (lengths == HORIZON)).all()
    cells = np.asarray(played.cells)
    for prompt, member in np.ndindex(lengths.shape):
        settled = cells[prompt, member, lengths[prompt, member] :]
        assert (settled == settled[0]).all()


def test_the_exact_kl_is_that_of_the_two_policies_and_zero_to_itself(played):
    own = score(PARAMS, played.rollout, ref_params=PARAMS).full_kl
    other = np.asarray(score(PARAMS, played.rollout, ref_params=OTHER).full_kl)
    np.testing.assert_allclose(own, 0, atol=1e-6)
    mask = np.asarray(played.rollout.mask)
    assert (other[mask] > 0).all()
    assert (other[~mask] == 0).all()
    prompt = environment.grid_of(played.rollout.prompts.tokens[0], AGENTS)
    seen = observed(prompt)
    pi, p = (jax.nn.softmax(policy.logits(params, seen)) for params in (PARAMS, OTHER))
    np.testing.assert_allclose(other[0, 0, :AGENTS], jnp.sum(pi * jnp.log(pi / p), axis=-1), rtol=1e-3)


def test_agents_of_a_step_do_not_see_each_others_choice_but_all_see_the_step_before(played):
    rollout = played.rollout._replace(mask=jnp.ones_like(played.rollout.mask))
    changed = rollout._replace(tokens=rollout.tokens.at[..., 0].set((rollout.tokens[..., 0] + 1) % 5))
    difference = np.abs(score(PARAMS, changed).log_probs - score(PARAMS, rollout).log_probs)
    assert (difference[..., 1:AGENTS] == 0).all()
    assert difference[..., AGENTS:].max() > 0


def test_an_observation_has_the_walls_around_an_agent_the_others_in_sight_and_its_way():
    one = grid(".#. ... ...", [(1, 1), (1, 2), (2, 0)], [(2, 1), (0, 0), (2, 2)])
    seen = np.asarray(observed(one))
    assert seen.shape == (3, policy.features(3))
    views = seen[:, :25].reshape(3, 5, 5)
    expected = np.pad(np.asarray(one.walls, float), 1, constant_values=1)
    np.testing.assert_array_equal(views[0], expected)
    np.testing.assert_array_equal(policy.own_moves(jnp.asarray(seen))[0], [0, 0, 1, 0, 0])
    others = seen[0, 50:100].reshape(2, 5, 5)
    assert [np.argwhere(each).tolist() for each in others] == [[[2, 3]], [[3, 1]]]
    wishes = seen[0, 100:225].reshape(5, 5, 5)
    assert np.argwhere(wishes).tolist() == [[2, 3, LEFT], [3, 1, RIGHT]]


def test_the_objective_follows_the_reverse_kl():
    assert training.objective().target.name == "reverse"


def test_demonstrations_go_the_way_and_hesitate():
    setting = training.SMOKE
    one = grid(".#. ... ...", [(1, 1), (1, 2), (2, 0)], [(2, 1), (0, 0), (2, 0)])
    seen = observed(one)
    chances = np.exp(training.lone(setting, seen))
    np.testing.assert_allclose(chances.sum(-1), 1, rtol=1e-6)
    hesitates = setting.hesitation / 5
    np.testing.assert_allclose(chances[0], [hesitates] * 2 + [0.9 + hesitates] + [hesitates] * 2, rtol=1e-5)
    np.testing.assert_allclose(chances[2, STAY], 0.9 + hesitates, rtol=1e-5)


def test_the_readme_has_the_recorded_runs_and_they_reach_the_planners_share():
    rows = recorded(HERE / "results.jsonl", ("seed", "beta"))
    assert len(rows) == 5 * len(run.BETAS)
    assert all(row["setting"] == list(training.Setting()) for row in rows.values())
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    assert report.table(rows) in readme
    assert report.verdicts(rows) in readme
    assert (report.curves(rows, 0.0, "of planner")[:, -1] >= report.ENOUGH).all()
