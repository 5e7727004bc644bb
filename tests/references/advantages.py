"""Advantages as loops over members in float64; ``None`` stands for a member that does not count."""

import math


def kept(rewards, mask):
    return [float(r) if m and math.isfinite(r) else None for r, m in zip(rewards, mask, strict=True)]


def present(values):
    return [value for value in values if value is not None]


def mean(values):
    return sum(present(values)) / len(present(values))


def std(values, ddof):
    values = present(values)
    if len(values) <= ddof or max(values) == min(values):
        return 0.0
    centre = sum(values) / len(values)
    return math.sqrt(sum((value - centre) ** 2 for value in values) / (len(values) - ddof))


def degenerate(values):
    values = present(values)
    return len(values) < 2 or max(values) == min(values)


def each(values, formula):
    """The formula of every member that counts, 0 for the others and for a group that teaches nothing."""
    if degenerate(values):
        return [0.0] * len(values)
    return [0.0 if value is None else formula(index, value) for index, value in enumerate(values)]


def centred(rewards, mask):
    values = kept(rewards, mask)
    return each(values, lambda index, value: value - mean(values))


def standardised(rewards, mask, ddof, epsilon):
    values = kept(rewards, mask)
    return each(values, lambda index, value: (value - mean(values)) / (std(values, ddof) + epsilon))


def leave_one_out(rewards, mask):
    values = kept(rewards, mask)
    return each(values, lambda index, value: value - mean(values[:index] + values[index + 1 :]))


def leave_one_out_standardised(rewards, mask, epsilon):
    values = kept(rewards, mask)

    def formula(index, value):
        others = values[:index] + values[index + 1 :]
        deviation = std(others, 1)
        return (value - mean(others)) / (deviation + epsilon if deviation > 0 else 1)

    return each(values, formula)


def max_rl(rewards, mask):
    values = kept(rewards, mask)
    return each(values, lambda index, value: (value - mean(values)) / mean(values) if mean(values) > 0 else 0.0)


def whitened(advantages, mask, ddof, epsilon):
    """Groups of advantages divided by the deviation from their common mean, which is subtracted."""
    flat = [a for row, row_mask in zip(advantages, mask, strict=True) for a, m in zip(row, row_mask, strict=True) if m]
    if not flat or std(flat, ddof) == 0:
        return [[0.0 for _ in row] for row in advantages]
    centre, deviation = mean(flat), std(flat, ddof)
    return [
        [(a - centre) / (deviation + epsilon) if m else 0.0 for a, m in zip(row, row_mask, strict=True)]
        for row, row_mask in zip(advantages, mask, strict=True)
    ]


def weighted_sum(rewards, weights):
    """The weighted sum of each member's finite rewards; NaN where there is none."""
    sums = []
    for row in rewards:
        terms = [w * float(r) for w, r in zip(weights, row, strict=True) if math.isfinite(r)]
        sums.append(sum(terms) if terms else math.nan)
    return sums


def separately_standardised(rewards, mask, weights, ddof, epsilon):
    totals = [0.0] * len(rewards)
    for index, weight in enumerate(weights):
        one = standardised([row[index] for row in rewards], mask, ddof, epsilon)
        totals = [total + weight * advantage for total, advantage in zip(totals, one, strict=True)]
    return totals


def spread(rewards, mask):
    values = present(kept(rewards, mask))
    return max(values) - min(values) if len(values) >= 2 else 0.0
