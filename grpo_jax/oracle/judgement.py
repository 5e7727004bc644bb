"""From an exact expectation to a verdict: what was declared, how far it is from the truth, and a sentence about it."""

from typing import NamedTuple

import numpy as np

from grpo_jax.kl import Target
from grpo_jax.losses import Objective, Parts
from grpo_jax.oracle.declared import declaration
from grpo_jax.oracle.exact import Expectation
from grpo_jax.oracle.instance import Tables
from grpo_jax.oracle.targets import NAMES

TOLERANCE = 1e-12
"""Relative distance up to which a gradient is the declared one."""
MARGIN = 2e-3
"""Relative distance to every single target above which a gradient follows none of them."""
RESIDUAL = 1e-5
"""Share of a gradient that no combination of targets explains, above which it follows none; rounding leaves 1e-14."""
_ROUNDING = 5.1e-5
"""Coefficients of a declaration are rounded to four digits."""


class Record(NamedTuple):
    """What is known of one objective under one way of sampling; every number is exact up to float64.

    Attributes:
        estimator, placement, granularity, importance: the KL term; "none" where there is none.
        reduction, advantage, degenerate, surrogate: the rest of the objective.
        extras: a mismatch correction, a rule that drops completions or an entropy bonus, in words; "" without.
        group_size: members of a group, G.
        behaviour: "on" where the current policy samples, "off" where another one does.
        declared: the declared target in words, "none" included.
        reason: why nothing is declared, else "".
        distance: relative distance of the KL term's gradient to the declared target; None where none is declared.
        distances: the same to each known target, "zero" relative to the norm of `reverse`; None where the target's
            gradient is itself 0 on this policy.
        residual: share of the gradient's norm outside all combinations of known targets.
        reward_distance: relative distance of everything else to what the advantage declares of grad E[R]; None where
            it declares something else, or nothing.
        other_utility: whether the advantage declares something else than a known multiple of E[R], such as another
            utility, or E[R] of each prompt times an unknown factor.
        reward_angle: sine of the angle between the gradient of everything else and that of E[R].
        variance: trace of the covariance of the KL term's gradient for one group, per unit of beta squared and of the
            declared scale squared.
        reward_variance: the same for everything else.
        effective_sample_size: (E w)^2 / E w^2 of the sequence weights, in (0, 1]; 1 on-policy.
        agrees: whether what was found is what is declared.
        sentence: the verdict in words.
    """

    estimator: str
    placement: str
    granularity: str
    importance: str
    reduction: str
    advantage: str
    degenerate: str
    surrogate: str
    extras: str
    group_size: int
    behaviour: str
    declared: str
    reason: str
    distance: float | None
    distances: dict[str, float | None]
    residual: float
    reward_distance: float | None
    other_utility: bool
    reward_angle: float
    variance: float
    reward_variance: float
    effective_sample_size: float
    agrees: bool
    sentence: str

    @property
    def wrong(self) -> bool:
        """Whether a promise is broken; a promise of nothing is not, also where a policy is too simple to show why."""
        broken = self.reward_distance is not None and not self.reward_distance < TOLERANCE
        return broken or (self.distance is not None and not self.agrees)


def judge(certified: Objective, tables: Tables, found: Expectation, group_size: int, off_policy: bool) -> Record:
    """Returns the record of one objective.

    Args:
        certified: the objective, with its declarations.
        tables: the evaluated instance.
        found: its exact expectation and variance on this instance.
        group_size: members of a group, G.
        off_policy: whether the tables are those of another policy's samples.
    """
    declared = declaration(certified, group_size, off_policy)
    known = np.stack([tables.targets[name] for name in NAMES], axis=1)
    gradient = found.kl / declared.scale
    unit = float(np.linalg.norm(tables.targets["reverse"]))
    distances = _distances(gradient, tables, unit)
    residual = _residual(gradient, known)
    distance = None if declared.target.none else _distance(gradient, known @ _coefficients(declared.target), unit)
    reward_distance = None
    if declared.reward is not None:
        reward_distance = _distance(found.reward, declared.reward * tables.targets["reward"], unit)
    if distance is None:
        agrees = _follows_none(tables, known, distances, residual)
    else:
        agrees = _agrees(gradient, known, declared.target, distance)
    agrees = agrees and (reward_distance is None or reward_distance < TOLERANCE)
    parts, kl = certified.parts, certified.parts.kl
    return Record(
        estimator="none" if kl is None else kl.estimator,
        placement="none" if kl is None else kl.placement,
        granularity="none" if kl is None else kl.granularity,
        importance="none" if kl is None else kl.importance,
        reduction=parts.reduction.name,
        advantage=parts.advantage.name,
        degenerate=parts.degenerate.name,
        surrogate=parts.surrogate.name,
        extras=_extras(parts),
        group_size=group_size,
        behaviour="off" if off_policy else "on",
        declared=declared.target.name,
        reason=declared.target.none,
        distance=distance,
        distances=distances,
        residual=residual,
        reward_distance=reward_distance,
        other_utility=declared.other_utility,
        reward_angle=_residual(found.reward, tables.targets["reward"][:, None]),
        variance=found.kl_variance / declared.scale**2,
        reward_variance=found.reward_variance,
        effective_sample_size=min(1.0, float(1 / np.sum(tables.probabilities * np.square(tables.weights)))),
        agrees=agrees,
        sentence=_sentence(declared.target, distance, distances, residual, reward_distance, agrees),
    )


