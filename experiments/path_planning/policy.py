"""A sequence policy that is no language model: a grid is its prompt, what each agent does in each step is a token.

Token number N * h + n of a completion is the action of agent n in step h. All agents share one small network, which
sees the surroundings of the agent that it decides for; the agents of a step decide at the same time, without seeing
each other's choice. What the library asks for is ``score``, which replays a completion's actions on its grid;
sampling is this module's own, since an episode ends by what happens and not by a token.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from experiments.path_planning.environment import ACTIONS, Grid, State, destinations, distances, grid_of, replay
from experiments.path_planning.environment import start as first_state
from experiments.path_planning.environment import step as advance
from grpo_jax.types import Params, Prompts, Rollout, Scores

REACH = 2
"""How far an agent sees in each direction, in cells."""
WIDTH = 2 * REACH + 1


class Map(NamedTuple):
    """What a grid offers to be seen, worked out once.

    Attributes:
        leads: where each action leads from each cell ``[C, A]``.
        walls: with a margin of walls around ``[S + 2 REACH, S + 2 REACH]``, flat.
        fields: steps that each agent alone has to its goal from each cell, with the same margin, flat ``[N, M]``.
        closer: whether each action brings the agent closer to its goal, from each cell; to stay does at the goal
            ``[N, C, A]``.
    """

    leads: Int[Array, "C A"]
    walls: Float[Array, " M"]
    fields: Int[Array, "N M"]
    closer: Float[Array, "N C A"]


def map_of(grid: Grid) -> Map:
    """Works out what there is to be seen of a grid."""
    side, leads = grid.walls.shape[0], destinations(grid.walls)
    fields = jax.vmap(distances, (None, 0))(grid.walls, grid.goals)
    closer = (fields[:, leads] < fields[..., None]).at[..., 0].set(fields == 0)
    margin = ((0, 0), (REACH, REACH), (REACH, REACH))
    wide = jnp.pad(fields.reshape(-1, side, side), margin, constant_values=side * side)
    walls = jnp.pad(grid.walls, REACH, constant_values=True)
    flat = wide.reshape(wide.shape[0], -1)
    return Map(leads, walls.reshape(-1).astype(jnp.float32), flat, closer.astype(jnp.float32))


def observations(seen: Map, cells: Int[Array, " N"]) -> Float[Array, "N F"]:
    """Returns what each agent sees, numbers from -1 to 1.

    Within ``REACH`` cells: walls; how much nearer its goal is from there; where the others stand and which moves bring
    those closer to their own goals. Of itself: which moves bring it closer, and its number.
    """
    agents, side = cells.shape[0], round(seen.leads.shape[0] ** 0.5)
    wide = side + 2 * REACH
    corners = cells // side * wide + cells % side
    window = (jnp.arange(WIDTH)[:, None] * wide + jnp.arange(WIDTH)[None]).reshape(-1)
    centres = corners + REACH * (wide + 1)

    def one(agent: Int[Array, ""]) -> Float[Array, " F"]:
        view = corners[agent] + window
        nearer = jnp.clip(seen.fields[agent, view] - seen.fields[agent, centres[agent]], -3, 3) / 3
        others = (agent + jnp.arange(1, agents)) % agents
        present = (centres[others][:, None] == view[None]).astype(jnp.float32)
        # Summed, since no two stand in one cell: what stands beside an agent's place is its own.
        wishes = jnp.sum(present[..., None] * seen.closer[others, cells[others]][:, None], axis=0)
        own = seen.closer[agent, cells[agent]]
        parts = (seen.walls[view], nearer, present, wishes, own, jax.nn.one_hot(agent, agents))
        return jnp.concatenate([part.reshape(-1) for part in parts])

    return jax.vmap(one)(jnp.arange(agents))


def own_moves(seen: Float[Array, "N F"]) -> Float[Array, "N A"]:
    """Returns that part of an observation which says what brings the agent itself closer: 1 or 0 for each action."""
    agents = seen.shape[0]
    return seen[:, -agents - ACTIONS : -agents]


def features(agents: int) -> int:
    """Returns F, the length of an observation."""
    return WIDTH**2 * (2 + agents - 1 + ACTIONS) + ACTIONS + agents


def init(agents: int, width: int, *, key: Key[Array, ""]) -> Params:
    """Draws the parameters of a network with two hidden layers; consumes the key."""
    sizes = (features(agents), width, width, ACTIONS)
    keys = jax.random.split(key, len(sizes) - 1)
    scale = (1.0, 1.0, 0.01)
    return [
        {"weights": gain * jax.random.normal(each, (before, after)) * (2 / before) ** 0.5, "bias": jnp.zeros(after)}
        for gain, each, before, after in zip(scale, keys, sizes[:-1], sizes[1:], strict=True)
    ]


def logits(params: Params, seen: Float[Array, "*batch F"]) -> Float[Array, "*batch A"]:
    """Returns the logits of an agent's actions from what it sees."""
    for layer in params[:-1]:
        seen = jax.nn.relu(jnp.einsum("...i,io->...o", seen, layer["weights"]) + _like(layer["bias"], seen))
    return jnp.einsum("...i,io->...o", seen, params[-1]["weights"]) + _like(params[-1]["bias"], seen)


