"""Which episodes the animation shows, and how they are played."""

import functools
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Int

from experiments.path_planning import policy
from experiments.path_planning.animation import animate
from experiments.path_planning.environment import Grid, grid_of
from experiments.path_planning.planner import plan, shortest
from experiments.path_planning.training import Setting, problems
from grpo_jax.types import Params, Prompts

BOARDS = 4


def show(setting: Setting, before: Params, after: Params, file: Path | None) -> None:
    """Plays one episode before and one after training on the first held-out grids whose plans are long; writes a GIF.

    Long is a shortest joint plan of half of the horizon or more. The episodes are the first that are sampled, whatever
    becomes of them.

    Args:
        setting: of the training.
        before: the warm start's parameters.
        after: the trained ones.
        file: what is written; None: only plays.
    """
    _, held_out = problems(setting)
    first = 32 * BOARDS
    grids = jax.vmap(lambda tokens: grid_of(tokens, setting.agents))(held_out.tokens[:first])
    steps = shortest(grids, setting.horizon)
    chosen = np.flatnonzero((steps >= setting.horizon // 2) & (steps <= setting.horizon))[:BOARDS]
    boards = Grid(*(leaf[chosen] for leaf in grids))
    rows = [(name, _played(setting, each, held_out, chosen)) for name, each in (("before", before), ("after", after))]
    each = [Grid(*(leaf[number] for leaf in boards)) for number in range(len(chosen))]
    rows.append(("exact planner", [(plan(grid, setting.horizon), True) for grid in each]))
    if file is not None:
        animate(file, np.asarray(boards.walls), np.asarray(boards.goals), rows)


def _played(setting: Setting, params: Params, held_out: Prompts, chosen: Int[np.ndarray, " B"]) -> list:
    asked = Prompts(held_out.tokens[chosen], held_out.mask[chosen])
    decide = functools.partial(policy.logits, params)
    play = jax.jit(functools.partial(policy.play, decide, agents=setting.agents, episodes=1, horizon=setting.horizon))
    played = play(asked, key=jax.random.key(0))
    lengths = np.asarray(played.rollout.mask[:, 0].sum(axis=-1)) // setting.agents
    cells, won = np.asarray(played.cells[:, 0]), np.asarray(played.won[:, 0])
    return [(cells[board, : lengths[board] + 1], bool(won[board])) for board in range(len(chosen))]