def _extras(parts: Parts) -> str:
    there = {
        "mismatch correction": parts.mismatch is not None,
        "drops completions": parts.off_policy is not None,
        f"entropy bonus {parts.entropy_coefficient:g}": parts.entropy_coefficient > 0,
    }
    return ", ".join(what for what, present in there.items() if present)


def _coefficients(target: Target) -> np.ndarray:
    return np.array([getattr(target, name) for name in NAMES])


def _distance(gradient: np.ndarray, target: np.ndarray, unit: float) -> float:
    size = float(np.linalg.norm(target))
    return float(np.linalg.norm(gradient - target)) / (size if size > TOLERANCE * unit else unit)


def _distances(gradient: np.ndarray, tables: Tables, unit: float) -> dict[str, float | None]:
    found: dict[str, float | None] = {"zero": float(np.linalg.norm(gradient)) / unit}
    for name in NAMES:
        target = tables.targets[name]
        empty = np.linalg.norm(target) <= TOLERANCE * unit
        found[name] = None if empty else _distance(gradient, target, unit)
    return found


def _residual(gradient: np.ndarray, known: np.ndarray) -> float:
    size = np.linalg.norm(gradient)
    best = known @ np.linalg.lstsq(known, gradient, rcond=None)[0]
    return float(np.linalg.norm(best - gradient) / size) if size else 0.0


def _follows_none(tables: Tables, known: np.ndarray, distances: dict[str, float | None], residual: float) -> bool:
    # In few dimensions the known gradients span everything, and only single ones can be told from it.
    log_probs = tables.jacobian[:, : tables.mask.shape[1]].reshape(-1, len(known))
    spanned = np.linalg.matrix_rank(known) == np.linalg.matrix_rank(log_probs.T @ log_probs)
    apart = all(distance > MARGIN for distance in distances.values() if distance is not None)
    return bool(apart and (spanned or residual > RESIDUAL))


def _agrees(gradient: np.ndarray, known: np.ndarray, target: Target, distance: float) -> bool:
    if distance < TOLERANCE:
        return True
    named = np.array([getattr(target, name) != 0 for name in NAMES])
    if not named.any():
        return False
    left = gradient - known @ _coefficients(target)
    rounded = np.linalg.lstsq(known[:, named], left, rcond=None)[0]
    rest = np.linalg.norm(left - known[:, named] @ rounded) / np.linalg.norm(gradient)
    return bool(np.max(np.abs(rounded)) < _ROUNDING and rest < TOLERANCE)


def _sentence(
    target: Target,
    distance: float | None,
    distances: dict[str, float | None],
    residual: float,
    reward_distance: float | None,
    agrees: bool,
) -> str:
    nearest = min((value, name) for name, value in distances.items() if value is not None)
    near = f"the nearest single target is {nearest[1]}, at a relative distance of {nearest[0]:.2g}"
    if reward_distance is not None and not reward_distance < TOLERANCE:
        return f"WRONG: its reward term is at a relative distance of {reward_distance:.2g} from what it declares."
    if distance is None:
        if distances["zero"] == 0:
            return f"is 0 on this policy, exactly: it pulls nowhere. Nothing is declared of it ({target.none})."
        if agrees:
            return f"follows no objective, as declared ({target.none}); {near}."
        return (
            f"declares nothing ({target.none}), yet on this policy known targets explain it to {residual:.1g}; {near}."
        )
    if agrees:
        what = "pulls nowhere" if target.name == "zero" else f"follows {target.name}"
        return f"{what}, as declared, to a relative distance of {distance:.1g}."
    return f"WRONG: it declares {target.name} but is at a relative distance of {distance:.2g} from it; {near}."
