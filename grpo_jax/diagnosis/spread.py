"""Rules about how the KL differs among completions. All numbers are nats per completion unless they say otherwise."""

import math
from collections.abc import Sequence

import numpy as np

from grpo_jax.config import Config
from grpo_jax.diagnosis.divergence import BAND
from grpo_jax.diagnosis.finding import Finding, Rule
from grpo_jax.diagnosis.series import Series, finding, series
from grpo_jax.metrics import Row


def kl_jumps(factor: float = 5.0, recent: int = 10, level: float = BAND[0], grace: int = 20) -> Rule:
    """Builds the rule for a spread of the KL among completions that jumps.

    Compared are the medians of ``kl_std`` over the last ``recent`` updates and over twice as many before them, so that
    single batches do not count.

    Args:
        factor: how many times the spread must have grown.
        recent: updates on the later side.
        level: standard deviation, in nats per completion, below which it does no harm.
        grace: first updates, in which the KL grows from 0 in any run.
    """

    def rule(rows: Sequence[Row], config: Config) -> Finding | None:
        spread = series(rows[grace:], "kl_std")
        if len(spread) < 3 * recent:
            return None
        before, after = spread.part(-3 * recent, -recent), spread.part(-recent)
        was, now = float(np.median(before.values)), float(np.median(after.values))
        # Its tails are heavy: three in four batches must also lie beyond nine in ten of those before.
        apart = np.quantile(after.values, 0.25) > np.quantile(before.values, 0.9)
        if not (apart and now > level and now > factor * was):
            return None
        evidence = (
            f"the standard deviation of the KL among completions went from {was:.3g} to {now:.3g} nats within "
            f"{3 * recent} updates"
        )
        cause = "updates too long for the batch, or a beta that fell too fast"
        remedy = (
            f"Halve --update.learning-rate, take more than {config.rollout.prompts} prompts per update, and change "
            "beta more slowly"
        )
        return finding("kl_jumps", after, "kl_std", now, evidence, cause, remedy)

    return rule


def kl_single_samples(limit: float = 1e3, extreme: float = 1e6, recent: int = 20, often: int = 3) -> Rule:
    """Builds the rule for single completions whose KL explodes.

    k3 is exp(-u) where a sampled token has the log-ratio u << 0, so its largest value says how improbable a token was
    that the policy drew: 1e3 nats are a token 1,000 times likelier under the reference, which a healthy run draws now
    and then, and 1e6 are one that it should never draw.

    Args:
        limit: largest KL of a batch that should be rare.
        extreme: largest KL that should not happen once.
        recent: last updates that are counted.
        often: how many of them beyond ``limit`` are too many.
    """

    def rule(rows: Sequence[Row], config: Config) -> Finding | None:
        largest = series(rows[-recent:], "kl_max")
        beyond = Series(largest.steps[largest.values > limit], largest.values[largest.values > limit])
        if not len(beyond) or (len(beyond) < often and np.max(beyond.values) < extreme):
            return None
        peak = int(np.argmax(beyond.values))
        value, step = float(beyond.values[peak]), int(beyond.steps[peak])
        evidence = (
            f"a completion of update {step} has a KL of {value:.3g} nats, exp({math.log(value):.1f}); {len(beyond)} of "
            f"the last {len(largest)} updates have one beyond {limit:g}"
        )
        cause = (
            "tokens that the reference writes and the policy hardly ever does: it has left the reference there, or the "
            "sampler has other parameters than the policy"
        )
        remedy = (
            "Check that the sampler gets every update; lower --update.learning-rate or raise beta; cut the "
            "tails of sampling (--rollout.top-p 0.99); "
            "--objective.kl-clamp 10 bounds what one token can do"
        )
        return finding("kl_single_samples", beyond, "kl_max", value, evidence, cause, remedy)

    return rule
