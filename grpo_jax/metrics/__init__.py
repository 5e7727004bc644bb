"""What a run leaves behind for people and programs: numbers, pictures, samples, and the folder they lie in."""

from grpo_jax.metrics.beats import Beat, heartbeat
from grpo_jax.metrics.curves import PANELS, Panel, save_curves
from grpo_jax.metrics.measures import finalise, is_timing
from grpo_jax.metrics.pass_at_k import Proportion, pass_at_k, proportion
from grpo_jax.metrics.profile import Steps, profiler, steps_to_profile
from grpo_jax.metrics.progress import Progress, progress
from grpo_jax.metrics.run_folder import (
    RunFolder,
    Sample,
    config_hash,
    read_json,
    run_folder,
    write_json,
    write_samples,
    write_text,
)
from grpo_jax.metrics.writers import Row, Writer, json_lines, read_rows, several, tensorboard

__all__ = [
    "PANELS",
    "Beat",
    "Panel",
    "Progress",
    "Proportion",
    "Row",
    "RunFolder",
    "Sample",
    "Steps",
    "Writer",
    "config_hash",
    "finalise",
    "heartbeat",
    "is_timing",
    "json_lines",
    "pass_at_k",
    "profiler",
    "progress",
    "proportion",
    "read_json",
    "read_rows",
    "run_folder",
    "save_curves",
    "several",
    "steps_to_profile",
    "tensorboard",
    "write_json",
    "write_samples",
    "write_text",
]
