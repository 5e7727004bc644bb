"""Controllers of beta as loops over the measured KLs in float64; each returns beta before and after every update."""

import math


def within(value, floor, ceiling):
    return min(max(value, floor), ceiling)


def proportional(beta, target, alpha, floor, ceiling, kls):
    betas = [beta]
    for kl in kls:
        if math.isfinite(kl):
            beta = within(beta * (1 + alpha * (kl - target)), floor, ceiling)
        betas.append(beta)
    return betas


def clipped_proportional(beta, target, horizon, floor, ceiling, kls, samples):
    betas = [beta]
    for kl in kls:
        if math.isfinite(kl):
            error = within(kl / target - 1, -0.2, 0.2)
            beta = within(beta * (1 + error * samples / horizon), floor, ceiling)
        betas.append(beta)
    return betas


def proportional_integral(beta, target, horizon, floor, ceiling, kls):
    betas, total = [beta], 0.0
    for kl in kls:
        if math.isfinite(kl):
            error = kl - target
            resting = (beta >= ceiling and error > 0) or (beta <= floor and error < 0)
            if not resting:
                total += error
            total = within(total, -5 * horizon * target, 5 * horizon * target)
            factor = 1 + 0.1 * error / target + 0.01 * total / (horizon * target)
            beta = within(beta * factor, floor, ceiling)
        betas.append(beta)
    return betas


def line(start, end, steps, updates):
    return [start + (end - start) * min(step / steps, 1) for step in range(updates + 1)]
