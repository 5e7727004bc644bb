"""The mesh of devices and the one table that places arrays on it."""

from grpo_jax.sharding.groups import group_by_group, pin_groups, vocabulary_parts
from grpo_jax.sharding.mesh import AXES, group_multiple, make_mesh, mesh_size, other_layout
from grpo_jax.sharding.rules import (
    ON_THE_WAY,
    RULES,
    batch_sharding,
    like_params,
    partition,
    shardings,
    state_shardings,
)

__all__ = [
    "AXES",
    "ON_THE_WAY",
    "RULES",
    "batch_sharding",
    "group_by_group",
    "group_multiple",
    "like_params",
    "make_mesh",
    "mesh_size",
    "other_layout",
    "partition",
    "pin_groups",
    "shardings",
    "state_shardings",
    "vocabulary_parts",
]
