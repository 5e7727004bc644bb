"""A composed objective as loops over groups, members and tokens, in float64: the loss, and its gradient by log-probs.

Lists ``[P][G][T]``. Every part is a function of one group or completion from the other references.
"""

import math
from typing import Any, NamedTuple

from tests.references import kl, losses


class Parts(NamedTuple):
    """``advantage(rewards, mask)``, ``surrogate(log_probs, old, advantages, mask)``, and the rest by name."""

    advantage: Any
    surrogate: Any
    reduction: Any
    estimator: str = "k1"
    placement: str = "loss"
    granularity: str = "token"
    token_ratio: bool = False
    rule: str = "keep"
    cap: float | None = None


def kl_loss(parts, log_ratios, policy_ratios, mask):
    """Value of each token's KL estimate in the loss, and its derivative by each log-prob as a matrix ``[T][T]``."""
    formula, slope = kl.ESTIMATORS[parts.estimator]
    width = len(mask)
    values, by = [0.0] * width, [[0.0] * width for _ in range(width)]
    if parts.granularity == "sequence":
        if any(mask):
            last, total = max(t for t in range(width) if mask[t]), sum(log_ratios)
            values[last] = formula(total)
            by[last] = [slope(total) if m else 0.0 for m in mask]
        return values, by
    for t in range(width):
        if mask[t]:
            rho = math.exp(policy_ratios[t]) if parts.token_ratio else 1.0
            values[t] = rho * formula(log_ratios[t])
            by[t][t] = rho * (slope(log_ratios[t]) + (formula(log_ratios[t]) if parts.token_ratio else 0.0))
    return values, by


def costs(parts, log_ratios, mask):
    """What is subtracted from the reward, and from each token's advantage, per unit of beta."""
    each = [kl.ESTIMATORS[parts.estimator][0](u) if m else 0.0 for u, m in zip(log_ratios, mask, strict=True)]
    if parts.placement == "reward":
        return sum(each), [0.0] * len(mask)
    return 0.0, kl.to_go(each, mask) if parts.placement == "to_go" else [0.0] * len(mask)


def evaluate(parts, log_probs, old, ref, behaviour, rewards, mask, valid, beta):
    """Returns the loss, its gradient ``[P][G][T]`` and the share of degenerate groups among those that exist."""
    groups, width = range(len(rewards)), len(mask[0][0])
    values = [[[0.0] * width for _ in row] for row in rewards]
    slopes = [[[[0.0] * width for _ in range(width)] for _ in row] for row in rewards]
    rows = zip(mask, valid, strict=True)
    counted = [[[bool(m) and bool(v) for m in row] for row, v in zip(*pair, strict=True)] for pair in rows]
    degenerate, exist = 0, 0
    for p in groups:
        present = [any(tokens) for tokens in counted[p]]
        member = [here and math.isfinite(r) for here, r in zip(present, rewards[p], strict=True)]
        dead = losses.is_degenerate(rewards[p], member)
        degenerate, exist = degenerate + (dead and any(present)), exist + any(present)
        if dead and parts.rule != "keep":
            counted[p] = counted[p] if parts.rule == "mask all" else [[False] * width for _ in counted[p]]
            continue
        u = [kl.differences(a, b, m) for a, b, m in zip(log_probs[p], ref[p], counted[p], strict=True)]
        charged = [costs(parts, ratios, m) for ratios, m in zip(u, counted[p], strict=True)]
        shaped = [r - beta * cost for r, (cost, _) in zip(rewards[p], charged, strict=True)]
        advantages = parts.advantage(shaped, member)
        for g, tokens in enumerate(counted[p]):
            per_token = [advantages[g] - beta * cost for cost in charged[g][1]]
            policy, pull = parts.surrogate(log_probs[p][g], old[p][g], per_token, tokens)
            ratios = kl.differences(log_probs[p][g], old[p][g], tokens)
            extra, by = kl_loss(parts, u[g], ratios, tokens) if parts.placement == "loss" else ([0.0] * width, None)
            for t in range(width):
                weight = 1.0 if tokens[t] else 0.0
                if parts.cap is not None and tokens[t]:
                    weight = min(math.exp(old[p][g][t] - behaviour[p][g][t]), parts.cap)
                values[p][g][t] = weight * (policy[t] + beta * extra[t])
                slopes[p][g][t] = [weight * beta * x for x in by[t]] if by else [0.0] * width
                slopes[p][g][t][t] += weight * pull[t]
    total, count = parts.reduction(values, counted)
    gradient = [[[0.0] * width for _ in row] for row in rewards]
    for p in groups:
        for g in range(len(rewards[p])):
            for t in range(width):
                # The reduction is linear: its weight of a token is what it makes of a loss of 1 there.
                unit = [[[0.0] * width for _ in row] for row in rewards]
                unit[p][g][t] = 1.0
                share = losses.divided((parts.reduction(unit, counted)[0], count))
                for j in range(width):
                    gradient[p][g][j] += share * slopes[p][g][t][j]
    return losses.divided((total, count)), gradient, degenerate / exist if exist else 0.0
