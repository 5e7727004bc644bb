"""Three agents find their ways past each other, against an exact planner, with and without a KL term. See README.md."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from experiments.path_planning.environment import grid_of
from experiments.path_planning.episodes import show
from experiments.path_planning.evaluation import evaluation
from experiments.path_planning.planner import shortest
from experiments.path_planning.report import draw, table, verdicts
from experiments.path_planning.training import SMOKE, Setting, problems, trainer, warm_start
from experiments.small_scale.records import append, recorded
from grpo_jax.types import Params

HERE = Path(__file__).parent
BETAS = (0.0, 0.02)
"""Success per nat of an episode: none, and the upper end of where the article says to start (.005 to .02)."""


def trained(setting: Setting, left: list[tuple[int, float]]) -> Iterator[tuple[dict[str, Any], Params, Params]]:
    """Trains what is left, one run after the other.

    Args:
        setting: of all of them.
        left: seed and beta of each, those of a seed next to each other: they share the warm start.

    Returns:
        For each run a line for results.jsonl, the parameters before and those after.
    """
    grids, held_out = problems(setting)
    read = jax.vmap(lambda tokens: grid_of(tokens, setting.agents))
    began = time.monotonic()
    steps = shortest(read(held_out.tokens), setting.horizon)
    planner = float(np.mean(steps <= setting.horizon))
    print(f"planner: {planner:.4f} of {len(steps)} grids, {time.monotonic() - began:.0f} s", flush=True)
    warm, train, look = warm_start(setting), trainer(setting), evaluation(setting)
    before, started = None, None
    for seed, beta in left:
        began, busy = time.monotonic(), time.process_time()
        warming, training, looking = jax.random.split(jax.random.key(seed), 3)
        if started != seed:
            before, started = warm(grids, warming), seed
        state = train.init(before, beta, training)
        looks, seen = [look(before, before, held_out, steps, looking)], []
        for block in range(setting.updates // setting.every):
            state, found = train.block(state, grids, jax.random.fold_in(training, block))
            seen.append(found)
            looks.append(look(state.params, before, held_out, steps, looking))
        known = {"seed": seed, "beta": beta, "planner": round(planner, 5), "setting": list(setting)}
        row = known | {"update": list(range(0, setting.updates + 1, setting.every))} | _curves(looks) | _curves(seen)
        row |= {"seconds": round(time.monotonic() - began, 1)}
        row |= {"processor_seconds": round(time.process_time() - busy, 1)}
        yield row, before, state.params


def _curves(looks: list[dict[str, Any]]) -> dict[str, list[float]]:
    return {name: [float(f"{float(each[name]):.5g}") for each in looks] for name in looks[0]}


def main(seeds: int = 5, out: Path = HERE, smoke: bool = False) -> list[dict[str, Any]]:
    """Trains every seed with every beta, prints what came of it, writes results.jsonl, figure.png and agents.gif.

    Args:
        seeds: each with a warm start of its own.
        out: the folder that is written to; runs that are recorded there are not repeated.
        smoke: two tiny runs, nothing written: seconds.
    """
    setting, file = SMOKE if smoke else Setting(), out / "results.jsonl"
    rows = {} if smoke else recorded(file, ("seed", "beta"))
    if any(row["setting"] != list(setting) for row in rows.values()):
        raise ValueError(f"{file} holds runs of another setting; move it away, or choose that one")
    wanted = [(seed, beta) for seed in range(2 if smoke else seeds) for beta in (BETAS[:1] if smoke else BETAS)]
    left = [run for run in wanted if run not in rows]
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {len(left)} runs left; {setting}", flush=True)
    for row, before, after in trained(setting, left) if left else ():
        run = row["seed"], row["beta"]
        rows[run] = row
        print(
            f"seed {run[0]}, beta {run[1]:g}: success {row['success'][0]:.3f} to {row['success'][-1]:.3f}", flush=True
        )
        if run == (0, 0.0):
            show(setting, before, after, None if smoke else out / "agents.gif")
        if not smoke:
            append(file, row)
    rows = {run: rows[run] for run in wanted}
    print(table(rows), verdicts(rows), sep="\n\n")
    if not smoke:
        draw(rows).savefig(out / "figure.png", dpi=110)
    return list(rows.values())


if __name__ == "__main__":
    tyro.cli(main)
