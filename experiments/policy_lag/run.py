"""Training from completions of an older policy: KL terms and their corrections over the lag. See README.md."""

from pathlib import Path
from typing import Any

import tyro
from matplotlib.figure import Figure

from experiments.policy_lag.cases import BETA, CONFIGURATIONS, LAGS, cases
from experiments.small_scale.campaign import Rows, campaign
from experiments.small_scale.pictures import sheet, with_bars
from experiments.small_scale.setting import SMOKE, Setting
from experiments.small_scale.verdict import MEASURES, compared, ends, table

HERE = Path(__file__).parent
LABELS = ("configuration", "lag")
SHOWN = ("accuracy_sums", "accuracy_operators", "reverse_kl", "gradient_norm", "accuracy - beta KL", "collapsed")


def pairs() -> list[tuple[tuple, tuple]]:
    """Returns every run that lags beside the same configuration on-policy."""
    return [((name, lag), (name, 0)) for name in CONFIGURATIONS for lag in LAGS if lag]


def draw(rows: Rows) -> Figure:
    """Draws measures at the end of training against the lag, with 95 % intervals."""
    title = f"RLOO at beta {BETA:g} from completions of an older policy: the end of training"
    figure = sheet(rows, title, (14, 8), " (Student's; of the collapse rate Clopper and Pearson's)")
    panels, of = figure.subplots(2, 3), ends(MEASURES)
    for axes, measure in zip(panels.flat, SHOWN, strict=True):
        for number, name in enumerate(CONFIGURATIONS):
            found = [of[measure](rows[name, lag]) for lag in LAGS]
            places = [place + 0.06 * (number - len(CONFIGURATIONS) / 2) for place in range(len(LAGS))]
            with_bars(axes, places, found, label=name)
        axes.set_title(MEASURES.get(measure, "share of seeds that collapsed" if measure == "collapsed" else measure))
        axes.set_xticks(range(len(LAGS)), [f"{lag}" for lag in LAGS])
        axes.set_xlabel("lag of the sampling policy (updates)")
        axes.grid(alpha=0.3)
        if measure in ("reverse_kl", "gradient_norm"):
            axes.set_yscale("log")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def main(seeds: int = 6, out: Path = HERE, smoke: bool = False) -> list[dict[str, Any]]:
    """Trains every configuration at every lag, prints what came of it, and writes results.jsonl and figure.png.

    Args:
        seeds: of each run, each with a warm start of its own.
        out: the folder that is written to; runs that are recorded there are not repeated.
        smoke: one tiny run, nothing written: seconds.
    """
    if smoke:
        rows = campaign(cases()[-1:], SMOKE, 2, None)
        print(table(rows, LABELS))
        return list(rows.values())
    rows = campaign(cases(), Setting(), seeds, out / "results.jsonl")
    print(table(rows, LABELS))
    print(compared(rows, pairs()))
    draw(rows).savefig(out / "figure.png", dpi=110)
    return list(rows.values())


if __name__ == "__main__":
    tyro.cli(main)
