"""Ways to make one advantage of three rewards, with one KL term that they share."""

import functools

import grpo_jax as gj
from experiments.many_rewards.rewards import three
from experiments.small_scale.campaign import Case
from experiments.small_scale.setting import Setting
from grpo_jax.advantages import Advantage
from grpo_jax.losses import Objective

BETAS = (0.0, 0.1, 0.3)
"""Of the one KL term, per nat of a completion. A penalty in each of three rewards is one with three times the beta."""
WEIGHTS = (1.0, 1.0, 1.0)
"""Of the right answer, its form and its brevity."""
SUM, WHOLE, EACH = "sum", "sum, standardised", "each standardised"
SETTING = Setting(updates=60)


def advantage_of(way: str) -> Advantage:
    """Returns the advantage: the weighted sum, standardised or not, or each reward by itself and then summed (GDPO)."""
    if way == EACH:
        return gj.advantages.separately_standardised(WEIGHTS)
    inner = gj.advantages.leave_one_out() if way == SUM else gj.advantages.standardised()
    return gj.advantages.weighted_sum(WEIGHTS, inner)


@functools.cache
def objective_of(way: str, penalties: int = 1) -> Objective:
    """Returns the on-policy objective with k1 to go; sums over tokens, no clipping.

    Args:
        way: of the three above.
        penalties: how many rewards have the KL term in them; with unit weights it is in their sum so many times.
    """
    term = gj.kl.penalty(gj.kl.mixture((float(penalties), gj.kl.k1)))
    reduction = gj.reductions.sequence_mean_of_token_sum()
    return gj.objective(advantage_of(way), gj.surrogates.reinforce(), reduction, kl=term)


def cases() -> list[Case]:
    """Returns every way with every beta."""
    return [
        Case({"way": way, "beta": beta}, objective_of(way), beta, reward=three)
        for way in (SUM, WHOLE, EACH)
        for beta in BETAS
    ]
