"""The picture of the packing experiment: seconds and memory, padded against packed, and by queries at a time."""

from pathlib import Path
from statistics import median
from typing import Any

import matplotlib.pyplot as plt


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draws the newest measurement of each kind."""
    bars = {(row["lengths"], row["layout"]): row for row in rows if row["part"] == "packing"}
    chunks = {row["queries"]: row for row in rows if row["part"] == "attention"}
    figure, (seconds, memory, long) = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    kinds = {"geometric": "geometric,\nmean budget / 4", "full": "all as long\nas the budget"}
    for number, layout in enumerate(("padded", "packed")):
        own = [bars[kind, layout] for kind in kinds if (kind, layout) in bars]
        places = [place + (number - 0.5) * 0.36 for place in range(len(own))]
        middle = [median(row["seconds"]) for row in own]
        low = [m - min(row["seconds"]) for m, row in zip(middle, own, strict=True)]
        high = [max(row["seconds"]) - m for m, row in zip(middle, own, strict=True)]
        seconds.bar(places, middle, 0.34, yerr=(low, high), capsize=4, label=layout, color=f"C{number}")
        memory.bar(places, [row["megabytes"] for row in own], 0.34, label=layout, color=f"C{number}")
    seconds.set(title="Scores and gradient (median, least to most)", ylabel="seconds")
    memory.set(title="Temporaries of the program", ylabel="MB")
    for axes in (seconds, memory):
        axes.set_xticks(range(len(kinds)), kinds.values())
        axes.set_xlabel("lengths of the completions")
        axes.set_ylim(0, 1.25 * axes.get_ylim()[1])
        axes.legend(ncols=2, loc="upper center")
    if chunks:
        queries = sorted(chunks)
        of_time = [median(chunks[each]["seconds"]) / median(chunks[queries[-1]]["seconds"]) for each in queries]
        of_memory = [chunks[each]["megabytes"] / chunks[queries[-1]]["megabytes"] for each in queries]
        long.plot(queries, of_time, "o-", label="seconds", color="C2")
        long.plot(queries, of_memory, "s--", label="temporaries", color="C3")
        long.set_xscale("log", base=2)
        long.set_xticks(queries, [str(each) for each in queries])
        long.set_ylim(0)
        long.legend()
    long.set(title="1,024 tokens, a few queries at a time", xlabel="queries at a time", ylabel="share of all at once")
    figure.suptitle("Packed against padded completions: 3.8M parameters, float32, 2 CPU cores")
    figure.savefig(path, dpi=110)
    plt.close(figure)
