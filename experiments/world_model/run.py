"""A policy trained in a model of its world, with a penalty on what the model gets wrong. See README.md."""

import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from experiments.world_model.report import draw, table, verdicts
from experiments.world_model.training import PENALTIES, SMOKE, Setting, costs, looked, trainer
from experiments.world_model.world import best, learned

HERE = Path(__file__).parent
STRENGTHS = (0.1, 0.3, 1.0, 3.0)
"""Gain per nat."""


def runs(setting: Setting, seeds: int, cases: list[tuple[str, float]]) -> list[dict[str, Any]]:
    """Trains every seed in every case; seed s has its own data, and the same ones in every case."""
    keys = [jax.random.split(jax.random.key(seed)) for seed in range(seeds)]
    models = [jax.jit(learned, static_argnums=0)(setting.episodes, key=key[0]) for key in keys]
    known = jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)
    train = jax.jit(jax.vmap(trainer(setting), (0, 0, None, 0)))
    look, rows = jax.jit(jax.vmap(looked)), []
    for penalty, strength in cases:
        spent = strength * jax.vmap(lambda each, penalty=penalty: costs(penalty, each))(known)
        beta = jnp.float32(strength if penalty == "policy to reference" else 0)
        logits = train(known.dynamics, spent, beta, jnp.stack([key[1] for key in keys]))
        found = {name: np.asarray(values) for name, values in look(logits, known).items()}
        rounded = {name: [float(f"{each:.5g}") for each in values] for name, values in found.items() if name != "moved"}
        moved = [[float(f"{each:.4g}") for each in start] for start in found["moved"].mean(axis=0)]
        rows.append({"penalty": penalty, "strength": strength, "seeds": seeds, **rounded, "moved": moved})
        print(f"{penalty} {strength:g}: {np.mean(found['true_return']):.3f}", flush=True)
    return rows


def main(seeds: int = 20, out: Path = HERE, smoke: bool = False) -> list[dict[str, Any]]:
    """Trains without a penalty and with each at every strength, prints what came of it, writes results and picture.

    Args:
        seeds: each with data of its own, at least 2.
        out: the folder that results.jsonl and figure.png are written to.
        smoke: three tiny runs, nothing written: seconds.
    """
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {seeds} seeds", flush=True)
    strengths = STRENGTHS[-1:] if smoke else STRENGTHS
    cases = [(penalty, strength) for penalty in PENALTIES for strength in strengths]
    rows = runs(SMOKE if smoke else Setting(), 2 if smoke else seeds, [("none", 0.0), *cases])
    print(table(rows), verdicts(rows), f"the best policy in the true world: {best():.3f}", sep="\n\n")
    if not smoke:
        (out / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        draw(rows).savefig(out / "figure.png", dpi=110)
    return rows


if __name__ == "__main__":
    tyro.cli(main)
