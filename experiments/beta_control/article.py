"""The two adaptive formulas of the article, exactly as written: nothing bounded that it does not bound."""

import jax.numpy as jnp

from grpo_jax.kl.controllers import Controller, KLStatistic


def proportional(beta: float, target: float, alpha: float, statistic: KLStatistic = "nats_per_sequence") -> Controller:
    """Builds ``beta <- beta * (1 + alpha * (KL - target))``; its state is beta.

    Args:
        beta: the first one.
        target: the KL aimed at, in nats of ``statistic``.
        alpha: per nat; the article has .1 to .3 and does not say of which KL.
        statistic: the KL that is fed.
    """
    return Controller(
        init=lambda: jnp.float32(beta),
        beta=lambda state: state,
        update=lambda state, kl, samples: state * (1 + alpha * (kl - target)),
        statistic=statistic,
        description=f"proportional as written, alpha {alpha:g}, to a KL of {target:g}, from beta {beta:g}",
        adaptive=True,
    )


def proportional_integral(beta: float, target: float, horizon: float) -> Controller:
    """Builds ``beta *= 1 + .1 e/target + .01 sum(e)/(horizon target)`` within [1e-6, 10], ``e = KL - target``.

    The state is beta and the sum, which includes the current error.

    Args:
        beta: the first one.
        target: the KL aimed at, in nats per sequence.
        horizon: updates.
    """

    def update(state, kl, samples):
        beta, total = state
        total = total + kl - target
        factor = 1 + 0.1 * (kl - target) / target + 0.01 * total / (horizon * target)
        return jnp.clip(beta * factor, 1e-6, 10.0), total

    return Controller(
        init=lambda: (jnp.float32(beta), jnp.float32(0)),
        beta=lambda state: state[0],
        update=update,
        statistic="nats_per_sequence",
        description=f"proportional-integral as written, horizon {horizon:g}, to a KL of {target:g}, from beta {beta:g}",
        adaptive=True,
    )


def backwards(rule: Controller, target: float) -> Controller:
    """Returns a rule that sees the error with the wrong sign: target - KL in the place of KL - target."""
    return rule._replace(
        update=lambda state, kl, samples: rule.update(state, 2 * target - kl, samples),
        description=f"{rule.description}; the error's sign turned round",
    )
