"""Configurations to start from, by name."""

from dataclasses import replace

from grpo_jax.config import (
    BetaConfig,
    Config,
    EvaluationConfig,
    ModelConfig,
    ObjectiveConfig,
    RolloutConfig,
    UpdateConfig,
    WarmStartConfig,
)


def default() -> Config:
    """Returns the default run: a small decoder on two-digit sums and differences, minutes on two CPU cores."""
    return Config()


def language_model() -> Config:
    """Returns the usual settings of language-model fine-tuning, to be scaled with the model.

    beta .01 kept near a KL of .05 nats per token by the proportional rule, 8 completions per prompt, learning rate
    1e-6, entropy .001, a frozen reference.
    """
    return Config(
        objective=ObjectiveConfig(entropy=0.001),
        beta=BetaConfig(value=0.01, adaptive="proportional", target=0.05),
        update=UpdateConfig(learning_rate=1e-6),
    )


def smoke() -> Config:
    """Returns a run of seconds that touches everything and learns nothing."""
    return Config(
        model=ModelConfig(layers=1, width=16, heads=2, kv_heads=1, head_dim=8, hidden=32),
        rollout=RolloutConfig(prompts=4, group_size=4),
        warm_start=WarmStartConfig(steps=10, batch=8, check_every=10),
        evaluation=EvaluationConfig(examples=16, every=2),
        steps=4,
        checkpoint_every=2,
        gradient_share_every=2,
    )


def throughput() -> Config:
    """Returns a step of 8 prompts with 8 completions each on a decoder of 3.8M parameters."""
    return replace(
        Config(),
        model=ModelConfig(layers=4, width=256, heads=8, kv_heads=2, head_dim=32, hidden=1024),
        rollout=RolloutConfig(prompts=8, group_size=8, max_tokens=64),
    )


PRESETS = {
    "default": default,
    "language-model": language_model,
    "smoke": smoke,
    "throughput": throughput,
}
"""Every preset by the name that the command line knows."""


def preset(name: str) -> Config:
    """Returns the preset of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; choose one of {', '.join(PRESETS)}")
    return PRESETS[name]()
