"""On-policy RLOO with the KL term in different places, over beta: what is learnt, kept and lost. See README.md."""

from pathlib import Path
from typing import Any

import tyro

from experiments.kl_placement.grid import NONE, command, config_of, objective_of, runs
from experiments.kl_placement.picture import draw
from experiments.small_scale.campaign import Case, campaign
from experiments.small_scale.setting import SMOKE, Setting
from experiments.small_scale.verdict import compared, table
from grpo_jax.presets import check_files
from grpo_jax.train import train

HERE = Path(__file__).parent
SETTING = Setting()
LABELS = ("configuration", "beta")


def cases() -> list[Case]:
    """Returns every configuration with every beta."""
    return [Case({"configuration": name, "beta": beta}, objective_of(name), beta) for name, beta in runs()]


def pairs() -> list[tuple[tuple, tuple]]:
    """Returns every run with a KL term beside the default, k1 to go, at the same beta."""
    return [((name, beta), ("k1 to go", beta)) for name, beta in runs() if name not in (NONE, "k1 to go")]


def grid_of(name: str, begin: bool) -> list[str]:
    """Prints the same grid as commands on a preset's model and data; trains them one after the other if asked to."""
    commands = []
    for term, beta in runs():
        folder = f"runs/kl_placement/{name}/{term.replace(' ', '_')}-{beta:g}"
        config = config_of(term, beta, name)
        commands.append(command(term, beta, name, folder))
        print(commands[-1], flush=True)
        if begin and not (Path(folder) / "summary.json").exists():
            check_files(name, config)
            train(config, folder, resume=Path(folder).exists())
    return commands


def main(
    preset: str | None = None, begin: bool = False, seeds: int = 6, out: Path = HERE, smoke: bool = False
) -> list[Any]:
    """Trains every configuration at every beta, prints what came of it, and writes results.jsonl and figure.png.

    Args:
        preset: print the grid for this preset's model and data instead, as commands.
        begin: with a preset: train them here, one after the other; an interrupted grid goes on where it stopped.
        seeds: of the small runs, each with a warm start of its own.
        out: the folder that is written to; runs that are recorded there are not repeated.
        smoke: one tiny run, nothing written: seconds.
    """
    if preset is not None:
        return grid_of(preset, begin)
    if smoke:
        rows = campaign(cases()[-1:], SMOKE, 2, None)
        print(table(rows, LABELS))
        return list(rows.values())
    rows = campaign(cases(), SETTING, seeds, out / "results.jsonl")
    print(table(rows, LABELS))
    print(compared(rows, pairs()))
    draw(rows).savefig(out / "figure.png", dpi=110)
    return list(rows.values())


if __name__ == "__main__":
    tyro.cli(main)
