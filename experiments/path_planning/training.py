"""Warm start and training, with the parts of the library that train language models."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key

import grpo_jax as gj
from experiments.path_planning import policy
from experiments.path_planning.environment import ACTIONS, draw, prompts
from experiments.small_scale.loop import held
from grpo_jax.losses import Objective
from grpo_jax.types import Params, Prompts, TrainState


class Setting(NamedTuple):
    """Sizes of an experiment.

    Attributes:
        side, agents, density, horizon: S, N, the probability of a wall, and H.
        width: of the hidden layers.
        trained: grids to train on.
        held_out: grids to evaluate on.
        samples: episodes on each of those at an evaluation.
        imitated: updates of the warm start.
        hesitation: share of a demonstration's actions that are any of the five.
        imitation_rate: learning rate of the warm start.
        updates, every: of training, and from one evaluation to the next.
        grids, episodes: P and G of an update, of the warm start too.
        rate: learning rate at the first update; it falls linearly to 0.
    """

    side: int = 8
    agents: int = 3
    density: float = 0.15
    horizon: int = 20
    width: int = 64
    trained: int = 4096
    held_out: int = 512
    samples: int = 2
    imitated: int = 150
    hesitation: float = 0.1
    imitation_rate: float = 3e-3
    updates: int = 450
    every: int = 50
    grids: int = 32
    episodes: int = 8
    rate: float = 4e-3


SMOKE = Setting(4, 3, 0.1, 6, 8, 16, 4, imitated=2, updates=2, every=1, grids=4, episodes=2)


def objective() -> Objective:
    """Builds the loss, that of a language model: leave-one-out advantages of groups, and k1 as a return.

    On-policy its gradient is that of E[success] - beta KL(policy || reference), the KL of whole joint episodes in nats,
    which is the sum of the agents' own.
    """
    return gj.objective(
        advantage=gj.advantages.leave_one_out(),
        surrogate=gj.surrogates.reinforce(),
        reduction=gj.reductions.sequence_mean_of_token_sum(),
        kl=gj.kl.penalty(gj.kl.k1, placement="to_go"),
    )


def problems(setting: Setting) -> tuple[Prompts, Prompts]:
    """Returns the grids to train on and the held-out ones; the same for every seed."""
    count, key = setting.trained + setting.held_out, jax.random.key(2026)
    tokens, mask = prompts(draw(count, setting.side, setting.agents, setting.density, key=key))
    trained, held_out = slice(setting.trained), slice(setting.trained, count)
    return Prompts(tokens[trained], mask[trained]), Prompts(tokens[held_out], mask[held_out])


def lone(setting: Setting, seen: Float[Array, "N F"]) -> Float[Array, "N A"]:
    """Returns the logits of agents who know the way and ignore each other: the demonstrations.

    Any action that brings one closer to the goal, all alike; with the share ``hesitation`` any action at all.
    """
    own = policy.own_moves(seen)
    way = own / jnp.sum(own, axis=-1, keepdims=True)
    return jnp.log((1 - setting.hesitation) * way + setting.hesitation / ACTIONS)


def warm_start(setting: Setting) -> Callable[..., Params]:
    """Builds ``(grids, key) -> params``, imitation of agents who ignore each other; consumes the key."""
    imitate = gj.updates.warm_start(bound_score(setting), gj.updates.adam(setting.imitation_rate))

    def run(grids: Prompts, key: Key[Array, ""]) -> Params:
        def update(state: gj.updates.WarmStartState, key: Key[Array, ""]) -> tuple[gj.updates.WarmStartState, None]:
            choosing, playing = jax.random.split(key)
            shown = _play(setting, functools.partial(lone, setting), _chosen(setting, grids, choosing), playing)
            return imitate.step(state, shown.rollout)[0], None

        first, second = jax.random.split(key)
        state = imitate.init(policy.init(setting.agents, setting.width, key=first))
        return jax.lax.scan(update, state, jax.random.split(second, setting.imitated))[0].params

    return jax.jit(run)


class Trainer(NamedTuple):
    """Training as compiled functions.

    Attributes:
        init: ``(params, beta, key) -> TrainState``; params become the frozen reference too.
        block: ``(state, grids, key) -> (state, seen)``, as many updates as lie between two evaluations. ``seen`` has
            means over them: reward (success of the sampled episodes), degenerate (share of groups that all succeeded
            or all failed), gradient_norm (before the clip).
    """

    init: Callable[..., TrainState]
    block: Callable[..., tuple[TrainState, dict[str, Array]]]


def trainer(setting: Setting) -> Trainer:
    """Builds the training; beta is traced, so one compilation serves all."""
    schedule = optax.linear_schedule(setting.rate, 0.0, setting.updates)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
    learner = gj.updates.learner(bound_score(setting), objective(), optimizer, held(), gj.updates.frozen())

    def init(params: Params, beta: float, key: Key[Array, ""]) -> TrainState:
        return learner.init(params, key=key)._replace(controller=jnp.float32(beta))

    def block(state: TrainState, grids: Prompts, key: Key[Array, ""]) -> tuple[TrainState, dict[str, Array]]:
        def update(state: TrainState, key: Key[Array, ""]) -> tuple[TrainState, dict[str, Array]]:
            choosing, playing = jax.random.split(key)
            decide = functools.partial(policy.logits, state.params)
            played = _play(setting, decide, _chosen(setting, grids, choosing), playing)
            batch = gj.Batch(mask=played.rollout.mask, rewards=played.won.astype(jnp.float32))
            state, metrics = learner.update(state, played.rollout, batch)
            seen = {"reward": metrics["reward_mean"]}
            return state, seen | {name: metrics[name] for name in ("degenerate", "gradient_norm")}

        state, seen = jax.lax.scan(update, state, jax.random.split(key, setting.every))
        return state, jax.tree.map(jnp.mean, seen)

    return Trainer(init, jax.jit(block))


def bound_score(setting: Setting) -> gj.updates.Score:
    """Returns the policy's scoring function, as the library wants it."""
    return functools.partial(policy.score, setting.agents)


def _play(setting: Setting, decide: Callable, asked: Prompts, key: Key[Array, ""]) -> policy.Played:
    return policy.play(decide, asked, setting.agents, setting.episodes, setting.horizon, key=key)


def _chosen(setting: Setting, grids: Prompts, key: Key[Array, ""]) -> Prompts:
    rows = jax.random.randint(key, (setting.grids,), 0, grids.tokens.shape[0])
    return jax.tree.map(lambda leaf: leaf[rows], grids)
