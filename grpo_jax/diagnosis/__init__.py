"""What is wrong with a run, by rules over its rows of measures: each finding with its likely cause and a remedy."""

from grpo_jax.diagnosis.diagnose import EVERY, diagnose, follow, shipped_rules, watch
from grpo_jax.diagnosis.divergence import (
    BAND,
    kl_falls,
    kl_large_at_start,
    kl_outside_band,
    kl_rises,
    kl_stuck_at_zero,
)
from grpo_jax.diagnosis.finding import Finding, Rule, write_findings
from grpo_jax.diagnosis.spread import kl_jumps, kl_single_samples
from grpo_jax.diagnosis.stability import ratio_large, reward_drops_at_start, unstable

__all__ = [
    "BAND",
    "EVERY",
    "Finding",
    "Rule",
    "diagnose",
    "follow",
    "kl_falls",
    "kl_jumps",
    "kl_large_at_start",
    "kl_outside_band",
    "kl_rises",
    "kl_single_samples",
    "kl_stuck_at_zero",
    "ratio_large",
    "reward_drops_at_start",
    "shipped_rules",
    "unstable",
    "watch",
    "write_findings",
]
