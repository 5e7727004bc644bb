"""The exact planner: shortest joint plans of three agents, by breadth-first search over all of their joint positions.

A joint move is legal where no two agents end in one cell and no two exchange theirs; its reverse then is legal too, so
distances are found backwards from the goals. A plan of K steps is the shortest there is, and where the search finds
none within the horizon, none exists.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from experiments.path_planning.environment import Grid, destinations


def joint_distances(grid: Grid, horizon: int) -> Int[Array, "C C C"]:
    """Returns the joint steps to the goals from every joint position of three agents; horizon + 1 where more.

    With F the joint positions known so far as 0 and 1 and A the moves of one agent (staying included), those one step
    further back are the ones with at least one legal move into F. The number of these moves is that of all, a product
    of F with A along each axis, minus the exchanges of each pair; between positions without a collision no joint move
    has more than one exchange, so that nothing is subtracted twice.

    Args:
        grid: three agents.
        horizon: most steps.

    Raises:
        ValueError: another number of agents.
    """
    if grid.goals.shape != (3,):
        raise ValueError(f"joint_distances: the grid has {grid.goals.shape[0]} agents; the search is written for 3")
    moves = _moves(grid.walls)
    apart = ~jnp.eye(moves.shape[0], dtype=bool) & ~grid.walls.reshape(-1)[:, None] & ~grid.walls.reshape(-1)[None]
    legal = apart[:, :, None] & apart[:, None] & apart[None]
    first = jnp.full(legal.shape, horizon + 1, jnp.int8).at[tuple(grid.goals)].set(0)

    def further(found: tuple[Int[Array, ""], Int[Array, "C C C"]]) -> tuple[Int[Array, ""], Int[Array, "C C C"]]:
        count, steps = found
        known = (steps <= horizon).astype(jnp.float32)
        new = legal & (_ways(known, moves) > 0.5) & (steps > horizon)
        return count + 1, jnp.where(new, (count + 1).astype(jnp.int8), steps)

    def unfinished(found: tuple[Int[Array, ""], Int[Array, "C C C"]]) -> Bool[Array, ""]:
        count, steps = found
        return (count < horizon) & (steps[tuple(grid.starts)] > horizon)

    return jax.lax.while_loop(unfinished, further, (jnp.zeros((), jnp.int32), first))[1]


def _moves(walls: Bool[Array, "S S"]) -> Float[Array, "C C"]:
    cells = walls.size
    leads = destinations(walls)
    return jnp.zeros((cells, cells)).at[jnp.arange(cells)[:, None], leads].set(1.0)


def _ways(known: Float[Array, "C C C"], moves: Float[Array, "C C"]) -> Float[Array, "C C C"]:
    along = [jnp.einsum(f"abc,{axis}x->{'abc'.replace(axis, 'x')}", known, moves) for axis in "abc"]
    everything = jnp.einsum("abc,bx,ay->yxc", along[2], moves, moves)
    steps = moves * (1 - jnp.eye(moves.shape[0]))
    exchanges = (
        steps[:, :, None] * along[2].transpose(1, 0, 2)
        + steps[:, None] * along[1].transpose(2, 1, 0)
        + steps[None] * along[0].transpose(0, 2, 1)
    )
    return everything - exchanges


def shortest(grids: Grid, horizon: int) -> Int[np.ndarray, " P"]:
    """Returns the steps of the shortest joint plan for each grid; horizon + 1 where none is that short."""
    search = _search(horizon)
    each = [jax.tree.map(lambda leaf, number=number: leaf[number], grids) for number in range(len(grids.starts))]
    return np.array([int(search(grid)[tuple(np.asarray(grid.starts))]) for grid in each])


@functools.lru_cache
def _search(horizon: int):
    return jax.jit(functools.partial(joint_distances, horizon=horizon))


def plan(grid: Grid, horizon: int) -> Int[np.ndarray, "K N"]:
    """Returns one shortest joint plan, the cells of all agents at each moment from the start on.

    Raises:
        ValueError: there is none within the horizon.
    """
    steps = np.asarray(_search(horizon)(grid))
    here = tuple(int(cell) for cell in grid.starts)
    if steps[here] > horizon:
        raise ValueError(f"plan: no joint plan has at most {horizon} steps; allow more, or take another grid")
    leads, passed = np.asarray(destinations(grid.walls)), [here]
    while steps[here] > 0:
        choices = np.array(np.meshgrid(*(leads[cell] for cell in here), indexing="ij")).reshape(3, -1)
        exchanged = np.zeros(choices.shape[1], bool)
        for one, other in ((0, 1), (0, 2), (1, 2)):
            exchanged |= (choices[one] == here[other]) & (choices[other] == here[one])
        left = np.where(exchanged, horizon + 1, steps[tuple(choices)])
        here = tuple(int(cell) for cell in choices[:, np.argmin(left)])
        passed.append(here)
    return np.array(passed)
