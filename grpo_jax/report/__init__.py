"""One self-contained page of HTML about one or several runs."""

from grpo_jax.report.page import render, write_report
from grpo_jax.report.recorded import RecordedRun, read_runs

__all__ = ["RecordedRun", "read_runs", "render", "write_report"]
