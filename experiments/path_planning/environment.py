"""Several agents on a grid with walls: they move at the same time, and a collision ends the episode.

Written for one grid and one episode; ``vmap`` makes it many. Axis letters: S side of the grid, C = S * S cells (row by
row), N agents, H steps of an episode, A = 5 actions (stay, up, down, left, right).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from grpo_jax.types import Prompts

MOVES = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
"""Rows and columns that each action adds."""
ACTIONS = len(MOVES)


class Grid(NamedTuple):
    """One problem.

    Attributes:
        walls: cells that nobody enters ``[S, S]``.
        starts: cell of each agent before the first step ``[N]``, all different.
        goals: cell that each agent has to be at ``[N]``, all different.
    """

    walls: Bool[Array, "S S"]
    starts: Int[Array, " N"]
    goals: Int[Array, " N"]


class State(NamedTuple):
    """An episode at one moment.

    Attributes:
        cells: where each agent stands ``[N]``.
        ended: whether it is over; then nothing changes any more.
        won: whether all agents were at their goals at the same time, without a collision before.
    """

    cells: Int[Array, " N"]
    ended: Bool[Array, ""]
    won: Bool[Array, ""]


def start(grid: Grid) -> State:
    """Returns the state before the first step."""
    won = jnp.all(grid.starts == grid.goals)
    return State(grid.starts, won, won)


def destinations(walls: Bool[Array, "S S"]) -> Int[Array, "C A"]:
    """Returns where each action leads from each cell; off the grid and into a wall it leads nowhere: one stays."""
    side = walls.shape[0]
    rows, columns = jnp.divmod(jnp.arange(side * side)[:, None], side)
    down, right = jnp.array(MOVES).T
    to_row, to_column = rows + down[None], columns + right[None]
    inside = (to_row >= 0) & (to_row < side) & (to_column >= 0) & (to_column < side)
    to = jnp.clip(to_row, 0, side - 1) * side + jnp.clip(to_column, 0, side - 1)
    return jnp.where(inside & ~walls.reshape(-1)[to], to, jnp.arange(side * side)[:, None])


def collided(cells: Int[Array, " N"], following: Int[Array, " N"]) -> Bool[Array, ""]:
    """Returns whether any two agents get into the same cell or exchange their cells.

    To follow another agent into the cell that it leaves is allowed.
    """
    same = following[:, None] == following[None]
    exchanged = (following[:, None] == cells[None]) & (following[None] == cells[:, None])
    return jnp.any((same | exchanged) & ~jnp.eye(cells.shape[0], dtype=bool))


def step(grid: Grid, leads: Int[Array, "C A"], state: State, actions: Int[Array, " N"]) -> State:
    """Returns the state after all agents have acted at the same time.

    Args:
        grid: the problem.
        leads: ``destinations(grid.walls)``.
        state: before.
        actions: of each agent, in [0, A).
    """
    following = leads[state.cells, actions]
    collision = collided(state.cells, following)
    won = state.won | (~state.ended & ~collision & jnp.all(following == grid.goals))
    cells = jnp.where(state.ended, state.cells, following)
    return State(cells, state.ended | collision | won, won)


def replay(grid: Grid, actions: Int[Array, "H N"]) -> tuple[State, State]:
    """Returns the state before each of the actions, with axis ``H``, and the one after the last."""
    leads = destinations(grid.walls)

    def body(state: State, chosen: Int[Array, " N"]) -> tuple[State, State]:
        return step(grid, leads, state, chosen), state

    last, before = jax.lax.scan(body, start(grid), actions)
    return before, last


def distances(walls: Bool[Array, "S S"], goal: Int[Array, ""]) -> Int[Array, " C"]:
    """Returns the steps that one agent alone needs from each cell to the goal; C where there is no way."""
    cells = walls.size
    leads = destinations(walls)
    first = jnp.where(jnp.arange(cells) == goal, 0, cells)

    def relaxed(_, field: Int[Array, " C"]) -> Int[Array, " C"]:
        return jnp.where(walls.reshape(-1), cells, jnp.minimum(field, 1 + jnp.min(field[leads], axis=1)))

    return jax.lax.fori_loop(0, cells, relaxed, first)


def prompt(grid: Grid) -> Int[Array, " L"]:
    """Writes a grid as the tokens of a prompt: C walls (0 or 1), N starts, N goals."""
    return jnp.concatenate([grid.walls.reshape(-1).astype(jnp.int32), grid.starts, grid.goals])


def prompts(grids: Grid) -> Prompts:
    """Writes grids, with a leading axis P, as prompts ``[P, L]``."""
    tokens = jax.vmap(prompt)(grids)
    return Prompts(tokens, jnp.ones(tokens.shape, bool))


def grid_of(tokens: Int[Array, " L"], agents: int) -> Grid:
    """Reads a grid from the tokens of a prompt."""
    cells = tokens.shape[0] - 2 * agents
    side = round(cells**0.5)
    walls, starts, goals = jnp.split(tokens, [cells, cells + agents])
    return Grid(walls.reshape(side, side) > 0, starts, goals)


def drawn(side: int, agents: int, density: float, *, key: Key[Array, ""]) -> tuple[Grid, Bool[Array, ""]]:
    """Draws a grid, and whether it is fit to be used: no agent is home already or cut off from its goal.

    Args:
        side: S.
        agents: N.
        density: probability of each cell to be a wall, in [0, 1).
        key: consumed.
    """
    walling, starting, ending = jax.random.split(key, 3)
    walls = jax.random.bernoulli(walling, density, (side, side))

    def places(key: Key[Array, ""]) -> Int[Array, " N"]:
        order: Float[Array, " C"] = jax.random.uniform(key, (side * side,)) + walls.reshape(-1)
        return jnp.argsort(order)[:agents].astype(jnp.int32)

    grid = Grid(walls, places(starting), places(ending))
    away = jax.vmap(distances, (None, 0))(walls, grid.goals)[jnp.arange(agents), grid.starts]
    free = jnp.sum(~walls) >= agents
    return grid, free & jnp.all((away > 0) & (away < side * side))


def draw(count: int, side: int, agents: int, density: float, *, key: Key[Array, ""]) -> Grid:
    """Draws so many grids that are fit to be used, with a leading axis P; not to be traced.

    Raises:
        ValueError: too few of those drawn are fit.
    """
    many = jax.jit(jax.vmap(lambda key: drawn(side, agents, density, key=key)))
    grids, fit = many(jax.random.split(key, 8 * count))
    chosen = jnp.flatnonzero(fit)[:count]
    if chosen.shape[0] < count:
        raise ValueError(f"draw: density is {density}; of {8 * count} grids {chosen.shape[0]} are fit, lower it")
    return jax.tree.map(lambda leaf: leaf[chosen], grids)
