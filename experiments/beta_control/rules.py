"""The rules that are tried, and how many of them share one compiled training."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from experiments.beta_control import article
from grpo_jax.kl import controllers
from grpo_jax.kl.controllers import Controller, KLStatistic

TARGET = 0.5
"""The KL aimed at, in nats per completion."""
TOKEN_TARGET = 0.15
"""About the same in nats per token: completions have some 3.4 tokens."""
GAIN = 0.1
"""Relative change of beta in an update whose KL is 0 or twice the target."""
LOOSE, TIGHT, MIDDLE = 0.03, 3.0, 0.4
"""First betas below and above the one that the target needs, and a guess at it."""
COMPLETIONS = 128
"""Of an update."""
SEQUENCE: KLStatistic = "nats_per_sequence"
TOKEN: KLStatistic = "nats_per_token"


def proportional(
    beta: float, target: float = TARGET, gain: float = GAIN, statistic: KLStatistic = SEQUENCE
) -> Controller:
    """Builds the library's, its gain relative to the target: ``alpha = gain / target``."""
    return controllers.proportional(beta, target, gain / target, statistic=statistic)


def clipped(beta: float, gain: float = GAIN) -> Controller:
    """Builds the clipped one of the PPO libraries, which reaches ``gain`` at a KL 20 % off, and no more."""
    return controllers.clipped_proportional(beta, TARGET, 0.2 * COMPLETIONS / gain, statistic=SEQUENCE)


def integral(beta: float, horizon: float = 100, gain: float = GAIN) -> Controller:
    """Builds the library's proportional-integral one, the gains in the article's ratio."""
    return controllers.proportional_integral(
        beta, TARGET, horizon, proportional_gain=gain, integral_gain=gain / 10, statistic=SEQUENCE
    )


RIGHT = {
    "beta 0": controllers.constant(0.0),
    "constant": controllers.constant(MIDDLE),
    "warm-up": controllers.linear_warmup(MIDDLE, 0.001, 100),
    "tight then loose": controllers.tight_then_loose(10 * MIDDLE, MIDDLE, 100),
    "tight then loose, then proportional": controllers.then(
        controllers.tight_then_loose(10 * MIDDLE, MIDDLE, 100), 100, proportional(MIDDLE)
    ),
    "proportional, loose start": proportional(LOOSE),
    "proportional, tight start": proportional(TIGHT),
    "clipped, loose start": clipped(LOOSE),
    "clipped, tight start": clipped(TIGHT),
    "integral, loose start": integral(LOOSE),
    "integral, tight start": integral(TIGHT),
}
"""Controllers and schedules of the library, fed and aimed in one unit."""
WRONG = {
    "gain 2, as written": article.proportional(LOOSE, TARGET, 2 / TARGET),
    "gain 2, library": proportional(LOOSE, gain=2.0),
    "wind-up, as written": article.proportional_integral(1e-4, TARGET, 1),
    "wind-up, library": integral(1e-4, 1),
    "backwards, as written": article.backwards(article.proportional(MIDDLE, TARGET, GAIN / TARGET), TARGET),
    "target per token, KL per sequence": proportional(LOOSE, TOKEN_TARGET),
}
"""What goes wrong, and beside it what the library makes of the same."""
PER_TOKEN = {
    "target per sequence, KL per token": proportional(LOOSE, statistic=TOKEN),
    "both per token": proportional(LOOSE, TOKEN_TARGET, statistic=TOKEN),
}
"""Rules that are fed the mean per token."""
RULES = RIGHT | WRONG | PER_TOKEN


class Chosen(NamedTuple):
    """State of `one_of`: which rule acts ``[]``, and the states of all of them."""

    number: Int[Array, ""]
    states: tuple


def one_of(rules: Sequence[Controller]) -> Controller:
    """Builds a controller that is the rule whose number its state has, so that one compilation serves them all.

    Every rule sees the KL; the one that is chosen says what beta is.

    Args:
        rules: at least one, all fed one statistic, which schedules are not.
    """
    fed: set[KLStatistic] = {rule.statistic for rule in rules if rule.adaptive}
    (statistic,) = fed

    def update(state: Chosen, kl: Any, samples: Any) -> Chosen:
        moved = [rule.update(each, kl, samples) for rule, each in zip(rules, state.states, strict=True)]
        return state._replace(states=tuple(moved))

    return Controller(
        init=lambda: Chosen(jnp.int32(0), tuple(rule.init() for rule in rules)),
        beta=lambda state: jnp.stack([rule.beta(each) for rule, each in zip(rules, state.states, strict=True)])[
            state.number
        ],
        update=update,
        statistic=statistic,
        description="; or ".join(rule.description for rule in rules),
        adaptive=True,
    )
