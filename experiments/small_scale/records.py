"""Results as lines of JSON, so that an interrupted experiment goes on where it stopped; and the shared warm start."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.small_scale.imitation import warm_started
from experiments.small_scale.setting import Setting, policy_of
from grpo_jax.types import Params

CACHE = Path("runs") / "small_scale"
"""Warm starts are kept here, in the working directory, for the next experiment with the same setting."""


def start(setting: Setting, seeds: int, cache: Path | None = CACHE) -> Params:
    """Returns the warm-started parameters of every seed ``[S]``, from the cache where they are there.

    Args:
        setting: see there.
        seeds: how many.
        cache: the folder to keep them in; None: none.
    """
    if cache is None:
        return warm_started(setting, seeds)
    shape = (setting.layers, setting.width, setting.heads)
    taught = (setting.imitated, setting.demonstrations, setting.slips, setting.imitation_rate)
    name = "-".join(f"{each:g}" for each in (*shape, *taught, seeds))
    return kept(cache / f"{name}.npz", setting, lambda: warm_started(setting, seeds))


def kept(file: Path, setting: Setting, make: Callable[[], Params]) -> Params:
    """Returns the parameters of every seed ``[S]`` that a file holds; where there is none they are made and kept."""
    tree = jax.tree.structure(jax.eval_shape(lambda: policy_of(setting).init(key=jax.random.key(0))))
    if not file.exists():
        print(f"{file.stem}, every seed: minutes, once", flush=True)
        params = make()
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial.npz")
        np.savez(partial, *map(np.asarray, jax.tree.leaves(params)))
        partial.replace(file)
    with np.load(file) as kept:
        return jax.tree.unflatten(tree, [jnp.asarray(kept[f"arr_{each}"]) for each in range(len(kept.files))])


def recorded(file: Path, names: Sequence[str]) -> dict[tuple, dict[str, Any]]:
    """Returns the finished rows of a results file by the values of some of their fields."""
    if not file.exists():
        return {}
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {tuple(row[name] for name in names): row for row in rows}


def row_of(labels: Mapping[str, Any], curves: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns a result: what was run, and every curve ``[S, evaluations]`` rounded to five digits; NaN becomes None."""
    return {**labels, **{name: [[_rounded(x) for x in seed] for seed in curve] for name, curve in curves.items()}}


def append(file: Path, row: Mapping[str, Any]) -> None:
    """Adds a line to a results file."""
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(row) + "\n")


def curve(row: Mapping[str, Any], name: str) -> np.ndarray:
    """Returns a curve of a result ``[S, evaluations]``, NaN where there was nothing."""
    return np.array(row[name], float)


def last(row: Mapping[str, Any], name: str) -> np.ndarray:
    """Returns each seed's value at the last evaluation ``[S]``."""
    return curve(row, name)[:, -1]


def _rounded(value: float) -> float | None:
    return float(f"{value:.5g}") if np.isfinite(value) else None
