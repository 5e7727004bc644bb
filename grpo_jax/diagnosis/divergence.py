"""Rules about the KL to the reference: how large it is, and where it goes.

All numbers are nats per completion unless they say otherwise.
"""

from collections.abc import Sequence

import numpy as np

from grpo_jax.config import Config
from grpo_jax.diagnosis.finding import Finding, Rule
from grpo_jax.diagnosis.series import block_medians, finding, learned, second_half, series, trend
from grpo_jax.metrics import Row

BAND = (2.0, 10.0)
"""Where the KL of a fine-tuned policy usually lies, in nats per completion."""


def kl_large_at_start(before_moving: float = 0.5, limit: float = BAND[1], updates: int = 10) -> Rule:
    """Builds the rule for a KL that is large before training can have made it so.

    Args:
        before_moving: KL of the first update, which a reference equal to the starting policy makes 0; rounding between
            two passes adds some hundredths on long completions.
        limit: KL that no run should reach within its first updates.
        updates: how many those are.
    """

    def rule(rows: Sequence[Row], config: Config) -> Finding | None:
        kl = series(rows[:updates], "kl_mean")
        if not len(kl):
            return None
        if kl.steps[0] == 1 and kl.values[0] > before_moving:
            evidence = f"the KL of the first update, before any step, is {kl.values[0]:.3g} nats per completion"
            cause = "the reference is not the policy that the run starts from"
            remedy = "Load both from the same place, score both at the same temperature, and start from the reference"
            return Finding("kl_large_at_start", 1, 1, "kl_mean", float(kl.values[0]), evidence, cause, remedy)
        peak = int(np.argmax(kl.values))
        # Two rows, since the estimate of a single batch may hang on one completion.
        if np.sum(kl.values > limit) < 2:
            return None
        step, value = int(kl.steps[peak]), float(kl.values[peak])
        evidence = f"the KL reaches {value:.3g} nats per completion at update {step}; {limit:g} is much for a whole run"
        cause = f"the first steps are too long (learning rate {config.update.learning_rate:g})"
        remedy = (
            f"Divide --update.learning-rate by 10, and raise --update.warmup-steps above {config.update.warmup_steps}"
        )
        return Finding("kl_large_at_start", int(kl.steps[0]), step, "kl_mean", value, evidence, cause, remedy)

    return rule


def kl_rises(limit: float = BAND[1], growth: float = 1.4, least: int = 40) -> Rule:
    """Builds the rule for a KL that rises without end.

    Looked at is the later half of the run, as medians of ten equal parts: they rise together, the last three are
    ``growth`` times the first three, and the last is beyond ``limit``.

    Args:
        limit: KL below which a rise does no harm.
        growth: least ratio of the last three medians to the first three; a KL that rises from 0 in a line has 1.6.
        least: updates before anything is said.
    """

    def rule(rows: Sequence[Row], config: Config) -> Finding | None:
        kl = second_half(series(rows, "kl_mean"))
        if 2 * len(kl) < least:
            return None
        medians = block_medians(kl.values)
        grown = np.mean(medians[-3:]) > growth * np.mean(medians[:3])
        if not (grown and medians[-1] > limit and trend(kl.values) == 1):
            return None
        evidence = f"the KL rose from {medians[0]:.3g} to {medians[-1]:.3g} nats per completion, and still rises"
        beta = series(rows, "beta")
        strength = f"beta is {beta.values[-1]:.3g}" if len(beta) else f"beta starts at {config.beta.value:g}"
        cause = (
            f"the KL term pulls too little ({strength}), or not at all where it stands: see which gradient it follows"
        )
        remedy = (
            "Raise --beta.value tenfold, or let --beta.adaptive hold a target; if the reward falls too, lower the "
            "learning rate"
        )
        return finding("kl_rises", kl, "kl_mean", float(medians[-1]), evidence, cause, remedy)

    return rule


def kl_stuck_at_zero(limit: float = 1e-3, least: int = 50) -> Rule:
    """Builds the rule for a policy that stays where it is: no KL, and a reward that never rose.

    Args:
        limit: KL that counts as none; half of the updates so far must lie below it, all recent ones among them.
        least: updates before anything is said.
    """

    def rule(rows: Sequence[Row], config: Config) -> Finding | None:
        kl, reward = series(rows, "kl_mean"), series(rows, "reward_mean")
        if len(kl) < least or len(reward) < least or learned(reward):
            return None
        late = second_half(kl)
        if np.max(late.values) > limit:
            return None
        evidence = (
            f"the KL is at most {np.max(late.values):.2g} nats per completion, and the reward has not risen from "
            f"{np.mean(reward.values[: len(reward) // 3]):.3g}"
        )
        return finding("kl_stuck_at_zero", late, "kl_mean", float(np.max(late.values)), evidence, *_inert(rows, config))

    return rule


