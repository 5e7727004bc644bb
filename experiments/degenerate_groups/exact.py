"""The price of each rule without sampling: every group of four of five actions, listed by the oracle."""

import functools

import numpy as np

import grpo_jax as gj
from experiments.degenerate_groups.cases import FUSED, RESAMPLE, RULES, objective_of
from grpo_jax.losses import Objective

GROUP = 4
POLICY, REFERENCE = (0.96, -0.26, -1.08, -1.17, -0.46), (1.10, -0.12, -0.71, -0.83, -0.48)
REWARDS = np.array([1.0, 0.0, 0.0, 1.0, 0.0])
EASIER = (-2.0, 0.0, 2.0)
"""By how much policy and reference prefer the two right actions more, in their logits."""
BETAS = (1.0, 0.1, 0.01)


@functools.cache
def listed() -> gj.oracle.Enumerated:
    """Returns the policy of one token with its five completions."""
    return gj.oracle.enumerated(gj.models.position_tabular(5, 1), max_tokens=1, end_ids=())


def instance(easier: float) -> gj.oracle.Instance:
    """Returns the five actions, made easier by so much; the policy samples itself."""
    drawn = [{"logits": (np.array(each) + easier * REWARDS)[None, None]} for each in (POLICY, REFERENCE)]
    return gj.oracle.Instance(listed(), drawn[0], drawn[1], drawn[0], REWARDS)


def error(objective: Objective, easier: float, beta: float = 1.0) -> float:
    """Returns the relative distance of the KL term's expected gradient to that of the reverse KL, by `certify`."""
    found = gj.certify(objective, instance(easier), group_size=GROUP, beta=beta).on.distances["reverse"]
    assert found is not None
    return found


def difficulty(easier: float) -> tuple[float, float]:
    """Returns the probability of a right action, and of a group of equal rewards."""
    p = float(np.sum(gj.oracle.tables(instance(easier)).probabilities * REWARDS))
    return p, p**GROUP + (1 - p) ** GROUP


def resampled(advantage: str, easier: float) -> float:
    """Returns the error where every group of equal rewards is replaced until none is left.

    That is the expectation over the other groups alone, the masked one divided by their probability.
    """
    with gj.oracle.exactly():
        tables, groups = gj.oracle.tables(instance(easier)), gj.oracle.multisets(len(REWARDS), GROUP)
        kept = gj.oracle.expectation(objective_of(advantage, "mask"), tables, groups).kl
        found, target = kept / (1 - difficulty(easier)[1]), tables.targets["reverse"]
        return float(np.linalg.norm(found - target) / np.linalg.norm(target))


def price() -> str:
    """Returns the errors as a Markdown table: a rule a row, a prompt a column."""
    cases = [difficulty(easier) for easier in EASIER]
    rows = [("probability of a right action", [case[0] for case in cases])]
    rows.append((f"share of groups of equal rewards, of {GROUP}", [case[1] for case in cases]))
    for advantage in ("RLOO", "GRPO"):
        for rule in RULES:
            rows.append((f"{advantage}, {rule}", [error(objective_of(advantage, rule), each) for each in EASIER]))
        rows.append((f"{advantage}, {RESAMPLE} all", [resampled(advantage, each) for each in EASIER]))
        fused = objective_of(advantage, FUSED)
        for beta in BETAS:
            name = f"{advantage}, {FUSED}, beta {beta:g}"
            rows.append((name, [error(fused, each, beta) for each in EASIER]))
    lines = ["| | hard | middling | easy |", "|---|---|---|---|"]
    for name, values in rows:
        lines.append(f"| {name} | " + " | ".join(f"{value:.3g}" if value > 1e-9 else "0" for value in values) + " |")
    return "\n".join(lines)
