"""Seconds per training step: grpo_jax and Tunix on the same work, turn by turn. See README.md."""

import datetime
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import tyro

from grpo_jax.config import Config, ModelConfig, RolloutConfig, to_dict
from grpo_jax.presets import preset
from grpo_jax.tasks import character_tokenizer
from grpo_jax.tasks.arithmetic import ALPHABET

HERE = Path(__file__).parent
KEPT_MEMORY = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "2147483647"}
"""What `grpo_jax.memory` does for our side, as glibc reads it from the environment."""


def work_of(config: Config, prompt_tokens: int, steps: int, tunix_cache: int) -> dict[str, Any]:
    """Describes the work to both sides."""
    return {
        "config": to_dict(config),
        "alphabet": ALPHABET,
        "vocabulary": character_tokenizer(ALPHABET).vocabulary_size,
        "prompt_tokens": prompt_tokens,
        "steps": steps,
        "warm_up": 2,
        "tunix_cache": tunix_cache,
    }


def side(command: list[str], work: dict[str, Any], settings: dict[str, str] | None = None) -> dict[str, Any]:
    """Runs one side in a process of its own, with further environment variables; returns what it measured."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **(settings or {})}
    done = subprocess.run(
        [*command, json.dumps(work)], cwd=HERE.parents[1], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main(
    tunix_python: Path | None = None,
    pairs: int = 3,
    steps: int = 6,
    tunix_cache: int = 0,
    tunix_keeps_memory: bool = False,
    results: Path = HERE / "results.jsonl",
    smoke: bool = False,
) -> dict[str, Any]:
    """Times whole training steps of grpo_jax and of Tunix, one process after the other.

    Args:
        tunix_python: the Python of an environment with google-tunix; without it only our side runs.
        pairs: how often each side runs, ours first, in turn.
        steps: timed steps of each run, after two that compile.
        tunix_cache: positions of Tunix's key-value cache; 0: as many as a sequence has, the least it accepts.
        tunix_keeps_memory: give Tunix's process the memory settings that our command line gives itself.
        results: the file that the result is appended to.
        smoke: a tiny model, one pair, nothing appended: seconds.
    """
    config, prompt_tokens = preset("throughput"), 32
    if smoke:
        model = ModelConfig(layers=1, width=16, heads=2, kv_heads=1, head_dim=8, hidden=32)
        config = replace(config, model=model, rollout=RolloutConfig(prompts=2, group_size=2, max_tokens=4))
        pairs, steps, prompt_tokens = 1, 2, 8
    work, load = work_of(config, prompt_tokens, steps, tunix_cache), os.getloadavg()[0]
    if tunix_python is None:
        print("Tunix left out: give --tunix-python, the Python of an environment with google-tunix")
    ours, theirs = [], []
    for pair in range(pairs):
        ours.append(side([sys.executable, "-m", "experiments.throughput.ours"], work))
        print(f"pair {pair + 1}: ours {described(ours[-1])}", flush=True)
        if tunix_python is not None:
            command = [str(tunix_python.absolute()), str(HERE / "theirs.py")]
            theirs.append(side(command, work, KEPT_MEMORY if tunix_keeps_memory else None))
            print(f"pair {pair + 1}: Tunix {described(theirs[-1])}", flush=True)
    result = summary(ours, theirs) | {"cores": os.cpu_count(), "load_at_start": round(load, 2)}
    result |= {"date": datetime.date.today().isoformat(), "steps": steps, "tunix_cache": tunix_cache}
    result["tunix_keeps_memory"] = tunix_keeps_memory
    print("\n".join(f"{name}: {value}" for name, value in result.items()))
    if not smoke:
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
    return result


def described(run: dict[str, Any]) -> str:
    return f"{median(run['seconds']):.3f} s a step ({median(run['processor_seconds']):.2f} s on all cores together)"


def summary(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of each run's median step, ratios pair by pair, and what our step is made of."""
    step = [median(run["seconds"]) for run in ours]
    sampling = [median(run["sampling_seconds"]) for run in ours]
    floor = [run["operations"] / run["operations_per_second"] for run in ours]
    result = {
        "ours_seconds": round(median(step), 4),
        "ours_sampling_seconds": round(median(sampling), 4),
        "ours_update_seconds": round(median(s - part for s, part in zip(step, sampling, strict=True)), 4),
        "ours_parameters": ours[0]["parameters"],
        "ours_sequences": ours[0]["sequences"],
        "ours_tokens": ours[0]["tokens"],
        "gigaflops_per_second": round(median(run["operations_per_second"] for run in ours) / 1e9, 1),
        "floor_seconds": round(median(floor), 4),
        "ours_share_of_floor": round(median(least / s for least, s in zip(floor, step, strict=True)), 3),
        "jax": ours[0]["jax"],
    }
    if theirs:
        other = [median(run["seconds"]) for run in theirs]
        worked = [[median(run["processor_seconds"]) for run in runs] for runs in (theirs, ours)]
        result |= {
            "tunix_seconds": round(median(other), 4),
            "tunix_parameters": theirs[0]["parameters"],
            "tunix_sequences": theirs[0]["sequences"],
            "tunix_tokens": theirs[0]["tokens"],
            "tunix_version": theirs[0]["tunix"],
            "tunix_jax": theirs[0]["jax"],
            "ratios": [round(b / a, 3) for a, b in zip(step, other, strict=True)],
            "processor_ratios": [round(b / a, 3) for b, a in zip(*worked, strict=True)],
        }
        result["ratio"] = round(median(result["ratios"]), 3)
    return result


if __name__ == "__main__":
    tyro.cli(main)