def _inert(rows: Sequence[Row], config: Config) -> tuple[str, str]:
    """Returns why a policy may stay where it is, and what helps."""
    degenerate = second_half(series(rows, "degenerate"))
    if len(degenerate) and np.mean(degenerate.values) > 0.9:
        share = float(np.mean(degenerate.values))
        return (
            f"nothing to learn from: in {share:.0%} of the groups all completions have the same reward",
            "Choose problems that the policy solves sometimes, warm-start it, or grade partial answers",
        )
    if config.reference.kind != "frozen":
        return (
            f"the reference follows the policy (reference.kind={config.reference.kind}), so the KL says nothing",
            "Use --reference.kind frozen, or move the reference more rarely",
        )
    return (
        f"the steps are too short (learning rate {config.update.learning_rate:g}), or beta ({config.beta.value:g}) "
        "holds the policy where it is",
        "Raise --update.learning-rate by 3 to 10; if that moves nothing, divide --beta.value by 10",
    )


def kl_outside_band(low: float = BAND[0], high: float = BAND[1], least: int = 100) -> Rule:
    """Builds the rule for a KL outside the usual band while the reward stands still.

    It matters only there: a policy that learns with little KL is well off, and one that spends much and gains must not
    be held back. Three in four updates of the later half lie outside. A KL that is 0 is another rule's.

    Args:
        low: lower end of the band.
        high: upper end.
        least: updates before anything is said.
    """

    def rule(rows: Sequence[Row], config: Config) -> Finding | None:
        kl, reward = second_half(series(rows, "kl_mean")), series(rows, "reward_mean")
        if 2 * len(kl) < least or 2 * len(kl) < len(reward) or learned(reward):
            return None
        level = float(np.median(kl.values))
        outside = np.quantile(kl.values, 0.75) < low or np.quantile(kl.values, 0.25) > high
        if not outside or level < 1e-3:
            return None
        side, end = ("below", low) if level < low else ("above", high)
        evidence = f"the KL is {level:.3g} nats per completion, {side} {end:g}, and the reward has not risen"
        if level < low:
            cause, remedy = _too_close(config)
        else:
            cause = "the policy drifts where the reward does not pay for it"
            remedy = (
                "Raise beta two- to tenfold, lower the learning rate, and check the reward on what the policy writes"
            )
        return finding("kl_outside_band", kl, "kl_mean", level, evidence, cause, remedy)

    return rule


def _too_close(config: Config) -> tuple[str, str]:
    return (
        f"the policy is held too close to the reference (beta starts at {config.beta.value:g}), or its steps are too "
        "short",
        "Halve beta until the KL moves, or scale the reward up; then raise the learning rate",
    )


def kl_falls(least: int = 40, fall: float = 0.5) -> Rule:
    """Builds the rule for a KL that keeps falling: the policy goes back to a frozen reference.

    Args:
        least: updates before anything is said.
        fall: the later half's last tenth, as a share of its first, at most.
    """

    def rule(rows: Sequence[Row], config: Config) -> Finding | None:
        kl, reward = second_half(series(rows, "kl_mean")), series(rows, "reward_mean")
        if 2 * len(kl) < least or config.reference.kind != "frozen" or learned(second_half(reward)):
            return None
        medians = block_medians(kl.values)
        if medians[-1] > fall * medians[0] or trend(kl.values) != -1:
            return None
        evidence = (
            f"the KL fell from {medians[0]:.3g} to {medians[-1]:.3g} nats per completion while the reward did not rise"
        )
        beta = series(rows, "beta")
        strength = f"now {beta.values[-1]:.3g}" if len(beta) else f"from {config.beta.value:g}"
        cause = f"outputs too conservative: beta ({strength}) outweighs the reward"
        remedy = "Lower beta or its ceiling, raise the target of --beta.adaptive, or scale the reward up"
        return finding("kl_falls", kl, "kl_mean", float(medians[-1]), evidence, cause, remedy)

    return rule
