"""The two pictures: on-policy beside the article's figure, and off-policy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.minimal_model.configurations import ARTICLE, OURS
from experiments.minimal_model.exact import LENGTHS

Rows = Sequence[Mapping[str, Any]]
MARKERS = "osD^v<>PX*hpd"


def draw_on_policy(rows: Rows, published: Mapping[tuple[int, str], float], rounds: int, samples: int) -> Figure:
    """Draws squared bias and variance against length: the article's configurations above, ours below.

    Args:
        rows: of all configurations.
        published: the article's points by length and column, log10.
        rounds: of samples, whose mean the sampled bias is of.
        samples: in a round.
    """
    figure = Figure(figsize=(12, 9.5), layout="constrained")
    figure.suptitle(
        "Gradient of KL(A || B) in the two-parameter model: lines exact, crosses sampled "
        f"({rounds} rounds of {samples:,}), rings published"
    )
    (above_left, above_right), (below_left, below_right) = figure.subplots(2, 2)
    for number, each in enumerate(ARTICLE):
        mine = of(rows, each.name)
        for axes, ours, theirs in ((above_left, "bias2", "bias2_"), (above_right, "variance", "var_")):
            line(axes, mine, ours, rounds, each.name, f"C{number}")
            points = [(T, value) for (T, name), value in published.items() if name == theirs + each.published]
            axes.plot(*zip(*points, strict=True), "o", markerfacecolor="none", color=f"C{number}", markersize=9)
    plain = {row["length"]: row["variance"] for row in of(rows, "k1 reward")}
    for number, each in enumerate(OURS):
        colour, mine = f"C{number % 10}", of(rows, each.name)
        line(below_left, mine, "bias2", rounds, each.name, colour)
        names = ("variance", "sampled_variance")
        shares = [{**row, **{name: row[name] / plain[row["length"]] for name in names}} for row in mine]
        line(below_right, shares, "variance", rounds, each.name, colour)
    floor = "bias\u00b2 + variance / rounds, the floor that samples can show"
    below_right.axhline(0, color="grey", linewidth=0.8)
    label(above_left, "The article's configurations: squared bias", "log10 squared bias (nats\u00b2)", floor)
    label(
        above_right, "The article's configurations: variance", f"log10 variance of a mean of {samples:,} (nats\u00b2)"
    )
    label(below_left, "Ours: squared bias (exactly 0 but for full loss)", "log10 squared bias (nats\u00b2)", floor)
    label(below_right, "Ours: variance relative to k1 in the reward (colours as on the left)", "log10 ratio")
    for axes in (above_left, above_right, below_left):
        axes.legend(fontsize="small")
    return figure


def of(rows: Rows, name: str) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["configuration"] == name]


def line(axes: Axes, rows: Rows, column: str, rounds: int, name: str, colour: str) -> None:
    """Draws the exact line and the sampled crosses of one configuration."""
    lengths = [row["length"] for row in rows]
    exact = np.array([row[column] for row in rows])
    if column == "bias2":
        exact = exact + np.array([row["variance"] for row in rows]) / rounds
    axes.plot(lengths, np.log10(exact), color=colour, label=name)
    axes.plot(lengths, np.log10([row[f"sampled_{column}"] for row in rows]), "x", color=colour)


def label(axes: Axes, title: str, unit: str, note: str = "") -> None:
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel("tokens of a completion" + (f"\n(lines: {note})" if note else ""))
    axes.set_ylabel(unit)
    axes.set_xticks(LENGTHS)
    axes.grid(alpha=0.3)


def draw_off_policy(by_length: Rows, by_share: Rows, samples: int) -> Figure:
    """Draws relative bias and variance for samples of another policy.

    Args:
        by_length: rows at one sampler, by length.
        by_share: rows at one length, by the sampler's distance.
        samples: completions whose mean gradient the variance is of.
    """
    figure = Figure(figsize=(13, 9), layout="constrained")
    figure.suptitle("Gradient of KL(A || B) from completions of another policy, exactly, in the two-parameter model")
    axes = figure.subplots(2, 2)
    names = list(dict.fromkeys(row["configuration"] for row in by_length))
    panels = (
        (by_length, "length", "tokens of a completion", "sampler halfway from A to B"),
        (by_share, "distance", "KL(sampler || A), nats per completion", f"{by_share[0]['length']} tokens"),
    )
    for column, (rows, key, unit, where) in enumerate(panels):
        for number, name in enumerate(names):
            mine = of(rows, name)
            style = {"color": f"C{number % 10}", "marker": MARKERS[number], "markersize": 4}
            style |= {"linestyle": "--" if number > 8 else "-", "label": name if column == 0 else None}
            places = [row[key] for row in mine]
            axes[0, column].plot(places, [max(row["relative_bias"], 1e-17) for row in mine], **style)
            axes[1, column].plot(places, [row["variance"] for row in mine], **{**style, "label": None})
        axes[0, column].set_title(f"Bias: {where}", fontsize="medium")
        axes[1, column].set_title(f"Variance: {where}", fontsize="medium")
        axes[0, column].set_ylabel("|mean - gradient| / |gradient|")
        axes[1, column].set_ylabel(f"variance of a mean of {samples:,} (nats\u00b2)")
        for each in axes[:, column]:
            each.set_yscale("log")
            each.set_xlabel(unit)
            each.grid(alpha=0.3)
    for each in axes[:, 0]:
        each.set_xticks(LENGTHS)
    figure.legend(loc="outside lower center", ncols=4, fontsize="small")
    return figure
