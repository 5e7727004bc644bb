"""A policy too small for its reference: one bump over ordered actions, where the reference has two."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.fixed_points.training import QUICK
from grpo_jax.losses import Objective
from grpo_jax.oracle import exactly
from grpo_jax.types import Batch, Scores

ACTIONS = np.arange(40)
MIDDLE = 20
"""The modes lie on either side of this action."""
WEIGHTS, CENTRES, WIDTHS = (0.6, 0.4), (12.0, 28.0), (1.5, 2.0)
"""Of the reference's two bumps."""
PAIRS = np.stack(np.meshgrid(np.arange(len(ACTIONS)), np.arange(len(ACTIONS)), indexing="ij"), axis=-1).reshape(-1, 2)


class Bump(NamedTuple):
    """The policy: probability proportional to exp(-(action - centre)^2 / (2 width^2)).

    Attributes:
        centre: in actions.
        log_width: logarithm of the width in actions.
    """

    centre: np.ndarray | jax.Array | float
    log_width: np.ndarray | jax.Array | float


def reference() -> np.ndarray:
    """Returns the reference's log-probability of each action."""
    densities = [
        weight / width * np.exp(-np.square((ACTIONS - centre) / width) / 2)
        for weight, centre, width in zip(WEIGHTS, CENTRES, WIDTHS, strict=True)
    ]
    total = np.sum(densities, axis=0)
    return np.log(total / np.sum(total))


def log_probs_of(bump: Bump):
    distance = (ACTIONS - bump.centre) / jnp.exp(bump.log_width)
    return jax.nn.log_softmax(-jnp.square(distance) / 2)


def fit(certified: Objective, start: Bump, steps: int, learning_rate: float = 0.1) -> np.ndarray:
    """Follows the expected gradient of an objective at reward 0 and beta 1, so that only the KL term acts.

    Args:
        certified: the objective; completions are single actions, groups are all pairs of them by their probability.
        start: the first policy.
        steps: of Adam, with a learning rate that falls to 0 along a cosine.
        learning_rate: the highest.

    Returns:
        Centre and width before each step and after the last ``[steps + 1, 2]``.
    """

    def of_pair(log_probs, ref_log_probs):
        batch = Batch(jnp.ones((1, 2, 1), bool), jnp.zeros((1, 2)), ref_log_probs=ref_log_probs[None, :, None])
        return certified(Scores(log_probs[None, :, None]), batch, 1.0)[0]

    def loss(bump: Bump):
        ours = log_probs_of(bump)
        weights = jax.lax.stop_gradient(jnp.prod(jnp.exp(ours)[PAIRS], axis=1))
        return jnp.sum(weights * jax.vmap(of_pair)(ours[PAIRS], jnp.asarray(reference())[PAIRS]))

    optimizer = optax.adam(optax.cosine_decay_schedule(learning_rate, steps))

    def step(carry, _):
        bump, state = carry
        updates, state = optimizer.update(jax.grad(loss)(bump), state)
        return (jax.tree.map(jnp.add, bump, updates), state), jnp.stack([bump.centre, jnp.exp(bump.log_width)])

    def run(bump):
        (last, _), rows = jax.lax.scan(step, (bump, optimizer.init(bump)), None, steps)
        return jnp.concatenate([rows, jnp.stack([last.centre, jnp.exp(last.log_width)])[None]])

    with exactly():
        return np.asarray(
            jax.jit(run, compiler_options=QUICK)(Bump(*(jnp.asarray(each, jnp.float64) for each in start)))
        )


def log_bump(centre, width) -> np.ndarray:
    """Returns the log-probabilities of bumps, NumPy alone ``[..., actions]``."""
    exponent = -np.square((ACTIONS - np.asarray(centre)[..., None]) / np.asarray(width)[..., None]) / 2
    largest = np.max(exponent, axis=-1, keepdims=True)
    return exponent - largest - np.log(np.sum(np.exp(exponent - largest), axis=-1, keepdims=True))


def mode_seeking() -> list[tuple[float, float]]:
    """Returns centre and width at every local minimum of KL(pi||p), by a grid that closes in on each."""
    centres, widths = np.linspace(0, 39, 157), np.geomspace(1, 20, 121)
    values = reverse_on(centres, widths)
    inner = values[1:-1, 1:-1]
    around = [values[1 + i : values.shape[0] - 1 + i, 1 + j : values.shape[1] - 1 + j] for i, j in NEIGHBOURS]
    return [
        closed_in(float(centres[i + 1]), float(widths[j + 1]))
        for i, j in np.argwhere(np.all(inner < np.array(around), axis=0))
    ]


NEIGHBOURS = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]


def reverse_on(centres: np.ndarray, widths: np.ndarray) -> np.ndarray:
    ours = log_bump(*np.meshgrid(centres, widths, indexing="ij"))
    return np.sum(np.exp(ours) * (ours - reference()), axis=-1)


def closed_in(centre: float, width: float) -> tuple[float, float]:
    step = 0.5
    for _ in range(40):
        centres, widths = centre + step * np.linspace(-1, 1, 9), width * np.exp(step * np.linspace(-0.2, 0.2, 9))
        values = reverse_on(centres, widths)
        i, j = np.unravel_index(np.argmin(values), values.shape)
        centre, width, step = float(centres[i]), float(widths[j]), step * 0.6
    return centre, width


def mode_covering() -> tuple[float, float]:
    """Returns centre and width where KL(p||pi) is least: an exponential family matches mean and spread of p.

    The bump is one in the action and its square, so these two moments must be the reference's; Newton's method.
    """
    probabilities = np.exp(reference())
    moments = np.stack([ACTIONS, np.square(ACTIONS)])
    wanted = moments @ probabilities
    mean = wanted[0]
    natural = np.array([mean, -0.5]) / (wanted[1] - mean**2)
    for _ in range(100):
        logits = natural @ moments
        weights = np.exp(logits - np.max(logits))
        weights /= np.sum(weights)
        found = moments @ weights
        covariance = (moments * weights) @ moments.T - np.outer(found, found)
        natural = natural + np.linalg.solve(covariance, wanted - found)
    return float(-natural[0] / natural[1] / 2), float(np.sqrt(-0.5 / natural[1]))
