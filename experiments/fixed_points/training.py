"""Training with exact expected gradients: no sample is drawn, so where it ends is where the objective leads."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.fixed_points.predictions import Completion, Problem
from grpo_jax.losses import Objective
from grpo_jax.models import prefix_tabular
from grpo_jax.oracle import Instance, enumerated, exactly, expected_loss, multisets, random_instance

VOCABULARY, LENGTH, END = 3, 3, 0
LISTED = enumerated(prefix_tabular(VOCABULARY, LENGTH), LENGTH, (END,))
"""Free logits at every prefix of three tokens, the first of which ends a completion: 15 completions."""
COMPLETIONS: list[Completion] = [
    tuple(int(token) for token in row[mask]) for row, mask in zip(LISTED.space.tokens, LISTED.space.mask, strict=True)
]
GROUPS = multisets(len(COMPLETIONS), 2)
QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
"""Compiling takes longer than running."""


class Run(NamedTuple):
    """One training run.

    Attributes:
        log_probs: of every completion before each step, and after the last ``[steps + 1, N]``.
        gradient: norm of the expected gradient at the end.
        gradient_at_point: the same at another policy that was asked for, else where it started.
    """

    log_probs: np.ndarray
    gradient: float
    gradient_at_point: float


def instance(seed: int) -> Instance:
    """Draws a reference, which is also where training starts, and a reward in (0, 1) for each completion."""
    drawn = random_instance(LISTED, seed)
    rewards = np.random.default_rng(seed).uniform(size=len(COMPLETIONS))
    return drawn._replace(params=drawn.ref_params, behaviour_params=drawn.ref_params, rewards=rewards)


def problem(drawn: Instance, beta: float) -> Problem:
    """Returns the same as a tree for `predictions`."""
    logits = np.asarray(drawn.ref_params["logits"])[0]
    odds = {prefix: np.exp(logits[row] - np.max(logits[row])) for prefix, row in rows_of_table().items()}
    reference = {prefix: weights / np.sum(weights) for prefix, weights in odds.items()}
    return Problem(reference, dict(zip(COMPLETIONS, drawn.rewards.tolist(), strict=True)), beta)


def rows_of_table() -> dict[Completion, int]:
    """Returns which row of the policy's logits stands at each prefix."""
    rows: dict[Completion, int] = {(): 0}
    for completion in COMPLETIONS:
        for t in range(1, len(completion)):
            rows[completion[:t]] = rows[completion[: t - 1]] * VOCABULARY + 1 + completion[t - 1]
    return rows


def train(
    certified: Objective,
    drawn: Instance,
    beta: float,
    steps: int,
    point: dict[Completion, float] | None = None,
    learning_rate: float = 0.1,
) -> Run:
    """Follows the expected gradient of an objective by Adam, with a learning rate that falls to 0 along a cosine.

    Args:
        certified: the objective; what is followed is the gradient of all its groups of two, by their probability.
        drawn: where it starts, its reference and rewards.
        beta: strength of the KL term.
        steps: of Adam.
        point: another policy, at which the gradient is wanted too.
        learning_rate: the highest, in units of a logit.
    """
    there = drawn.params if point is None else {"logits": logits_of(point)}
    with exactly():
        given = jax.tree.map(jnp.asarray, (drawn.params, drawn.ref_params, drawn.rewards, there))
        log_probs, gradients = _compiled(certified, beta, steps, learning_rate)(*given)
    return Run(np.asarray(log_probs), *np.asarray(gradients).tolist())


@functools.lru_cache
def _compiled(certified: Objective, beta: float, steps: int, learning_rate: float) -> Callable:
    optimizer = optax.adam(optax.cosine_decay_schedule(learning_rate, steps))

    def log_probs(params):
        return jnp.sum(LISTED.policy.score(params, LISTED.rollout, 1.0).log_probs[0], axis=1)

    def run(params, ref_params, rewards, point):
        known = Instance(LISTED, params, ref_params, ref_params, rewards)
        slope = jax.grad(expected_loss(certified, known, GROUPS, beta))

        def step(carry, _):
            params, state = carry
            updates, state = optimizer.update(slope(params), state)
            return (optax.apply_updates(params, updates), state), log_probs(params)

        (last, _), rows = jax.lax.scan(step, (params, optimizer.init(params)), None, steps)
        ends = jax.tree.map(lambda *leaves: jnp.stack(leaves), last, point)
        return jnp.concatenate([rows, log_probs(last)[None]]), jax.lax.map(lambda at: optax.tree.norm(slope(at)), ends)

    return jax.jit(run, compiler_options=QUICK)


def logits_of(point: dict[Completion, float]) -> np.ndarray:
    """Returns the policy's table of logits at which completions have given probabilities ``[1, rows, V]``."""
    logits = np.zeros((1, sum(VOCABULARY**t for t in range(LENGTH)), VOCABULARY))
    for prefix, row in rows_of_table().items():
        for token in range(VOCABULARY):
            below = [value for name, value in point.items() if name[: len(prefix) + 1] == (*prefix, token)]
            logits[0, row, token] = np.log(sum(below))
    return logits


def divergence(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns KL(first || second) in nats of log-probabilities over all completions ``[..., N]``.

    Summed as sum p (exp(-u) - 1 + u), whose terms are not negative and so do not cancel.
    """
    ratio = first - second
    return np.sum(np.exp(first) * (np.expm1(-ratio) + ratio), axis=-1)
