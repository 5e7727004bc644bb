"""Every combination of learning rate, beta and group size, trained: one compilation for each group size."""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

import grpo_jax as gj
from experiments.small_scale import sums
from experiments.small_scale.evaluation import World, look
from experiments.small_scale.loop import Training, held
from experiments.small_scale.records import CACHE, append, recorded, row_of, start
from experiments.small_scale.setting import Setting, over_seeds, policy_of, score_of
from grpo_jax.losses import Objective
from grpo_jax.types import Params

LABELS = ("group", "rate", "beta")


class Grid(NamedTuple):
    """What is tried.

    Attributes:
        rates: learning rates, about a factor of three apart.
        betas: per nat of a completion, a decade apart.
        groups: completions of a group.
        completions: of an update, with every group size.
    """

    rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
    betas: tuple[float, ...] = (0.003, 0.03, 0.3, 3.0)
    groups: tuple[int, ...] = (4, 8, 16)
    completions: int = 128


SETTING = Setting(updates=60, every=60)
"""Of all runs; prompts, group and learning rate are the grid's."""


@functools.cache
def objective() -> Objective:
    """Returns on-policy RLOO with k1 to go; sums over tokens, no clipping."""
    reduction = gj.reductions.sequence_mean_of_token_sum()
    term = gj.kl.penalty(gj.kl.k1)
    return gj.objective(gj.advantages.leave_one_out(), gj.surrogates.reinforce(), reduction, kl=term)


def step_at(rate: float | Float[Array, ""]) -> optax.GradientTransformation:
    """Builds the optimizer of the other experiments for a rate that may be traced: the step at 1, times the rate."""
    return optax.chain(gj.updates.adam(1.0, warmup_steps=5), optax.scale(rate))


class AtRate(Training):
    """A seed's training whose setting has a traced learning rate."""

    def _learner(self) -> gj.updates.Learner:
        step = step_at(self.setting.learning_rate)
        return gj.updates.learner(score_of(self.setting), self.objective, step, held(), self.reference)


def trainer(setting: Setting) -> Callable[[Params, float, float], dict[str, np.ndarray]]:
    """Builds ``(params [S, ...], rate, beta) -> what it ends with [S, 1]``, compiled once for all rates and betas."""

    def one(params, key, shared):
        rate, beta, problems = shared
        training = AtRate(objective(), setting._replace(learning_rate=rate), 0)
        return training.run(params, key, (beta, jnp.int32(0), problems))

    compiled = over_seeds(one, setting)
    looks = _looks(setting._replace(prompts=1, group=2))  # reads neither: one compilation for all group sizes

    def train(params: Params, rate: float, beta: float) -> dict[str, np.ndarray]:
        count, known = jax.tree.leaves(params)[0].shape[0], _world(setting.evaluated)
        keys = jnp.stack([jax.random.fold_in(jax.random.key(0), seed) for seed in range(count)])
        snapshots, seen = compiled(params, keys, (jnp.float32(rate), jnp.float32(beta), known.trained))
        return jax.tree.map(np.asarray, looks(params, snapshots, keys, known.held_out) | seen)

    return train


@functools.cache
def _world(evaluated: int) -> World:
    """Returns the problems: of those that are held out only the kind that is trained on."""
    return World(sums.problems("sums", False), {"sums": sums.problems("sums", True, evaluated)})


@functools.cache
def _looks(setting: Setting) -> Callable[..., dict[str, Array]]:
    """Returns the compiled evaluation of snapshots ``[S, K, ...]``."""

    def one(params, snapshots, key, held_out):
        return jax.lax.map(lambda now: look(setting, now, params, held_out, key=key), snapshots)

    return over_seeds(one, setting)


def _untaught(setting: Setting, seeds: int) -> Params:
    """Returns initial parameters ``[S, ...]``."""
    init = jax.jit(lambda key: policy_of(setting).init(key=key))
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(init(jax.random.key(seed)) for seed in range(seeds)))


def trained(grid: Grid, setting: Setting, seeds: int, results: Path | None) -> dict[tuple, dict[str, Any]]:
    """Trains what is not recorded yet.

    Args:
        grid: what is tried.
        setting: of all runs.
        seeds: of each.
        results: the file that rows are read from and added to; None: nothing is kept, and policies start from random
            values.

    Returns:
        The rows by group size, learning rate and beta, in this order.

    Raises:
        ValueError: rows in the file were made with another setting or number of seeds.
    """
    done = {} if results is None else recorded(results, LABELS)
    names = [(group, rate, beta) for group in grid.groups for rate in grid.rates for beta in grid.betas]
    for name, row in done.items():
        if (row["seeds"], row["setting"], row["completions"]) != (seeds, list(setting), grid.completions):
            raise ValueError(f"{results} holds {name} of another setting or other seeds; move it away, or choose those")
    left = [name for name in names if name not in done]
    params = None
    if left:
        params = _untaught(setting, seeds) if results is None else start(setting, seeds, CACHE)
    built = functools.lru_cache(maxsize=1)(trainer)
    for name in left:
        (group, rate, beta), began = name, time.process_time()
        curves = built(setting._replace(prompts=grid.completions // group, group=group))(params, rate, beta)
        known = {"seeds": seeds, "setting": list(setting), "completions": grid.completions}
        row = row_of(dict(zip(LABELS, name, strict=True)) | known, curves)
        row["processor_seconds"] = round(time.process_time() - began, 1)
        print(f"group {group}, rate {rate:g}, beta {beta:g}: {row['processor_seconds']} s of the processor", flush=True)
        done[name] = row
        if results is not None:
            append(results, row)
    return {name: done[name] for name in names}
