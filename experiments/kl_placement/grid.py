"""The configurations: one set of names for the small objectives and for the runs of a preset."""

import functools
from dataclasses import asdict, replace

from experiments.small_scale import sums
from grpo_jax.components import build_objective
from grpo_jax.config import Config, ObjectiveConfig
from grpo_jax.losses import Objective
from grpo_jax.presets import preset

BETAS = (0.05, 0.1, 0.3, 1.0)
"""In units of the reward per nat of a completion; 0 is the configuration ``none``."""
NONE = "none"
TERMS: dict[str, dict] = {
    NONE: {},
    "k1 to go": {"kl": "k1", "placement": "to_go"},
    "k1 reward": {"kl": "k1", "placement": "reward"},
    "k3 both": {"kl": "k3", "placement": "both"},
    "full both": {"kl": "full", "placement": "both"},
    "k3 loss": {"kl": "k3", "placement": "loss"},
    "k1 loss": {"kl": "k1", "placement": "loss", "allow_biased": True},
    "k3 reward": {"kl": "k3", "placement": "reward", "allow_biased": True},
}
"""Fields of ``grpo_jax.config.ObjectiveConfig`` by name; the first four with a KL term follow the reverse KL."""


@functools.lru_cache
def objective_of(name: str) -> Objective:
    """Returns on-policy RLOO with that KL term, its gradient that of E[R] - beta KL: sums over tokens, no clipping."""
    config = ObjectiveConfig(surrogate="reinforce", reduction="sequence_mean_of_token_sum", **TERMS[name])
    return build_objective(config, sums.MAX_TOKENS, with_kl=name != NONE)


def runs() -> list[tuple[str, float]]:
    """Returns every configuration with every beta."""
    return [(name, beta) for name in TERMS for beta in ((0.0,) if name == NONE else BETAS)]


def config_of(name: str, beta: float, start_from: str) -> Config:
    """Returns the same run on a preset's model and data, with its learning rate, batch and reduction.

    Args:
        name: of ``TERMS``.
        beta: strength of the KL term.
        start_from: a preset's name.
    """
    base = preset(start_from)
    plain = {field: None for field in ("kl", "placement", "granularity", "importance", "kl_clamp", "allow_biased")}
    objective = replace(base.objective, **(plain | TERMS[name]))
    return replace(base, objective=objective, beta=replace(base.beta, value=beta))


def command(name: str, beta: float, start_from: str, folder: str) -> str:
    """Returns the command that starts such a run by hand: the preset, and what differs from it."""
    before, after = asdict(preset(start_from).objective), asdict(config_of(name, beta, start_from).objective)
    changed = {field.replace("_", "-"): value for field, value in after.items() if value != before[field]}
    options = [f"--objective.{field} {value}" for field, value in changed.items()]
    return " ".join([f"grpo-jax train --preset {start_from} --out {folder}", *options, f"--beta.value {beta:g}"])
