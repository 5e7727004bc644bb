"""Whole trainings in one compiled function: many seeds of a small decoder, sampled, rewarded and updated on the device.

The parts are those of a real run (decoder, sampler, objective, learner); `objective` is the very object that
`grpo_jax.certify` differentiates. beta is traced, so one compilation serves every beta.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

import grpo_jax as gj
from experiments.small_scale import sums
from experiments.small_scale.evaluation import World, looks_of, world
from experiments.small_scale.setting import Setting, over_seeds, sampler_of, score_of
from experiments.small_scale.sums import Problems
from grpo_jax.losses import Objective
from grpo_jax.types import Params, Rollout


def held() -> gj.kl.controllers.Controller:
    """Builds the controller whose state is beta itself, so that a traced beta can be put there."""
    return gj.kl.controllers.Controller(
        init=lambda: jnp.zeros((), jnp.float32),
        beta=lambda state: state,
        update=lambda state, kl, samples: state,
        statistic="nats_per_sequence",
        description="a beta given from outside, constant",
    )


HELD = held()
"""Where a case does not bring a controller of its own."""


class Looks(Protocol):
    """Something more to be measured of every seed before training and at each evaluation."""

    def __call__(self, objective: Objective, setting: Setting) -> Callable[..., dict[str, Array]]:
        """Builds ``(params [S, ...], snapshots [S, K, ...], keys [S], beta) -> {name: [S, 1 + K]}``."""
        ...


class Reward(Protocol):
    """What completions are trained on."""

    def __call__(self, asked: Problems, rollout: Rollout) -> Float[Array, "P G"] | Float[Array, "P G K"]:
        """Returns one reward, or several, of each completion."""
        ...


FROZEN = gj.updates.frozen()
"""The reference where a case does not name another."""


def trainer(
    objective: Objective,
    setting: Setting,
    longest_lag: int = 0,
    also: Looks | None = None,
    reference: gj.updates.Reference = FROZEN,
    noise: float = 0.0,
    reward: Reward = sums.is_right,
    build: Callable[[Setting], World] = world,
    rounds: int = 1,
    controller: gj.kl.controllers.Controller = HELD,
) -> Callable[..., dict[str, np.ndarray]]:
    """Builds the function that trains every seed with one objective.

    Args:
        objective: the loss.
        setting: see there.
        longest_lag: how far back policies are kept to sample from; 0: none, the policy itself samples. Above 0 the
            objective gets the log-probs of whatever sampled as old ones.
        also: something more to measure; None: nothing.
        reference: what the KL term measures against while training. What is evaluated is always the KL to the start.
        noise: standard deviation of normal noise that is added to each completion's reward, >= 0.
        reward: what is trained on; the right completion where no other is given.
        build: the problems to train on and to evaluate; those of sums where no others are given.
        rounds: so many times the prompts are sampled, and trained on are those whose rewards differ before the others;
            1: all that are sampled.
        controller: of beta; beta is held where it stands if none is given.

    Returns:
        ``(params [S, ...], beta, lag=0, seed=0, trained=None) -> curves``, beta being a number, or the first state of
        the controller that was given; trained being problems (None: those of ``build``), of which those of the same
        number and width are compiled once. Curves: by name, one row a seed and one column an evaluation, the first
        before training ``[S, 1 + updates / every]``. See `look` and `Training.seen` for the names, with their units;
        what is seen in training is the mean since the evaluation before, NaN in the first column.

    Raises:
        ValueError: evaluations that do not divide the updates; a lag below 0 or above the longest.
    """
    if setting.updates % setting.every:
        raise ValueError(f"trainer: every={setting.every} does not divide updates={setting.updates}; give a divisor")
    training = Training(objective, setting, longest_lag, reference, noise, reward, rounds, controller)
    compiled = over_seeds(training.run, setting)
    more = None if also is None else also(objective, setting)

    def train(
        params: Params, beta: Any, lag: int = 0, seed: int = 0, trained: Problems | None = None
    ) -> dict[str, np.ndarray]:
        if not 0 <= lag <= longest_lag:
            raise ValueError(f"trainer: lag is {lag}; give 0 for on-policy, up to longest_lag={longest_lag}")
        count, (known, looks) = jax.tree.leaves(params)[0].shape[0], looks_of(setting, build)
        keys = jnp.stack([jax.random.fold_in(jax.random.key(seed), each) for each in range(count)])
        asked = known.trained if trained is None else trained
        start = jnp.float32(beta) if isinstance(beta, float | int) else beta
        snapshots, seen = compiled(params, keys, (start, jnp.int32(lag), asked))
        before = jax.tree.map(lambda leaf: jnp.full((count, 1), jnp.nan), seen)
        seen = jax.tree.map(lambda first, later: jnp.concatenate([first, later], axis=1), before, seen)
        found = looks(params, snapshots, keys, known.held_out) | seen
        found |= {} if more is None else more(params, snapshots, keys, start)
        return jax.tree.map(np.asarray, found)

    return train


class Training(NamedTuple):
    """One seed's training; every method is a pure function of its arguments."""

    objective: Objective
    setting: Setting
    longest_lag: int
    reference: gj.updates.Reference = FROZEN
    noise: float = 0.0
    reward: Reward = sums.is_right
    rounds: int = 1
    controller: gj.kl.controllers.Controller = HELD

    def run(self, params: Params, key: Key[Array, ""], shared: tuple[Any, Array, Problems]) -> tuple[Params, dict]:
        """Trains; returns the parameters ``[K, ...]`` and what was seen ``[K]`` at each of K evaluations."""
        beta, lag, trained = shared
        first, second = jax.random.split(key)
        learner = self._learner()
        state = learner.init(params, key=first)
        if self.objective.needs_reference:
            state = state._replace(controller=beta)
        past = jax.tree.map(lambda leaf: jnp.stack([leaf] * self.longest_lag), params) if self.longest_lag else None

        def update(carry, key):
            state, past = carry
            return self.seen(learner, state, past, lag, trained, key=key)

        def block(carry, key):
            carry, seen = jax.lax.scan(update, carry, jax.random.split(key, self.setting.every))
            return carry, (carry[0].params, jax.tree.map(jnp.mean, seen))

        keys = jax.random.split(second, self.setting.updates // self.setting.every)
        return jax.lax.scan(block, (state, past), keys)[1]

    def seen(
        self,
        learner: gj.updates.Learner,
        state: Any,
        past: Any,
        lag: Int[Array, ""],
        trained: Problems,
        *,
        key: Key[Array, ""],
    ) -> tuple[tuple[Any, Any], dict[str, Array]]:
        """Samples from the policy of ``lag`` updates ago, rewards, and takes one step.

        Args:
            learner: takes the step.
            state: training state.
            past: parameters of the last updates, the oldest first ``[longest_lag, ...]``; None: no lag.
            lag: updates.
            trained: problems to draw from.
            key: consumed.

        Returns:
            State and past; and reward (share of the sampled completions that are right), gradient_norm (before the
            clip), rejected (1 where something was not finite), degenerate (share of groups with equal rewards, of those
            that are trained on), length (tokens); where a controller was given, also its beta, and kl_per_sequence
            (nats per completion, estimated by k3 from the sampled completions).
        """
        choosing, sampling, disturbing = jax.random.split(key, 3)
        asked, behaviour = sums.draw(trained, self.rounds * self.setting.prompts, key=choosing), state.params
        if past is not None:
            known = jax.tree.map(lambda old, new: jnp.concatenate([old, new[None]]), past, state.params)
            behaviour = jax.tree.map(lambda leaf: leaf[self.longest_lag - lag], known)
            past = jax.tree.map(lambda leaf: leaf[1:], known)
        rollout = sampler_of(self.setting, self.setting.group, asked.right.shape[1])(
            behaviour, asked.prompts, key=sampling
        )
        right, rewards = sums.is_right(asked, rollout), self.reward(asked, rollout)
        if self.rounds > 1:
            rows = self._informative_first(rewards)
            rollout, rewards = jax.tree.map(lambda leaf: leaf[rows], (rollout, rewards))
        old = rollout.log_probs if self.longest_lag else None
        rewards = rewards + self.noise * jax.random.normal(disturbing, rewards.shape) if self.noise else rewards
        batch = gj.Batch(rollout.mask, rewards, old_log_probs=old)
        state, metrics = learner.update(state, rollout, batch)
        steered = () if self.controller is HELD else ("beta", "kl_per_sequence")
        named = {name: metrics[name] for name in ("gradient_norm", "rejected", "degenerate", "length", *steered)}
        return (state, past), named | {"reward": jnp.mean(right)}

    def _informative_first(self, rewards: Float[Array, "P G"]) -> Int[Array, " N"]:
        """Returns which groups to train on, in the order of sampling; as `grpo_jax.experience` replaces groups."""
        equal = jnp.max(rewards, axis=1) == jnp.min(rewards, axis=1)
        return jnp.argsort(equal, stable=True)[: self.setting.prompts]

    def _learner(self) -> gj.updates.Learner:
        controller = self.controller if self.objective.needs_reference else gj.kl.controllers.constant(0.0)
        adam = gj.updates.adam(self.setting.learning_rate, warmup_steps=5)
        return gj.updates.learner(score_of(self.setting), self.objective, adam, controller, self.reference)
