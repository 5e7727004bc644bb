"""A frozen reference, one that is refreshed, one that follows: drift against reward, clean and noisy. See README.md."""

from pathlib import Path
from typing import Any

import numpy as np
import tyro

from experiments.reference_refresh.cases import NOISES, REFERENCES, SETTING, cases
from experiments.reference_refresh.picture import draw
from experiments.small_scale.campaign import Rows, campaign
from experiments.small_scale.records import last
from experiments.small_scale.seeds import in_words
from experiments.small_scale.setting import SMOKE
from experiments.small_scale.verdict import MEASURES, OUTSIDE, table

HERE = Path(__file__).parent


def differences(rows: Rows) -> str:
    """Returns lines about each reference beside the frozen one, and about noise beside none, paired by seed."""
    lines = []
    for noise in NOISES:
        for name in REFERENCES:
            if name != "frozen":
                changed = _changes(rows[name, noise], rows["frozen", noise])
                lines.append(f"noise {noise:g}, {name} against frozen: {changed}")
    for name in REFERENCES:
        lines.append(f"{name}, noise {NOISES[1]:g} against none: {_changes(rows[name, NOISES[1]], rows[name, 0.0])}")
    return "\n".join(lines)


def _changes(row: dict[str, Any], other: dict[str, Any]) -> str:
    def of(each: dict[str, Any]) -> dict[str, np.ndarray]:
        outside = np.mean([last(each, kind) for kind in OUTSIDE], axis=0)
        return {"accuracy": last(each, "accuracy_sums"), "out of domain": outside, "KL": last(each, "reverse_kl")}

    ours, theirs, said = of(row), of(other), []
    for measure, values in ours.items():
        said.append(f"{measure} {in_words(values - theirs[measure])}")
    return "; ".join(said)


def main(seeds: int = 6, out: Path = HERE, smoke: bool = False) -> list[dict[str, Any]]:
    """Trains with every reference and both rewards, prints what came of it, and writes results.jsonl and figure.png.

    Args:
        seeds: of each run, each with a warm start of its own.
        out: the folder that is written to; runs that are recorded there are not repeated.
        smoke: one tiny run, nothing written: seconds.
    """
    if smoke:
        rows = campaign(cases()[-1:], SMOKE, 2, None)
        print(table(rows, ("reference", "noise")))
        return list(rows.values())
    rows = campaign(cases(), SETTING, seeds, out / "results.jsonl")
    print(table(rows, ("reference", "noise"), MEASURES))
    print(differences(rows))
    draw(rows).savefig(out / "figure.png", dpi=110)
    return list(rows.values())


if __name__ == "__main__":
    tyro.cli(main)
