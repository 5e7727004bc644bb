"""grpo-jax sweep."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from grpo_jax.config import Config
from grpo_jax.presets import check_files
from grpo_jax.tuning import Stage, around, betas, group_sizes, learning_rates, sweep, usual_group_sizes


@dataclass(frozen=True)
class Sweep:
    """Tune a run: the learning rate, then beta by decades, then the group size, each from the best of the one before.

    Every point is trained with several seeds, as ordinary runs in folders of their own, and judged by the mean held-out
    reward after training. A sweep that is started again repeats nothing and may have more values; a run that fails is
    recorded, and the others go on. Starting points for beta: .01 to .05 for language models (about .1 below 1B
    parameters, .01 from 7B), .005 to .02 for path planning, .1 to .5 offline. Group sizes of 4 to 16 are usual. One
    process only.

    Attributes:
        out: the sweep's folder.
        preset: where the options start from, as in train.
        config_file: start from a saved config.json instead of a preset.
        config: every option of the run that the sweep starts from.
        stages: what is tuned, in this order: learning-rate, beta, group-size.
        learning_rates: values of the learning rate. None: the run's, a third of it and three times as much.
        betas: values of beta.value. None: the run's, a tenth of it and ten times as much. Held-out reward alone may
            well choose the smallest: the KL that each beta ends with is printed beside it, to choose by yourself.
        group_sizes: values of the group size. None: 4, 8, 16 and the run's. An update keeps its number of completions:
            rollout.prompts x rollout.group_size is held fixed, so that larger groups are fewer.
        seeds: runs of each point. Fewer than 3 hardly tell two values apart.
    """

    config: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)
    out: Path = Path("runs/sweep")
    preset: str | None = None
    config_file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    stages: tuple[str, ...] = ("learning-rate", "beta", "group-size")
    learning_rates: tuple[float, ...] | None = None
    betas: tuple[float, ...] | None = None
    group_sizes: tuple[int, ...] | None = None
    seeds: int = 3

    def execute(self) -> int:
        """Runs the sweep; returns the exit status."""
        stages = _stages(self)
        if self.preset is not None:
            check_files(self.preset, self.config)
        if "beta" in self.stages and self.config.beta.adaptive != "none":
            print(f"beta.adaptive={self.config.beta.adaptive} moves beta: its stage tunes where that starts")
        print(sweep(self.config, stages, self.out, seeds=self.seeds).report)
        return 0


def _decades(config: Config) -> tuple[float | int, ...]:
    if config.beta.value == 0:
        raise ValueError(
            "--stages beta: the run's beta is 0, which has no decades around it; give --betas, or leave beta out of "
            "--stages"
        )
    return around(config.beta.value, 10)


_TUNED: dict[str, tuple[Callable[..., Stage], Callable[[Config], Sequence[float | int]]]] = {
    "learning-rate": (learning_rates, lambda config: around(config.update.learning_rate, 3)),
    "beta": (betas, _decades),
    "group-size": (group_sizes, usual_group_sizes),
}
"""By the name of a stage: its factory, and the values that are tried where none are given."""


def _stages(command: Sweep) -> list[Stage]:
    given = {
        "learning-rate": command.learning_rates,
        "beta": command.betas,
        "group-size": command.group_sizes,
    }
    for name, values in given.items():
        if values is not None and name not in command.stages:
            raise ValueError(f"--{name}s has no effect without {name} in --stages")
    stages = []
    for name in command.stages:
        if name not in _TUNED:
            raise ValueError(f"--stages {name}: unknown stage; choose from {', '.join(_TUNED)}")
        build, usual = _TUNED[name]
        values = given[name]
        stages.append(build(usual(command.config) if values is None else values))
    return stages
