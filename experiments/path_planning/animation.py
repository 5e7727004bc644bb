"""Agents at work as a GIF: before training, after it, and the exact planner, beside each other on the same grids."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:purple", "tab:brown")


def animate(
    file: Path, walls: Bool[np.ndarray, "B S S"], goals: Int[np.ndarray, "B N"], rows: Sequence[tuple[str, Sequence]]
) -> None:
    """Writes a GIF, a row of boards for each way of acting.

    Args:
        file: what is written.
        walls: of each board.
        goals: cells, of each board.
        rows: a name, and for each board the cells that its agents pass ``[K, N]``, as many moments as it took, with
            whether they got home.
    """
    last = max(len(passed) for _, episodes in rows for passed, _ in episodes) - 1
    frames = [_frame(walls, goals, rows, moment, last) for moment in range(last + 1)]
    durations = [900] + [350] * (last - 1) + [2500]
    frames[0].save(file, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True)


def _frame(walls, goals, rows, moment: int, last: int) -> Image.Image:
    figure = Figure(figsize=(2.1 * len(walls), 2.35 * len(rows) + 0.5), layout="constrained")
    figure.suptitle(f"Three agents (discs) on the way to their goals (squares): step {moment} of {last}", fontsize=11)
    panels = figure.subplots(len(rows), len(walls), squeeze=False)
    for (name, episodes), line in zip(rows, panels, strict=True):
        for board, ((passed, won), axes) in enumerate(zip(episodes, line, strict=True)):
            over = moment >= len(passed) - 1
            outcome = (f"home after {len(passed) - 1}" if won else f"failed after {len(passed) - 1}") if over else ""
            _board(axes, walls[board], goals[board], passed[min(moment, len(passed) - 1)], over and not won)
            axes.set_title(outcome, fontsize=9, color="tab:green" if won else "tab:red")
        line[0].set_ylabel(name, fontsize=10)
    held = io.BytesIO()
    figure.savefig(held, dpi=75)
    return Image.open(held).convert("RGB").quantize(64, dither=Image.Dither.NONE)


def _board(axes: Axes, walls: np.ndarray, goals: np.ndarray, cells: np.ndarray, failed: bool) -> None:
    side = len(walls)
    axes.imshow(walls, cmap="Greys", vmin=0, vmax=1.6)
    axes.set_xticks(np.arange(side + 1) - 0.5, [])
    axes.set_yticks(np.arange(side + 1) - 0.5, [])
    axes.tick_params(length=0)
    axes.grid(color="lightgrey", linewidth=0.5)
    for colour, goal, cell in zip(COLOURS, goals, cells, strict=False):
        axes.plot(goal % side, goal // side, "s", markersize=12, fillstyle="none", markeredgewidth=2, color=colour)
        axes.plot(cell % side, cell // side, "o", markersize=9, color=colour)
    for spine in axes.spines.values():
        spine.set_color("tab:red" if failed else "black")
        spine.set_linewidth(2.5 if failed else 0.8)
