"""The picture of the results: how many times as fast as lock step."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np


def draw(results: Path, path: Path) -> None:
    """Draws the newest result of each work and way, with quartiles over calls."""
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    newest = {(row["work"], row["way"]): row for row in rows}
    works, ways = (list(dict.fromkeys(key[index] for key in newest)) for index in (0, 1))
    ways.remove("lock step")
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    width = 0.8 / len(ways)
    for index, way in enumerate(ways):
        low, middle, high = np.array([newest[work, way]["faster"] for work in works]).T
        at = np.arange(len(works)) + (index - (len(ways) - 1) / 2) * width
        bars = axes.bar(at, middle, 0.9 * width, yerr=[middle - low, high - middle], capsize=4, label=way)
        axes.bar_label(bars, fmt="%.2f", padding=3)
    labels = []
    for work in works:
        row = newest[work, "lock step"]
        labels.append(
            f"{work}\n{row['rows']} rows, budget {row['budget']}\n"
            f"mean length {row['mean_length']:g}, longest {row['longest']}\n"
            f"lock step: {row['tokens_per_second']} tokens/s"
        )
    axes.set_xticks(range(len(works)), labels)
    axes.axhline(1, color="grey", linewidth=1, zorder=0)
    axes.set_ylabel("speed relative to lock step\n(same completions)")
    axes.set_title(f"Decoding on {row['cores']} CPU cores, 3.8M parameters: median and quartiles over calls")
    axes.set_ylim(0, 1.15 * axes.get_ylim()[1])
    axes.legend(loc="upper left")
    figure.savefig(path, dpi=150)
    plt.close(figure)
