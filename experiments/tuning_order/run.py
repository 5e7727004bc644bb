"""Learning rate, then beta, then group size: is that order any better than another one? See README.md."""

from pathlib import Path
from typing import Any

import tyro

from experiments.small_scale.setting import SMOKE
from experiments.tuning_order.grid import SETTING, Grid, trained
from experiments.tuning_order.orders import points, report
from experiments.tuning_order.picture import draw

HERE = Path(__file__).parent


def main(seeds: int = 6, out: Path = HERE, smoke: bool = False) -> list[dict[str, Any]]:
    """Trains every point of the grid, prints what each order of tuning reaches, writes results.jsonl and figure.png.

    Args:
        seeds: of each run, each with a warm start of its own.
        out: the folder that is written to; runs that are recorded there are not repeated.
        smoke: two tiny runs, nothing written: seconds.
    """
    if smoke:
        grid = Grid((1e-3, 3e-3), (0.3,), (4,), 8)
        rows = trained(grid, SMOKE, 4, None)
        print(report(rows, grid))
        return list(rows.values())
    rows = trained(Grid(), SETTING, seeds, out / "results.jsonl")
    print(points(rows, Grid()))
    print(report(rows, Grid()))
    draw(rows, Grid()).savefig(out / "figure.png", dpi=110)
    return list(rows.values())


if __name__ == "__main__":
    tyro.cli(main)
