"""Losses as loops in float64, written from the papers' formulas and not from the package.

A surrogate takes one completion as lists ``[T]`` and returns the loss of every token and its gradient, the derivative
of the sum of all unmasked losses by each log-probability. Both are 0 where masked. Exponents are not bounded.
"""

import math


def ratios(log_probs, old_log_probs, mask):
    rows = zip(log_probs, old_log_probs, mask, strict=True)
    return [math.exp(float(lp) - float(old)) if m else 0.0 for lp, old, m in rows]


def clip(value, low, high):
    return max(low, min(value, high))


def token_wise(log_probs, old_log_probs, advantages, mask, formula):
    """Applies ``formula(log_prob, ratio, advantage) -> (loss, derivative)`` to every token."""
    values, gradients = [], []
    rho = ratios(log_probs, old_log_probs, mask)
    for t, present in enumerate(mask):
        value, gradient = formula(float(log_probs[t]), rho[t], float(advantages[t])) if present else (0.0, 0.0)
        values.append(value)
        gradients.append(gradient)
    return values, gradients


def reinforce(log_probs, old_log_probs, advantages, mask):
    return token_wise(log_probs, old_log_probs, advantages, mask, lambda lp, rho, a: (-a * lp, -a))


def importance_weighted(log_probs, old_log_probs, advantages, mask):
    return token_wise(log_probs, old_log_probs, advantages, mask, lambda lp, rho, a: (-rho * a, -rho * a))


def clipped_token(rho, advantage, low, high):
    """Loss and derivative by log rho of -min(rho A, clip(rho) A)."""
    free, bounded = rho * advantage, clip(rho, 1 - low, 1 + high) * advantage
    return (-free, -free) if free <= bounded else (-bounded, 0.0)


def clipped(log_probs, old_log_probs, advantages, mask, low, high):
    def formula(lp, rho, a):
        return clipped_token(rho, a, low, high)

    return token_wise(log_probs, old_log_probs, advantages, mask, formula)


def dual_clipped(log_probs, old_log_probs, advantages, mask, low, high, cap):
    def formula(lp, rho, a):
        value, gradient = clipped_token(rho, a, low, high)
        # The objective max(-value, cap A) for A < 0, negated again.
        return (-cap * a, 0.0) if a < 0 and -value < cap * a else (value, gradient)

    return token_wise(log_probs, old_log_probs, advantages, mask, formula)


def cispo(log_probs, old_log_probs, advantages, mask, low, high):
    """``low`` None: bounded only above."""

    def formula(lp, rho, a):
        weight = min(rho, 1 + high) if low is None else clip(rho, 1 - low, 1 + high)
        return -weight * a * lp, -weight * a

    return token_wise(log_probs, old_log_probs, advantages, mask, formula)


def sapo(log_probs, old_log_probs, advantages, mask, positive, negative):
    def formula(lp, rho, a):
        tau = positive if a > 0 else negative
        gate = 1 / (1 + math.exp(-tau * (rho - 1)))
        return -4 / tau * gate * a, -4 * gate * (1 - gate) * rho * a

    return token_wise(log_probs, old_log_probs, advantages, mask, formula)


def geometric_mean_ratio(log_probs, old_log_probs, mask):
    rows = zip(log_probs, old_log_probs, mask, strict=True)
    differences = [float(lp) - float(old) for lp, old, m in rows if m]
    return math.exp(sum(differences) / len(differences)) if differences else 1.0


def gspo(log_probs, old_log_probs, advantages, mask, low, high):
    """The sequence form: every log-probability moves the one ratio, by 1/|y|, in the loss of every token."""
    ratio = geometric_mean_ratio(log_probs, old_log_probs, mask)
    length = sum(1 for m in mask if m)
    tokens = [
        clipped_token(ratio, float(a), low, high) if m else (0.0, 0.0) for a, m in zip(advantages, mask, strict=True)
    ]
    pull = sum(gradient for _, gradient in tokens)
    return [value for value, _ in tokens], [pull / length if m else 0.0 for m in mask]


def gspo_token(log_probs, old_log_probs, advantages, mask, low, high):
    """The token form: the ratio's value is the sequence's, its derivative by log pi_t falls on token t alone."""
    ratio = geometric_mean_ratio(log_probs, old_log_probs, mask)
    tokens = [
        clipped_token(ratio, float(a), low, high) if m else (0.0, 0.0) for a, m in zip(advantages, mask, strict=True)
    ]
    return [value for value, _ in tokens], [gradient for _, gradient in tokens]


def is_clipped(log_probs, old_log_probs, advantages, mask, low, high):
    """Where the clipped surrogate has lost its gradient: above only for A > 0, below only for A < 0."""
    flags = []
    for rho, a, m in zip(ratios(log_probs, old_log_probs, mask), advantages, mask, strict=True):
        flags.append(bool(m) and ((a > 0 and rho > 1 + high) or (a < 0 and rho < 1 - low)))
    return flags


def completions(values, mask):
    """The unmasked values of each completion of ``[P, G, T]``, as lists, those without any token left out."""
    rows = []
    for group_values, group_mask in zip(values, mask, strict=True):
        for row_values, row_mask in zip(group_values, group_mask, strict=True):
            row = [float(value) for value, m in zip(row_values, row_mask, strict=True) if m]
            if row:
                rows.append(row)
    return rows


def token_mean(values, mask):
    rows = completions(values, mask)
    return sum(sum(row) for row in rows), sum(len(row) for row in rows)


def sequence_mean_of_token_mean(values, mask):
    rows = completions(values, mask)
    return sum(sum(row) / len(row) for row in rows), len(rows)


def sequence_mean_of_token_sum(values, mask):
    rows = completions(values, mask)
    return sum(sum(row) for row in rows), len(rows)


def constant_length(values, mask, length):
    rows = completions(values, mask)
    return sum(sum(row) for row in rows), length * len(rows)


def divided(pair):
    total, count = pair
    return total / count if count else 0.0


def spread(rewards, mask):
    """Largest max - min of any reward over the members that count, for rewards ``[G]`` or ``[G, K]``."""
    rows = [list(row) if hasattr(row, "__len__") else [row] for row in rewards]
    largest = 0.0
    for k in range(len(rows[0])):
        column = [float(row[k]) for row, m in zip(rows, mask, strict=True) if m and math.isfinite(row[k])]
        if len(column) >= 2:
            largest = max(largest, max(column) - min(column))
    return largest


def is_degenerate(rewards, mask, tolerance=0.0):
    """Whether a group's raw rewards teach nothing: fewer than two scorable members, or all of them equal."""
    rows = [list(row) if hasattr(row, "__len__") else [row] for row in rewards]
    counted = [m and any(math.isfinite(value) for value in row) for row, m in zip(rows, mask, strict=True)]
    return sum(counted) < 2 or spread(rewards, mask) <= tolerance