def _like(bias: Float[Array, " F"], values: Array) -> Array:
    return bias.reshape((1,) * (values.ndim - 1) + (-1,))


def score(
    agents: int, params: Params, rollout: Rollout, *, entropy: bool = False, ref_params: Params | None = None
) -> Scores:
    """Scores the actions of every episode; with ``agents`` bound it is the library's ``Score``.

    Args:
        agents: N.
        params: the policy's.
        rollout: grids as prompts and actions as tokens ``[P, G, N * H]``.
        entropy: whether to fill ``Scores.entropy``.
        ref_params: the reference's, to fill ``Scores.full_kl``.
    """

    def seen_in(grid: Grid, tokens: Int[Array, " T"]) -> Float[Array, "H N F"]:
        before, _ = replay(grid, tokens.reshape(-1, agents))
        return jax.vmap(observations, (None, 0))(map_of(grid), before.cells)

    def of_prompt(prompt: Int[Array, " L"], tokens: Int[Array, "G T"]) -> Float[Array, "G H N F"]:
        return jax.vmap(seen_in, (None, 0))(grid_of(prompt, agents), tokens)

    # Kept apart: merged with the network's first product, gathering what is seen takes twice as long on a CPU.
    seen = jax.lax.optimization_barrier(jax.vmap(of_prompt)(rollout.prompts.tokens, rollout.tokens))
    shape, mask = rollout.tokens.shape, rollout.mask
    log_pi = jax.nn.log_softmax(logits(params, seen)).reshape(*shape, ACTIONS)
    chosen = jnp.take_along_axis(log_pi, rollout.tokens[..., None], axis=-1)[..., 0]
    found = Scores(jnp.where(mask, chosen, 0))
    if entropy:
        found = found._replace(entropy=jnp.where(mask, -jnp.sum(jnp.exp(log_pi) * log_pi, axis=-1), 0))
    if ref_params is not None:
        log_p = jax.nn.log_softmax(logits(ref_params, seen)).reshape(*shape, ACTIONS)
        found = found._replace(full_kl=jnp.where(mask, jnp.sum(jnp.exp(log_pi) * (log_pi - log_p), axis=-1), 0))
    return found


class Played(NamedTuple):
    """Episodes, and how they ended.

    Attributes:
        rollout: as the library wants them; ``finished`` where an episode ended within the horizon.
        won: whether all agents got home ``[P, G]``.
        cells: where the agents stood at each moment ``[P, G, H + 1, N]``; after the end, where they were then.
    """

    rollout: Rollout
    won: Bool[Array, "P G"]
    cells: Int[Array, "P G K N"]


def play(
    decide: Callable[[Float[Array, "N F"]], Float[Array, "N A"]],
    asked: Prompts,
    agents: int,
    episodes: int,
    horizon: int,
    *,
    key: Key[Array, ""],
) -> Played:
    """Samples a group of episodes on every grid.

    Args:
        decide: logits of every agent's actions from what the agents see.
        asked: grids as prompts ``[P, L]``.
        agents: N.
        episodes: G.
        horizon: H, most steps.
        key: consumed.
    """

    def episode(grid: Grid, seen: Map, key: Key[Array, ""]) -> tuple[State, Any]:
        def body(state: State, key: Key[Array, ""]) -> tuple[State, Any]:
            values = decide(observations(seen, state.cells))
            actions = jax.random.categorical(key, values)
            log_probs = jnp.take_along_axis(jax.nn.log_softmax(values), actions[:, None], axis=-1)[:, 0]
            going = jnp.broadcast_to(~state.ended, actions.shape)
            after = advance(grid, seen.leads, state, actions)
            return after, (actions, going, jnp.where(going, log_probs, 0), after.cells)

        return jax.lax.scan(body, first_state(grid), jax.random.split(key, horizon))

    def group(prompt: Int[Array, " L"], key: Key[Array, ""]) -> tuple[State, Any]:
        grid = grid_of(prompt, agents)
        seen = map_of(grid)
        return jax.vmap(lambda key: episode(grid, seen, key))(jax.random.split(key, episodes))

    count = asked.tokens.shape[0]
    last, (actions, going, log_probs, cells) = jax.vmap(group)(asked.tokens, jax.random.split(key, count))
    tokens, mask, log_probs = (leaf.reshape(count, episodes, -1) for leaf in (actions, going, log_probs))
    starts = jax.vmap(lambda prompt: grid_of(prompt, agents).starts)(asked.tokens)[:, None, None]
    cells = jnp.concatenate([jnp.broadcast_to(starts, (count, episodes, 1, agents)), cells], axis=2)
    return Played(Rollout(asked, tokens, mask, log_probs, last.ended), last.won, cells)
