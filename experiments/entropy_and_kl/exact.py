"""The same without sampling: where reward, KL term and entropy bonus lead a policy that can be listed."""

from typing import Any

import numpy as np

from experiments.entropy_and_kl.cases import objective_of
from experiments.fixed_points.training import divergence, instance, train

BETA = 0.1
BONUSES = (0.0, 0.03, 0.1, 0.3, 1.0)


def ends(seed: int, steps: int, bonuses: tuple[float, ...] = BONUSES) -> list[dict[str, Any]]:
    """Trains with each bonus by exact expected gradients; returns a row each, in nats.

    The gradient of the library's bonus leaves out what a token does to later entropy, so it need not lead to `optimum`.
    """
    drawn, rows = instance(seed), []
    for bonus in bonuses:
        log_probs = train(objective_of(bonus), drawn, BETA, steps).log_probs
        reference, last = log_probs[0], log_probs[-1]
        best = optimum(reference, drawn.rewards, bonus)
        row = {"seed": seed, "beta": BETA, "bonus": bonus, "reward": float(np.exp(last) @ drawn.rewards)}
        row |= {"kl": float(divergence(last, reference)), "entropy": -float(np.exp(last) @ last)}
        row |= {"best_kl": float(divergence(best, reference)), "best_entropy": -float(np.exp(best) @ best)}
        rows.append(row | {"to_optimum": float(divergence(last, best)), "reference_entropy": _entropy(reference)})
    return rows


def optimum(reference: np.ndarray, rewards: np.ndarray, bonus: float) -> np.ndarray:
    """Returns log-probabilities ``[N]`` of what has most reward - beta KL + bonus H, with H of whole completions.

    It is p^(beta / (beta + bonus)) exp(reward / (beta + bonus)), up to a constant.
    """
    tilted = (BETA * reference + rewards) / (BETA + bonus)
    return tilted - np.logaddexp.reduce(tilted)


def _entropy(log_probs: np.ndarray) -> float:
    return -float(np.exp(log_probs) @ log_probs)
