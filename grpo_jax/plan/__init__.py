"""Ahead-of-time compilation of a run's own steps for devices that are not there."""

from grpo_jax.plan.chips import CHIPS, Chip, Topology, slices, topology
from grpo_jax.plan.measure import Measured, Memory, Step, TooLarge, measure
from grpo_jax.plan.outline import Outline, outline
from grpo_jax.plan.report import Times, as_json, table, times, utilisation
from grpo_jax.plan.search import Attempt, Search

__all__ = [
    "CHIPS",
    "Attempt",
    "Chip",
    "Measured",
    "Memory",
    "Outline",
    "Search",
    "Step",
    "Times",
    "TooLarge",
    "Topology",
    "as_json",
    "measure",
    "outline",
    "slices",
    "table",
    "times",
    "topology",
    "utilisation",
]
