"""Every controller and schedule of beta towards one KL, and how to get it wrong. See README.md."""

import json
from pathlib import Path
from typing import Any

import tyro

from experiments.beta_control import picture, tables
from experiments.beta_control.cases import SETTING, cases
from experiments.beta_control.exact import worlds
from experiments.beta_control.trials import sweep, trials
from experiments.small_scale.campaign import campaign

HERE = Path(__file__).parent
FILES = ("exact.jsonl", "sweep.jsonl")


def read(file: Path) -> list[dict[str, Any]]:
    """Returns the lines of a results file."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def main(
    seeds: int = 6, problems: int = 20, updates: int = 3000, out: Path = HERE, smoke: bool = False
) -> list[dict[str, Any]]:
    """Steers the exact model and the decoder with every rule, prints what came of it, and writes results and pictures.

    Args:
        seeds: of each training of the decoder, each with a warm start of its own.
        problems: of the exact model.
        updates: of each of its runs.
        out: the folder that is written to; trainings that are recorded there are not repeated.
        smoke: a few updates of two problems of the exact model, nothing written: seconds.
    """
    if smoke:
        tried, _ = trials(worlds(2), 20)
        print(tables.exactly(tried))
        return tried
    given = worlds(problems)
    (tried, runs), swept = trials(given, updates), sweep(given, updates)
    for name, found in zip(FILES, (tried, swept), strict=True):
        (out / name).write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")
    print(tables.exactly(tried))
    print(tables.swept(swept))
    picture.draw_exact(runs, swept, updates).savefig(out / "exact.png", dpi=110)
    rows = campaign(cases(), SETTING, seeds, out / "results.jsonl")
    print(tables.trained(rows))
    print(tables.differences(rows))
    picture.draw(rows).savefig(out / "figure.png", dpi=110)
    return list(rows.values())


if __name__ == "__main__":
    tyro.cli(main)
