"""Tuning a run in stages, each starting from the best of the one before; every point is an ordinary run."""

from grpo_jax.tuning.judgement import Interval, Judged, chosen, judged, mean_interval, table, verdict
from grpo_jax.tuning.records import Outcome, opened, options, outcome_of, run_name
from grpo_jax.tuning.stages import Stage, around, betas, group_sizes, learning_rates, usual_group_sizes
from grpo_jax.tuning.sweep import SweepFailed, Swept, sweep

__all__ = [
    "Interval",
    "Judged",
    "Outcome",
    "Stage",
    "SweepFailed",
    "Swept",
    "around",
    "betas",
    "chosen",
    "group_sizes",
    "judged",
    "learning_rates",
    "mean_interval",
    "opened",
    "options",
    "outcome_of",
    "run_name",
    "sweep",
    "table",
    "usual_group_sizes",
    "verdict",
]
