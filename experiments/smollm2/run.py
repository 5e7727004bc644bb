"""SmolLM2-135M learns sums on two CPU cores: the preset smollm2-135m, from start to end. See README.md."""

import datetime
import json
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import tyro

from grpo_jax.config import Config
from grpo_jax.memory import keep_freed_memory
from grpo_jax.metrics import proportion
from grpo_jax.presets import check_files, preset
from grpo_jax.train import train

HERE = Path(__file__).parent
TINY = HERE.parents[1] / "tests" / "models" / "pretrained" / "fixtures" / "llama"
"""A random model of two layers, for a run of seconds."""


def tiny(config: Config) -> Config:
    """Returns the same run on a model that knows nothing, two steps long."""
    return replace(
        config,
        model=replace(config.model, path=str(TINY)),
        rollout=replace(config.rollout, prompts=2, group_size=2, max_tokens=3),
        evaluation=replace(config.evaluation, examples=4, every=0),
        steps=2,
    )


def share_in_words(share: float, count: int) -> str:
    """Returns a share of right answers with its 95 % interval."""
    right = round(share * count)
    return str(proportion(np.repeat([1.0, 0.0], [right, count - right])))


def main(
    out: Path = Path("runs/smollm2"), resume: bool = False, results: Path = HERE / "results.jsonl", smoke: bool = False
) -> None:
    """Trains the preset and appends what came of it.

    Args:
        out: the run's folder.
        resume: go on with the run in it, from its last checkpoint.
        results: the file that the result is appended to; the curves are copied beside it.
        smoke: two steps of a tiny random model, nothing kept: seconds.
    """
    keep_freed_memory()
    config = preset("smollm2-135m")
    if smoke:
        with tempfile.TemporaryDirectory() as folder:
            train(tiny(config), Path(folder) / "run")
        return
    check_files("smollm2-135m", config)
    load = os.getloadavg()[0]
    summary = train(config, out, resume=resume)
    count = config.evaluation.examples
    row = {
        "date": datetime.date.today().isoformat(),
        "accuracy_before": summary["accuracy_before"],
        "accuracy_after": summary["accuracy_after"],
        "problems": count,
        "steps": summary["steps"],
        "kl": summary["kl"],
        "minutes": round(summary["seconds"] / 60, 1),
        "cores": os.cpu_count(),
        "load_at_start": load,
    }
    for when in ("before", "after"):
        print(f"{when}: {share_in_words(summary[f'accuracy_{when}'], count)} of {count} held-out problems")
    with results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    for name, copy in (("curves.png", "figure.png"), ("samples_before.txt",) * 2, ("samples_after.txt",) * 2):
        shutil.copy(out / name, results.parent / copy)


if __name__ == "__main__":
    tyro.cli(main)
