"""Three rewards with one KL term that they share: how they are put together, and what each then gets. See README.md."""

from pathlib import Path
from typing import Any

import tyro

from experiments.many_rewards.cases import BETAS, EACH, SETTING, SUM, WHOLE, cases
from experiments.many_rewards.picture import draw
from experiments.many_rewards.rewards import on_held_out
from experiments.small_scale.campaign import campaign
from experiments.small_scale.records import last
from experiments.small_scale.setting import SMOKE
from experiments.small_scale.tables import Page, table_of

HERE = Path(__file__).parent
LABELS = ("way", "beta")
COLUMNS = {
    "right": lambda row: last(row, "accuracy_sums"),
    "form": lambda row: last(row, "reward_form"),
    "brevity": lambda row: last(row, "reward_brevity"),
    "KL": lambda row: last(row, "reverse_kl"),
    "entropy": lambda row: last(row, "entropy"),
}
"""Each reward on held-out problems, and KL(pi||p) and entropy in nats per completion."""


def pairs() -> list[tuple[tuple, tuple]]:
    """Returns which case is compared with which."""
    found = [((way, beta), (SUM, beta)) for way in (WHOLE, EACH) for beta in BETAS]
    return found + [((way, beta), (way, 0.0)) for way in (SUM, WHOLE, EACH) for beta in BETAS[1:]]


PAGE = Page(LABELS, COLUMNS, tuple(COLUMNS), tuple(COLUMNS), pairs())


def main(seeds: int = 6, out: Path = HERE, smoke: bool = False) -> list[dict[str, Any]]:
    """Trains on three rewards in every way, prints what came of it, and writes results.jsonl and figure.png.

    Args:
        seeds: of each run, each with a warm start of its own.
        out: the folder that is written to; runs that are recorded there are not repeated.
        smoke: one tiny run, nothing written: seconds.
    """
    if smoke:
        rows = campaign(cases()[-1:], SMOKE, 2, None, on_held_out)
        print(table_of(rows, LABELS, COLUMNS))
        return list(rows.values())
    rows = campaign(cases(), SETTING, seeds, out / "results.jsonl", on_held_out)
    print(*PAGE.parts(rows), sep="\n")
    draw(rows).savefig(out / "figure.png", dpi=110)
    return list(rows.values())


if __name__ == "__main__":
    tyro.cli(main)
