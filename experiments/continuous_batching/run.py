"""Decoding speed in lock step, in a batch that shrinks and in slots that are filled again: `--help` says how."""

import datetime
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from experiments.continuous_batching.figure import draw
from experiments.continuous_batching.lengths import END, with_lengths
from grpo_jax.memory import keep_freed_memory
from grpo_jax.models import DecoderConfig, decoder
from grpo_jax.rollouts import categorical, sampler
from grpo_jax.types import Prompts

HERE = Path(__file__).parent
MODEL = DecoderConfig(vocabulary_size=16, layers=4, width=256, heads=8, kv_heads=2, head_dim=32, hidden=1024)
SMALL = DecoderConfig(vocabulary_size=16, layers=1, width=16, heads=2, kv_heads=1, head_dim=8, hidden=16)


class Work(NamedTuple):
    """How many completions, how long at most, and how their lengths are distributed (see ``with_lengths``)."""

    groups: int
    members: int
    budget: int
    mean: float
    share: float


WORK = {
    "none ends": Work(8, 8, 64, math.inf, 0.0),
    "geometric": Work(16, 8, 256, 32.0, 0.0),
    "stragglers": Work(8, 8, 256, 16.0, 1 / 32),
}
WAYS: dict[str, Callable[[int], Any]] = {
    "lock step": lambda rows: (rows,),
    "shrinking batch": lambda rows: None,
    "slots for a quarter": lambda rows: (rows // 4,),
    "slots, then shrinking": lambda rows: rows // 4,
}


def main(
    only: str | None = None, repeats: int = 7, results: Path = HERE / "results.jsonl", smoke: bool = False
) -> list[dict[str, Any]]:
    """Measures tokens per second of the sampler, the ways in turn, on the same completions.

    Args:
        only: one kind of work: none ends, geometric or stragglers. None: all.
        repeats: timed calls of each way, each with other random numbers, after one that is not counted.
        results: the file that the results are appended to, and the figure drawn from.
        smoke: a tiny model and budget, stragglers alone, nothing written: seconds.
    """
    keep_freed_memory()  # as the command line does
    if only is not None and only not in WORK:
        raise ValueError(f"--only is {only!r}; give one of {', '.join(WORK)}")
    chosen, found = "stragglers" if smoke else only, []
    for name, work in WORK.items() if chosen is None else [(chosen, WORK[chosen])]:
        work = work._replace(groups=4, members=2, budget=8) if smoke else work
        found += measured(name, work, SMALL if smoke else MODEL, 1 if smoke else repeats)
    if not smoke:
        with results.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in found)
        draw(results, HERE / "figure.png")
    return found


def measured(name: str, work: Work, model: DecoderConfig, repeats: int) -> list[dict[str, Any]]:
    """Times every way on one kind of work; fails where two of them sample different tokens."""
    policy = with_lengths(decoder(model), work.mean, work.share)
    params = jax.jit(lambda key: policy.init(key=key))(jax.random.key(0))
    tokens = np.random.default_rng(0).integers(0, model.vocabulary_size, (work.groups, 32))
    prompts = Prompts(jnp.asarray(tokens, jnp.int32), jnp.ones(tokens.shape, bool))
    compiled, compile_seconds = {}, {}
    for way, slots in WAYS.items():
        chosen = slots(work.groups * work.members)
        generate = jax.jit(sampler(policy, categorical(), work.members, work.budget, (END,), END, slots=chosen))
        began = time.perf_counter()
        compiled[way] = generate.lower(params, prompts, key=jax.random.key(0)).compile()
        compile_seconds[way] = time.perf_counter() - began
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    lengths = []
    for repeat in range(repeats + 1):
        rollouts = []
        for way, generate in compiled.items():
            began = time.perf_counter()
            rollouts.append(jax.block_until_ready(generate(params, prompts, key=jax.random.key(repeat))))
            seconds[way].append(time.perf_counter() - began)
        assert all(np.array_equal(rollouts[0].tokens, other.tokens) for other in rollouts[1:])
        lengths.append(np.asarray(rollouts[0].mask.sum(-1)))
    return [row(name, way, work, seconds, compile_seconds[way], np.stack(lengths[1:])) for way in WAYS]


def row(
    name: str, way: str, work: Work, seconds: dict[str, list[float]], compiling: float, lengths: np.ndarray
) -> dict:
    """What is written down of one way; the ratio is taken call by call, on the same completions."""
    own, base, tokens = seconds[way][1:], seconds["lock step"][1:], lengths.sum((1, 2))
    ratios = [b / a for a, b in zip(own, base, strict=True)]
    quarters = statistics.quantiles(ratios, method="inclusive") if len(ratios) > 1 else ratios * 3
    found = {
        "work": name,
        "way": way,
        "rows": work.groups * work.members,
        "budget": work.budget,
        "mean_length": round(float(lengths.mean()), 1),
        "longest": int(np.median(lengths.max((1, 2)))),
        "tokens_per_second": round(statistics.median(t / s for t, s in zip(tokens, own, strict=True))),
        "faster": [round(value, 2) for value in quarters],
        "compile_seconds": round(compiling, 1),
        "calls": len(own),
        "cores": os.cpu_count(),
        "jax": jax.__version__,
        "date": datetime.date.today().isoformat(),
    }
    low, middle, high = found["faster"]
    print(
        f"{name} ({found['rows']} rows, budget {work.budget}, mean length {found['mean_length']}, longest "
        f"{found['longest']}), {way}: {found['tokens_per_second']} tokens/s, {middle} ({low} to {high}) times lock "
        f"step, compiled in {found['compile_seconds']} s",
        flush=True,
    )
    return found


if __name__ == "__main__":
    tyro.cli(main)
