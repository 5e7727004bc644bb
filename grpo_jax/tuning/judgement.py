"""Which value of a stage is best, and how sure that is."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from grpo_jax.oracle.student import t_quantile
from grpo_jax.tuning.records import Outcome
from grpo_jax.tuning.stages import Stage


class Interval(NamedTuple):
    """A mean with the ends of its 95 % interval; NaN where there is nothing, and ends from a single number."""

    mean: float
    low: float
    high: float


class Judged(NamedTuple):
    """A value of a stage and what its runs came to.

    Attributes:
        value: the value.
        rewards: held-out reward of each finished run by its seed.
        runs: how many there were, finished or not.
        kl: mean KL to the reference in the last update, nats per completion; NaN where none was measured.
    """

    value: float | int
    rewards: dict[int, float]
    runs: int
    kl: float

    @property
    def reward(self) -> Interval:
        """The mean over seeds."""
        return mean_interval(list(self.rewards.values()))


def mean_interval(values: Sequence[float | int]) -> Interval:
    """Returns a mean with Student's 95 % interval."""
    if not values:
        return Interval(math.nan, math.nan, math.nan)
    mean, freedom = float(np.mean(values)), len(values) - 1
    half = t_quantile(freedom) * float(np.std(values, ddof=1)) / math.sqrt(len(values)) if freedom else math.nan
    return Interval(mean, mean - half, mean + half)


def judged(value: float | int, outcomes: Sequence[Outcome]) -> Judged:
    """Returns what the runs of a value came to."""
    rewards = {each.seed: each.reward for each in outcomes if each.reward is not None}
    kls = [each.kl for each in outcomes if each.kl is not None]
    return Judged(value, rewards, len(outcomes), float(np.mean(kls)) if kls else math.nan)


def chosen(found: Sequence[Judged], present: float | int) -> Judged | None:
    """Returns the value with the highest mean; of equal ones the present one.

    One of which a run failed only wins where none is without failures: the mean of those that survive says too much.

    Args:
        found: the values of a stage.
        present: the value before the stage.

    Returns:
        The best; None where no run finished.
    """
    some = [each for each in found if each.rewards]
    left = [each for each in some if len(each.rewards) == each.runs] or some
    return max(left, key=lambda each: (each.reward.mean, each.value == present), default=None)


def table(stage: Stage, found: Sequence[Judged]) -> str:
    """Returns a stage's values as a Markdown table."""
    heads = [stage.name, "held-out reward", "95 % interval", "KL, nats per completion", "finished"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for each in found:
        reward = each.reward
        within = "" if math.isnan(reward.low) else f"{reward.low:.3f} to {reward.high:.3f}"
        mean, kl = ("" if math.isnan(x) else f"{x:.3f}" for x in (reward.mean, each.kl))
        lines.append(f"| {each.value:g} | {mean} | {within} | {kl} | {len(each.rewards)} of {each.runs} |")
    return "\n".join(lines)


def verdict(stage: Stage, found: Sequence[Judged], best: Judged) -> str:
    """Returns lines about the best value: what it cannot be told from, and whether it lies at the end of the grid.

    Differences are paired by seed. The best is the best of several by chance too, so these intervals flatter it.
    """
    lines = [f"best {stage.name}: {best.value:g}, held-out reward {best.reward.mean:.3f}"]
    others = [each for each in found if each is not best and each.rewards]
    for other in others:
        shared = sorted(best.rewards.keys() & other.rewards.keys())
        difference = mean_interval([best.rewards[seed] - other.rewards[seed] for seed in shared])
        if difference.low > 0:
            continue
        how = "from a single seed" if math.isnan(difference.low) else f"{difference.low:+.3f} to {difference.high:+.3f}"
        lines.append(f"  not distinguishable from {other.value:g}: {difference.mean:+.3f} better ({how})")
    if len(stage.values) > 1 and best.value in (stage.values[0], stage.values[-1]):
        side = "smallest" if best.value == stage.values[0] else "largest"
        lines.append(
            f"warning: {best.value:g} is the {side} {stage.name} that was tried; the best may lie beyond. Repeat the "
            f"sweep with more values in {stage.option}: runs that are there are not repeated"
        )
    return "\n".join(lines)
