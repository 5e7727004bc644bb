"""KL and beta over the updates, of the decoder and of the exact model, and settling times against gains."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.beta_control.measures import BAND
from experiments.beta_control.rules import TARGET
from experiments.beta_control.tables import steered, times_of
from experiments.beta_control.trials import IDLE, WRITTEN
from experiments.small_scale.campaign import Rows
from experiments.small_scale.pictures import with_band
from experiments.small_scale.records import curve
from experiments.small_scale.setting import Setting

PANELS = {
    "schedules": ("beta 0", "constant", "warm-up", "tight then loose"),
    "controllers": (
        "proportional, loose start",
        "proportional, tight start",
        "tight then loose, then proportional",
        "clipped, loose start",
        "integral, loose start",
    ),
    "gain and sign": ("gain 2, as written", "gain 2, library", "backwards, as written"),
    "wind-up": ("wind-up, as written", "wind-up, library"),
    "units": ("target per sequence, KL per token", "target per token, KL per sequence", "both per token"),
}
"""Which trainings are drawn together."""
_RIGHT, _WRONG, _TOKEN = "aimed right", "aimed wrong", "fed per token"
_IDLE = f"no reward for {IDLE} updates"
SHOWN = {
    "controllers": ([(_RIGHT, name) for name in PANELS["controllers"]], 600),
    "gain 2": ([(_WRONG, "gain 2, as written"), (_WRONG, "gain 2, library")], 600),
    "units": (
        [
            (_TOKEN, "target per sequence, KL per token"),
            (_WRONG, "target per token, KL per sequence"),
            (_TOKEN, "both per token"),
        ],
        1500,
    ),
    _IDLE: ([(_IDLE, name) for name in WRITTEN], 4000),
    "wind-up, horizon 1": ([(_WRONG, "wind-up, as written"), (_WRONG, "wind-up, library")], 1500),
}
"""What of the exact model is drawn: trials and rules, and how many updates."""
SMALLEST = 1e-4
"""Between plus and minus this the axis of beta is linear."""


def draw(rows: Rows) -> Figure:
    """Draws the decoder's KL, above, and beta, below, of every rule, with 95 % intervals, or the range, over seeds."""
    first = next(iter(rows.values()))
    figure = Figure(figsize=(20, 8), layout="constrained")
    figure.suptitle(
        f"A small decoder steered to a KL of {TARGET:g} nats per completion, {first['seeds']} seeds. KL: mean over 20 "
        "updates, with 95 % interval, dotted: within 20 % of the target; beta: median and range\n"
        "(gain 2, as written, and beta 0 at times, lie above the picture)"
    )
    panels = figure.subplots(2, len(PANELS), sharex=True, sharey="row")
    for (title, names), (top, bottom) in zip(PANELS.items(), panels.T, strict=True):
        for number, name in enumerate(names):
            row, style = rows[name,], {"color": f"C{number}", "label": name}
            kl, updates = steered(row)
            with_band(top, updates, kl, linewidth=1.2, **style)
            beta = curve(row, "beta")[:, 1:]
            updates = Setting(*row["setting"]).every * (1 + np.arange(beta.shape[1]))
            bottom.plot(updates, np.median(beta, axis=0), linewidth=1.2, **style)
            low, high = np.min(beta, axis=0), np.max(beta, axis=0)
            bottom.fill_between(updates, low, high, alpha=0.12, color=style["color"], linewidth=0)
        _frame(top, bottom, title, "update")
    panels[0, 0].set_ylabel("KL, nats per completion")
    panels[1, 0].set_ylabel("beta")
    panels[0, 0].set_ylim(0, 5.2 * TARGET)
    panels[1, 0].set_ylim(-10, 1e3)
    return figure


def draw_exact(runs: Mapping[str, Mapping[str, Any]], swept: Sequence[Mapping[str, Any]], updates: int) -> Figure:
    """Draws the exact model's KL and beta for one problem, and settling times against the gain.

    Args:
        runs: what `trials` returns, by trial and rule.
        swept: what `sweep` returns.
        updates: of its runs.
    """
    figure = Figure(figsize=(20, 12), layout="constrained")
    figure.suptitle(f"The exact model, steered to {TARGET:g} nats per completion (above: the first problem alone)")
    grid = figure.add_gridspec(2, 1, height_ratios=(1.6, 1))
    above, below = figure.add_subfigure(grid[0]), figure.add_subfigure(grid[1])
    panels = above.subplots(2, len(SHOWN), sharex="col", sharey="row")
    for (title, (names, until)), (top, bottom) in zip(SHOWN.items(), panels.T, strict=True):
        for number, (trial, name) in enumerate(names):
            run, style = runs[trial][name], {"color": f"C{number}", "label": name, "linewidth": 1.2}
            for axes, what in ((top, "kl"), (bottom, "beta")):
                axes.plot(run[what][0, :until], **style)
        _frame(top, bottom, title, "update")
    panels[0, 0].set_ylabel("KL, nats per completion")
    panels[1, 0].set_ylabel("beta")
    panels[0, 0].set_ylim(-0.2, 5.5)
    panels[1, 0].set_ylim(-1e2, 1e2)
    forms = list(dict.fromkeys(row["form"] for row in swept))
    for form, axes in zip(forms, below.subplots(1, len(forms), sharex=True, sharey=True), strict=True):
        for number, speed in enumerate(dict.fromkeys(row["speed"] for row in swept)):
            chosen = [row for row in swept if (row["form"], row["speed"]) == (form, speed)]
            times = np.minimum([times_of(dict(row)) for row in chosen], updates)
            low, middle, high = np.quantile(times, (0.25, 0.5, 0.75), axis=1)
            gains = [row["gain"] for row in chosen]
            axes.plot(gains, middle, "o-", color=f"C{number}", label="at once" if speed > 1e3 else f"speed {speed:g}")
            axes.fill_between(gains, low, high, color=f"C{number}", alpha=0.15, linewidth=0)
        axes.axhline(updates, color="black", linestyle=":", label="not settled")
        axes.set(xscale="log", yscale="log", xlabel="gain: relative change of beta at a KL of 0", title=form)
        axes.grid(alpha=0.3)
    below.axes[0].set_ylabel("settling time in updates, median\nand quartiles over problems")
    below.axes[0].legend()
    return figure


def _frame(top: Any, bottom: Any, title: str, across: str) -> None:
    for level, style in ((1, "--"), (1 - BAND, ":"), (1 + BAND, ":")):
        top.axhline(level * TARGET, color="black", linestyle=style, linewidth=0.8)
    top.set_title(title)
    bottom.set_yscale("symlog", linthresh=SMALLEST)
    bottom.set_xlabel(across)
    top.legend(fontsize="x-small", loc="upper right")
    for axes in (top, bottom):
        axes.grid(alpha=0.3)
