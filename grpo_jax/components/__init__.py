"""The config boundary: the one place where names become functions.

Every choice stands in a table with the options it reads. An option that is set but not read by the choice made is an
error, so that nothing in a configuration is ever without effect.
"""

from grpo_jax.components.build import (
    Parts,
    build,
    build_controller,
    build_objective,
    build_optimizer,
    build_reference,
)
from grpo_jax.components.checkpoint import Checkpoint, build_checkpoint
from grpo_jax.components.choices import Choice
from grpo_jax.components.problems import TASKS, build_task
from grpo_jax.components.tables import (
    ADAPTIVE,
    ADVANTAGES,
    DEGENERATE,
    ESTIMATORS,
    IMPORTANCE,
    MISMATCH,
    REDUCTIONS,
    REFERENCES,
    SCHEDULES,
    SURROGATES,
)

__all__ = [
    "ADAPTIVE",
    "ADVANTAGES",
    "Checkpoint",
    "Choice",
    "DEGENERATE",
    "ESTIMATORS",
    "IMPORTANCE",
    "MISMATCH",
    "Parts",
    "REDUCTIONS",
    "REFERENCES",
    "SCHEDULES",
    "SURROGATES",
    "TASKS",
    "build",
    "build_checkpoint",
    "build_controller",
    "build_objective",
    "build_optimizer",
    "build_reference",
    "build_task",
]
