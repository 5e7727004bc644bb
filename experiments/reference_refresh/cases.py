"""The references that are tried, with a clean and with a noisy reward."""

import functools

import grpo_jax as gj
from experiments.small_scale.campaign import Case
from experiments.small_scale.setting import Setting
from grpo_jax.losses import Objective

BETA = 0.3
"""Per nat of a completion: enough for a frozen reference to hold the policy."""
NOISES = (0.0, 1.0)
"""Standard deviation of what is added to a reward of 0 or 1."""
NONE = "no KL term"
REFERENCES = {
    NONE: gj.updates.frozen(),
    "frozen": gj.updates.frozen(),
    "copied every 80": gj.updates.copied_every(80),
    "copied every 20": gj.updates.copied_every(20),
    "average over 20": gj.updates.ema(1 / 20, 1),
}
"""By name; the average is exponential, and moves after every update."""
SETTING = Setting(updates=160)


@functools.cache
def objective() -> Objective:
    """Returns on-policy RLOO with k1 to go; sums over tokens, no clipping."""
    reduction = gj.reductions.sequence_mean_of_token_sum()
    term = gj.kl.penalty(gj.kl.k1)
    return gj.objective(gj.advantages.leave_one_out(), gj.surrogates.reinforce(), reduction, kl=term)


def cases() -> list[Case]:
    """Returns every reference with both rewards."""
    return [
        Case(
            {"reference": name, "noise": noise},
            objective(),
            0.0 if name == NONE else BETA,
            reference=reference,
            noise=noise,
        )
        for name, reference in REFERENCES.items()
        for noise in NOISES
    ]
