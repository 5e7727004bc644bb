"""From a scored batch to updated parameters: learner, micro-batches, reference policies, optimizers, warm start."""

from grpo_jax.updates.gradient_share import gradient_share
from grpo_jax.updates.learner import Learner, Score, learner
from grpo_jax.updates.micro_batches import accumulate_gradient, join_groups, map_groups, pad_groups, split_groups
from grpo_jax.updates.optimizers import Step, adam, adamw, guarded_step, trainable_only, warmed_up
from grpo_jax.updates.packing import pack
from grpo_jax.updates.reference import (
    Reference,
    assert_not_aliased,
    behaviour,
    copied_every,
    ema,
    frozen,
    reference_scores,
)
from grpo_jax.updates.warm_start import WarmStart, WarmStartState, demonstrations, warm_start

__all__ = [
    "Learner",
    "Reference",
    "Score",
    "Step",
    "WarmStart",
    "WarmStartState",
    "accumulate_gradient",
    "adam",
    "adamw",
    "assert_not_aliased",
    "behaviour",
    "copied_every",
    "demonstrations",
    "ema",
    "frozen",
    "gradient_share",
    "guarded_step",
    "join_groups",
    "learner",
    "map_groups",
    "pack",
    "pad_groups",
    "reference_scores",
    "split_groups",
    "trainable_only",
    "warm_start",
    "warmed_up",
]
