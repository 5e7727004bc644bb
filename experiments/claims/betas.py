"""Article B: the controllers of beta."""

import jax
import numpy as np

from experiments.claims.claim import Claim, Claims, verdict
from grpo_jax.kl import controllers


def after(controller: controllers.Controller, measured: list[float], samples: float = 10) -> list[float]:
    """The betas of a controller that is fed one measured KL after the other."""
    update, state, betas = jax.jit(controller.update), controller.init(), []
    for each in measured:
        state = update(state, each, samples)
        betas.append(float(controller.beta(state)))
    return betas


def clipped_controller(seeds: tuple[int, ...]) -> Claim:
    (beta,) = after(controllers.clipped_proportional(0.2, 0.1, 100), [0.2])
    return Claim(
        "B",
        "the clipped proportional controller goes from .2, with target .1, horizon 100, KL .2, 10 completions, to .204",
        verdict(np.isclose(beta, 0.204)),
        {"beta": beta},
        "controllers.clipped_proportional",
    )


def beta_stays_positive(seeds: tuple[int, ...]) -> Claim:
    formula = 0.2 * (1 + np.clip(0 / 0.1 - 1, -0.2, 0.2) * 1000 / 100)
    (ours,) = after(controllers.clipped_proportional(0.2, 0.1, 100), [0.0], samples=1000)
    return Claim(
        "B",
        "that formula keeps beta positive by itself",
        verdict(formula > 0),
        {"its beta after 10 horizons at KL 0": formula, "ours, with a floor": ours},
        "beta .2, target .1, horizon 100, 1000 completions",
    )


def controllers_rest(seeds: tuple[int, ...]) -> Claim:
    chosen = {
        "proportional": controllers.proportional(0.1, 0.05),
        "clipped": controllers.clipped_proportional(0.1, 0.05, 100),
        "proportional-integral": controllers.proportional_integral(0.1, 0.05, 100),
    }
    at_once = {name: after(each, [0.05])[0] / 0.1 - 1 for name, each in chosen.items()}
    raised = {name: after(each, [0.1])[0] > 0.1 > after(each, [0.0])[0] for name, each in chosen.items()}
    betas = {name: after(each, [0.1] * 20 + [0.05] * 2) for name, each in chosen.items()}
    drift = {name: each[-1] / each[-2] - 1 for name, each in betas.items()}
    rest = all(abs(each) < 1e-6 for each in at_once.values()) and all(raised.values())
    later = {name: abs(each) < 1e-6 for name, each in drift.items()}
    return Claim(
        "B",
        "every controller raises beta above the target, lowers it below, and leaves it where the KL is at its target",
        verdict(rest and all(later.values()), rest, "where the integral is 0"),
        {
            "change of beta at the target, after 20 updates at twice the target": drift["proportional"],
            "clipped": drift["clipped"],
            "proportional-integral": drift["proportional-integral"],
        },
        "beta .1, target .05; the fixed points of the library's controllers, float32",
    )


def proportional_alpha(seeds: tuple[int, ...]) -> Claim:
    small, large = (after(controllers.proportional(0.1, target), [2 * target])[0] / 0.1 for target in (0.05, 5.0))
    return Claim(
        "B",
        "the proportional controller's alpha of .1 to .3 suits whatever unit the KL is measured in",
        verdict(np.isclose(small, large, rtol=0.1)),
        {
            "factor on beta at twice a target of .05": small,
            "of 5": large,
            "updates to double beta at .05": np.log(2) / np.log(small),
        },
        "controllers.proportional, alpha .2; .05 nats per token, 5 per sequence of 100 tokens",
    )


def integral_winds_up(seeds: tuple[int, ...]) -> Claim:
    target, horizon, measured = 0.05, 100, [0.5] * 200 + [0.0] * 1200
    total, factors = 0.0, []
    for each in measured:
        total += each - target
        factors.append(1 + 0.1 * (each - target) / target + 0.01 * total / (horizon * target))
    theirs = sum(factor > 1 for factor in factors[200:])
    # A low start, so that the ceiling does not hide what the formula does.
    betas = after(controllers.proportional_integral(1e-6, target, horizon, ceiling=1e30), measured[:260])
    ours = int(np.sum(np.diff(betas)[199:] > 0))
    return Claim(
        "B",
        "the proportional-integral formula lowers beta as soon as the KL is below its target",
        verdict(theirs == 0),
        {"updates at KL 0 that still raise beta": theirs, "ours, with a bounded integral": ours},
        "200 updates at ten times the target, then KL 0; gains .1 and .01, horizon 100",
    )


CLAIMS: Claims = (
    clipped_controller,
    beta_stays_positive,
    controllers_rest,
    proportional_alpha,
    integral_winds_up,
)
