"""The configuration of a run: frozen data that stops at the training loop. No function of the library takes one."""

from grpo_jax.config.limits import check_limits
from grpo_jax.config.reading import from_dict, load, to_dict
from grpo_jax.config.sections import (
    BetaConfig,
    Config,
    EvaluationConfig,
    ModelConfig,
    ObjectiveConfig,
    ReferenceConfig,
    RewardConfig,
    RolloutConfig,
    TaskConfig,
    UpdateConfig,
    WarmStartConfig,
)

__all__ = [
    "BetaConfig",
    "Config",
    "EvaluationConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "ReferenceConfig",
    "RewardConfig",
    "RolloutConfig",
    "TaskConfig",
    "UpdateConfig",
    "WarmStartConfig",
    "check_limits",
    "from_dict",
    "load",
    "to_dict",
]
