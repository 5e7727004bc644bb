"""grpo-jax plan."""

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import jax
import tyro

from grpo_jax.config import Config
from grpo_jax.plan import Attempt, Search, TooLarge, as_json, table, topology
from grpo_jax.plan.measure import GIGA


@dataclass(frozen=True)
class Plan:
    """Say what a run needs on TPUs before anyone rents them: memory, operations, traffic, time, and what fits.

    Its own steps are compiled for the devices, which need not exist, from shapes: no weight and no text is read.
    Needs pip install 'grpo-jax[plan]' for TPUs.

    Attributes:
        topology: the devices: v5e:16x16, v6e:8x8, v5p:4x4x4 and the like; cpu:8 for virtual ones here.
        preset: where the options start from, as in train.
        config_file: start from a saved config.json instead of a preset.
        config: every option of the run.
        search: look for a mesh and micro-batches that fit, for the most prompts per update, and for the smallest slice;
            otherwise compile the run as it is.
        spare: share of each device's memory that must stay free.
        config_json: the model's config.json, where it is neither here nor known.
        json: file for the plan.
    """

    config: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)
    topology: str = "v5e:8x8"
    preset: str | None = None
    config_file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    search: bool = True
    spare: float = 0.15
    config_json: Path | None = None
    json: Path | None = None

    def execute(self) -> int:
        """Prints a plan; returns the exit status, 1 where nothing fits."""
        return _run(self)


def _run(command: Plan) -> int:
    if not 0 <= command.spare < 1:
        raise ValueError(f"--spare {command.spare}: give a share of the memory in [0, 1)")
    if command.json is not None and not command.json.parent.is_dir():
        raise ValueError(f"--json {command.json}: there is no folder {command.json.parent}; make it first")
    jax.config.update("jax_platforms", "cpu")  # libtpu is there to compile; there is no TPU to be looked for
    found, text = _plan(command)
    print(text)
    if command.json is not None:
        command.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(not found["fits"])


def _plan(command: Plan) -> tuple[dict[str, Any], str]:
    """Returns a plan as a tree of numbers and as a text."""
    where, attempts = topology(command.topology), []

    def report(attempt: Attempt) -> None:
        attempts.append(attempt._asdict())
        print(_described(attempt), flush=True)

    search = Search(command.config, command.config_json, report, {}, set())
    looked = command.search and where.chip is not None
    chosen = search.fitting(where, command.spare) if looked else command.config
    found: dict[str, Any] = {"topology": where.name, "spare": command.spare, "attempts": attempts}
    lines = []
    try:
        if chosen is not None:
            measured = search.whole(chosen, where)
            found |= {"plan": as_json(measured), "options": _options(chosen)}
            lines += ["", table(measured)]
            fits = where.chip is None or measured.peak <= where.chip.memory * (1 - command.spare * looked)
        else:
            fits = False
    except TooLarge as error:
        fits = False
        lines += ["", f"{where.name}: {error}"]
    found["fits"] = fits
    if looked:
        if chosen is not None and fits:
            found["most_prompts"] = search.most_prompts(chosen, where, command.spare)
            lines += [
                f"most prompts per update with {command.spare:.0%} to spare: {found['most_prompts']}",
                f"options: {shlex.join(found['options'])}",
            ]
        else:
            lines += [f"nothing that was tried fits {where.name} with {command.spare:.0%} to spare"]
        found["smallest"] = search.smallest(command.topology)
        lines += [f"smallest slice on which the run fits at all: {found['smallest'] or 'none that is known'}"]
    return found, "\n".join(lines)


def _options(config: Config) -> list[str]:
    """Returns the options of ``train`` that make a run the one that was planned."""
    named = {
        "--mesh": config.mesh,
        "--update.micro-batches": config.update.micro_batches,
        "--model.logits-per-chunk": config.model.logits_per_chunk,
    }
    return [word for name, value in named.items() for word in (name, str(value))]


def _described(attempt: Attempt) -> str:
    """Returns an attempt in a line."""
    verdict = "fits" if attempt.fits else "does not fit"
    return (
        f"{attempt.topology} --mesh {attempt.mesh}, {attempt.prompts} prompts in {attempt.micro_batches} "
        f"micro-batches: {attempt.step} needs {attempt.peak / GIGA:.2f} GB: {verdict}"
    )
