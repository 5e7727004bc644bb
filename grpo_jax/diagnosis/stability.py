"""Rules about the steps themselves: how long they are, and whether the reward survives them."""

from collections.abc import Sequence

import numpy as np

from grpo_jax.config import Config
from grpo_jax.diagnosis.finding import Finding, Rule
from grpo_jax.diagnosis.series import Series, change, finding, noise, series
from grpo_jax.metrics import Row


def ratio_large(limit: float = 2.0, recent: int = 10, share: float = 0.5) -> Rule:
    """Builds the rule for probability ratios to the policy that sampled that are too large.

    Args:
        limit: largest ratio of a batch that should be usual.
        recent: last updates that are counted; nothing is said before.
        share: of them that may be beyond it.
    """

    def rule(rows: Sequence[Row], config: Config) -> Finding | None:
        ratios = series(rows[-recent:], "ratio_max")
        if len(ratios) < recent or np.mean(ratios.values > limit) <= share:
            return None
        value = float(np.median(ratios.values))
        count = int(np.sum(ratios.values > limit))
        evidence = (
            f"the largest ratio is beyond {limit:g} in {count} of {len(ratios)} updates, {value:.3g} in the middle"
        )
        steps = config.update.updates_per_rollout
        cause = "the completions come from an older policy, whose sampler lags behind"
        remedy = "Sample from newer parameters, or lower --update.learning-rate"
        if steps > 1:
            cause = f"{steps} optimizer steps on each batch of completions go too far from what sampled it"
            remedy = "Lower --update.learning-rate or --update.updates-per-rollout, or clip more tightly"
        return finding("ratio_large", ratios, "ratio_max", value, evidence, cause, remedy)

    return rule


def reward_drops_at_start(first: int = 5, then: int = 15, errors: float = 4.0, share: float = 0.2) -> Rule:
    """Builds the rule for a reward that falls as soon as training begins.

    Args:
        first: updates that say where it started.
        then: updates after them that say where it went; nothing is said before.
        errors: standard errors that it must have fallen by, from the noise from update to update.
        share: of the standard deviation among completions that it must have fallen by.
    """

    def rule(rows: Sequence[Row], config: Config) -> Finding | None:
        reward = series(rows[: first + then], "reward_mean")
        spread = series(rows[: first + then], "reward_std")
        if len(reward) < first + then or not len(spread):
            return None
        before, after = reward.values[:first], reward.values[first:]
        moved, sigmas = change(before, after)
        if sigmas > -errors or -moved < share * np.mean(spread.values):
            return None
        evidence = f"the reward fell from {np.mean(before):.3g} to {np.mean(after):.3g} within {first + then} updates"
        beta, kl = series(rows[: first + then], "beta"), series(rows[: first + then], "kl_mean")
        cause = f"the steps are too long (learning rate {config.update.learning_rate:g})"
        remedy = "Divide --update.learning-rate by 10, and raise --update.warmup-steps"
        if len(beta) and len(kl) and beta.values[0] * np.mean(kl.values) > np.mean(spread.values):
            cause = (
                f"beta is too large ({beta.values[0]:.3g}): beta times the KL outweighs what the reward differs by "
                "among completions"
            )
            remedy = "Ramp it (--beta.schedule linear_warmup), or lower it by a decade; then lower the learning rate"
        return finding("reward_drops_at_start", reward, "reward_mean", moved, evidence, cause, remedy)

    return rule


def unstable(window: int = 10, errors: float = 6.0, share: float = 0.5, growth: float = 10.0) -> Rule:
    """Builds the rule for training that breaks: updates rejected, a reward that collapses, or a gradient that explodes.

    Args:
        window: updates that are averaged.
        errors: standard errors between the best window of the reward and the last.
        share: of the reward's standard deviation among completions that it must have fallen by.
        growth: how many times the gradient's norm must have grown, in medians of windows, from the second on, and how
            many times what clipping leaves, at most 1, it must be.
    """

    def rule(rows: Sequence[Row], config: Config) -> Finding | None:
        signs = (_rejected(rows), _collapsed(rows, window, errors, share), _exploded(rows, window, growth, config))
        found = next((sign for sign in signs if sign is not None), None)
        if found is None:
            return None
        over, measure, value, evidence = found
        return finding("unstable", over, measure, value, evidence, *_why_unstable(config))

    return rule


_Sign = tuple[Series, str, float, str]


def _rejected(rows: Sequence[Row]) -> _Sign | None:
    rejected = series(rows, "rejected")
    share = float(np.mean(rejected.values)) if len(rejected) else 0.0
    where = np.flatnonzero(rejected.values)
    if not len(where):
        return None
    over = Series(rejected.steps[where], rejected.values[where])
    return over, "rejected", share, f"{len(where)} updates had a loss or a gradient that was not finite"


def _collapsed(rows: Sequence[Row], window: int, errors: float, share: float) -> _Sign | None:
    reward, spread = series(rows, "reward_mean"), series(rows, "reward_std")
    if len(reward) < 3 * window or not len(spread):
        return None
    means = np.convolve(reward.values[:-window], np.full(window, 1 / window), "valid")
    best = int(np.argmax(means))
    now = float(np.mean(reward.values[-window:]))
    fallen = means[best] - now
    # The noise of the whole run: that of ten updates, the best ones of all, says too little.
    if fallen < max(errors * noise(reward.values) * np.sqrt(2 / window), share * np.max(spread.values)):
        return None
    over = reward.part(best)
    return over, "reward_mean", now, f"the reward fell from {means[best]:.3g} to {now:.3g}"


def _exploded(rows: Sequence[Row], window: int, growth: float, config: Config) -> _Sign | None:
    norms = series(rows[window:], "gradient_norm")
    if len(norms) < 2 * window:
        return None
    was, now = float(np.median(norms.values[:window])), float(np.median(norms.values[-window:]))
    if now < growth * was or now < growth * min(config.update.max_norm, 1.0):
        return None
    return norms.part(-window), "gradient_norm", now, f"the gradient's norm grew from {was:.3g} to {now:.3g}"


def _why_unstable(config: Config) -> tuple[str, str]:
    objective, update = config.objective, config.update
    in_reward = objective.placement in ("reward", "to_go", None)
    if objective.kl == "k3" and in_reward and config.beta.value > 0:
        return (
            "k3 in the reward, which hardly pulls near the reference and drives the policy away from it far off",
            "Use --objective.kl k1 there, or --objective.placement loss",
        )
    if update.max_norm > 10:
        return (f"the gradient is hardly clipped (update.max_norm={update.max_norm:g})", "Use --update.max-norm 1")
    return (
        f"updates too long (learning rate {update.learning_rate:g}) for batches of {config.rollout.prompts} prompts",
        "Halve --update.learning-rate until it holds, or take more prompts per update",
    )
