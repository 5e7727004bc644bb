"""The rules together: over a whole run, or row by row while it trains."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from grpo_jax.config import Config
from grpo_jax.diagnosis.divergence import (
    kl_falls,
    kl_large_at_start,
    kl_outside_band,
    kl_rises,
    kl_stuck_at_zero,
)
from grpo_jax.diagnosis.finding import Finding, Rule, write_findings
from grpo_jax.diagnosis.spread import kl_jumps, kl_single_samples
from grpo_jax.diagnosis.stability import ratio_large, reward_drops_at_start, unstable
from grpo_jax.metrics import Row

EVERY = 10
"""Updates between two looks, where a run does not say."""
_FIRST, _LAST, _BETWEEN = 30, 100, 400
"""Rows that rules see of the beginning and of the end, all of them, and at most of what lies between."""


def shipped_rules() -> tuple[Rule, ...]:
    """Returns the rules with their default thresholds; add your own to them."""
    return (
        kl_large_at_start(),
        kl_rises(),
        kl_stuck_at_zero(),
        kl_jumps(),
        kl_single_samples(),
        ratio_large(),
        kl_outside_band(),
        reward_drops_at_start(),
        kl_falls(),
        unstable(),
    )


def watch(config: Config, rules: Sequence[Rule]) -> Callable[[Mapping[str, float | int | None]], list[Finding]]:
    """Builds what looks at a run while it trains.

    Args:
        config: the run's configuration; ``diagnose_every`` says how often it looks, besides at the last step.
        rules: what it looks for.

    Returns:
        ``row -> findings``; takes each row in turn, ``step`` among its measures, and returns what is found now and was
        not before.
    """
    rows: list[Row] = []
    told: set[str] = set()
    every = config.diagnose_every or EVERY

    def look(row: Mapping[str, float | int | None]) -> list[Finding]:
        step = row["step"]
        assert isinstance(step, int)
        if step > 0:
            rows.append({name: _finite(value) for name, value in row.items()})
        if step == 0 or (step % every and step != config.steps):
            return []
        fresh, seen = [], _thinned(rows)
        for rule in rules:
            finding = rule(seen, config)
            if finding is not None and finding.name not in told:
                told.add(finding.name)
                fresh.append(finding)
        return fresh

    return look


def follow(
    config: Config, rules: Sequence[Rule], past: Iterable[Row], path: Path, say: Callable[[str], None]
) -> Callable[[Row], None]:
    """Builds what a training loop hands its rows to.

    Args:
        config: the run's configuration; where it is never to be diagnosed, nothing is looked at or written.
        rules: what to look for.
        past: rows that a resumed run has written already; what they show has been said already, too.
        path: diagnosis.jsonl, which always holds all findings so far.
        say: what each new finding is said with.

    Returns:
        ``row -> None``, for each further row in turn.
    """
    if not config.diagnose_every:
        return lambda row: None
    look = watch(config, rules)
    found = [finding for row in past for finding in look(row)]
    write_findings(path, found)

    def take(row: Row) -> None:
        fresh = look(row)
        for finding in fresh:
            say(f"diagnosis: {finding}")
        if fresh:
            found.extend(fresh)
            write_findings(path, found)

    return take


def diagnose(rows: Iterable[Row], config: Config, rules: Sequence[Rule] | None = None) -> list[Finding]:
    """Returns what is wrong with a run, in the order in which it showed.

    The rules look at the run as they do while it trains, so both find the same.

    Args:
        rows: the run's rows, oldest first, as ``read_rows`` returns them.
        config: its configuration.
        rules: what to look for; None: ``shipped_rules``.
    """
    look = watch(config, shipped_rules() if rules is None else rules)
    return [finding for row in rows for finding in look(row)]


def _finite(value: float | int | None) -> float | int | None:
    return value if value is None or math.isfinite(value) else None


def _thinned(rows: list[Row]) -> list[Row]:
    """Returns rows of which there are never more than a few hundred, so that a look costs the same in a long run."""
    between = rows[_FIRST:-_LAST]
    return [*rows[:_FIRST], *between[:: -(-len(between) // _BETWEEN) or 1], *rows[max(_FIRST, len(rows) - _LAST) :]]
