"""grpo-jax train."""

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from grpo_jax.config import Config, load
from grpo_jax.hosts import Hosts, from_writer, started
from grpo_jax.metrics import steps_to_profile
from grpo_jax.presets import check_files, preset
from grpo_jax.train import train


@dataclass(frozen=True)
class Train:
    """Train a policy: warm start, then group-relative policy optimisation; everything it leaves lies in one folder.

    Tune in this order: the learning rate, then beta by decades, then the group size; grpo-jax sweep does so.

    Attributes:
        out: the run's folder. None: the first free one of runs/1, runs/2, ...
        resume: continue the run in the folder from its last checkpoint, with its own options; steps, checkpoint_every,
            keep_checkpoints, keep_best, keep_every, diagnose_every and mesh may be given anew.
        preset: where the options start from: default, language-model, smoke, throughput; with a pretrained model:
            checkpoint (yours), smollm2-135m, qwen2.5-0.5b-gsm8k, qwen3-4b-countdown-async,
            qwen2.5-7b-math, llama3.1-8b-math.
        config_file: start from a saved config.json instead of a preset.
        config: every option of the run.
        hosts: the run as several processes, each started with the same options but for its index.
        profile_steps: first and last step to trace with JAX's profiler into the run's folder, as 10:12. None: none.
    """

    config: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)
    out: Path | None = None
    resume: bool = False
    preset: str | None = None
    config_file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    hosts: Hosts = field(default_factory=Hosts)
    profile_steps: str | None = None

    def execute(self) -> int:
        """Trains; returns the exit status."""
        if self.resume and self.out is None:
            raise ValueError("--resume: which run? Name its folder with --out")
        if self.preset is not None:
            check_files(self.preset, self.config)
        profile = None if self.profile_steps is None else steps_to_profile(self.profile_steps)
        with started(self.hosts):
            out = self.out or Path(from_writer(lambda: str(_free_folder())))
            train(self.config, out, resume=self.resume, profile=profile)
        return 0


def starting_point(words: list[str]) -> Config:
    """Returns the configuration that the other options change: a preset's, a saved one, or that of the resumed run."""
    reader = argparse.ArgumentParser(prog="grpo-jax", add_help=False, allow_abbrev=False)
    reader.add_argument("--preset")
    reader.add_argument("--config")
    reader.add_argument("--out")
    reader.add_argument("--resume", action="store_true")
    named, _ = reader.parse_known_args(words)
    if named.preset is not None and named.config is not None:
        raise ValueError(f"--preset {named.preset} and --config {named.config}: give one of them")
    if named.config is not None:
        return load(named.config)
    if named.preset is None and named.resume and named.out and Path(named.out, "config.json").is_file():
        return load(Path(named.out, "config.json"))
    return preset("default" if named.preset is None else named.preset)


def _free_folder() -> Path:
    number = 1
    while Path("runs", str(number)).exists():
        number += 1
    return Path("runs", str(number))
