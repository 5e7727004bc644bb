"""Seconds and memory of scores and gradient, packed and padded, and with a few queries at a time. See README.md."""

import datetime
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from experiments.packing.picture import draw
from grpo_jax.memory import keep_freed_memory
from grpo_jax.models import DecoderConfig, decoder
from grpo_jax.presets import preset
from grpo_jax.types import Packing, Prompts, Rollout
from grpo_jax.updates import pack

HERE = Path(__file__).parent
VOCABULARY, PROMPT, WIDTHS, DRAWS = 32, 32, 8, 200


def shape() -> DecoderConfig:
    """Returns the decoder of 3.8M parameters that the preset ``throughput`` has."""
    own = {name: value for name, value in asdict(preset("throughput").model).items() if hasattr(DecoderConfig, name)}
    return DecoderConfig(VOCABULARY, **own)


def rollout_of(lengths: np.ndarray, budget: int) -> Rollout:
    """Returns random prompts of 32 tokens and completions of the given lengths ``[P, G]``."""
    random = np.random.default_rng(0)
    draw_tokens = lambda *size: random.integers(0, VOCABULARY, size, dtype=np.int32)  # noqa: E731
    groups, members = lengths.shape
    mask: Any = np.arange(budget) < lengths[..., None]
    everywhere: Any = np.ones((groups, PROMPT), bool)
    prompts = Prompts(draw_tokens(groups, PROMPT), everywhere)  # pyright: ignore[reportArgumentType]
    return Rollout(prompts, draw_tokens(groups, members, budget), mask, np.zeros(mask.shape, np.float32), mask[..., 0])  # pyright: ignore


def packed(rollout: Rollout) -> Packing:
    found = pack(rollout, WIDTHS).packing
    assert found is not None
    return found


def positions(rollout: Rollout) -> int:
    """Returns how many completion positions the network runs for a rollout."""
    return math.prod((rollout.tokens if rollout.packing is None else rollout.packing.members).shape)


def geometric(groups: int, members: int, budget: int) -> tuple[Rollout, list[float]]:
    """Draws lengths with mean budget / 4 many times; returns the median batch, and the positions left in each."""
    random = np.random.default_rng(0)
    drawn = [np.clip(random.geometric(4 / budget, (groups, members)), 1, budget) for _ in range(DRAWS)]
    batches = [rollout_of(lengths, budget) for lengths in drawn]
    kept = [packed(batch).members.size / batch.tokens.size for batch in batches]
    return batches[int(np.argsort(kept)[DRAWS // 2])], kept


def compiled(config: DecoderConfig, rollout: Rollout) -> tuple[Callable[[], None], float]:
    """Returns a call of the scores' value and gradient, and the temporaries of the compiled program in MB."""
    policy = decoder(config)
    params = jax.jit(lambda key: policy.init(key=key))(jax.random.key(0))

    def loss(params, rollout):
        return -jnp.mean(policy.score(params, rollout, 1.0).log_probs)

    program = jax.jit(jax.value_and_grad(loss)).lower(params, rollout).compile()
    placed = jax.device_put(rollout)
    memory = program.memory_analysis()
    assert memory is not None
    return lambda: jax.block_until_ready(program(params, placed)), memory.temp_size_in_bytes / 1e6


def timed(calls: Sequence[Callable[[], None]], repeats: int) -> list[list[float]]:
    """Returns seconds of each call, the calls taking turns, after one of each that is not counted."""
    seconds: list[list[float]] = [[] for _ in calls]
    for turn in range(repeats + 1):
        for call, own in zip(calls, seconds, strict=True):
            began = time.perf_counter()
            call()
            own += [time.perf_counter() - began] if turn else []
    return seconds


def packing(config: DecoderConfig, groups: int, members: int, budget: int, repeats: int) -> list[dict[str, Any]]:
    """Measures a batch with its padding and packed: ragged lengths, and all lengths full."""
    ragged, kept = geometric(groups, members, budget)
    full = rollout_of(np.full((groups, members), budget), budget)
    rows, calls = [], []
    for lengths, padded in (("geometric", ragged), ("full", full)):
        for name, batch in (("padded", padded), ("packed", pack(padded, WIDTHS))):
            call, megabytes = compiled(config, batch)
            calls.append(call)
            row = {"part": "packing", "lengths": lengths, "layout": name, "megabytes": round(megabytes, 1)}
            rows.append(row | {"positions": positions(batch), "tokens": int(np.sum(batch.mask))})
            rows[-1]["shape"] = list(batch.tokens.shape if batch.packing is None else batch.packing.members.shape)
            print("compiled", rows[-1], flush=True)
    for row, seconds in zip(rows, timed(calls, repeats), strict=True):
        row["seconds"] = [round(each, 4) for each in seconds]
    rows[0]["positions_kept_in_draws"] = [round(float(each), 4) for each in np.quantile(kept, [0.025, 0.5, 0.975])]
    return rows


def attention(config: DecoderConfig, members: int, budget: int, repeats: int) -> list[dict[str, Any]]:
    """Measures one long batch with ever fewer queries at a time."""
    rollout = rollout_of(np.full((1, members), budget), budget)
    per_query = members * config.heads * (budget + PROMPT)
    rows, calls = [], []
    for queries in (budget, budget // 4, budget // 16):
        own = replace(config, scan_layers=True, remat_layers=True, attention_logits_per_chunk=queries * per_query)
        call, megabytes = compiled(own, rollout)
        calls.append(call)
        rows.append({"part": "attention", "queries": queries, "megabytes": round(megabytes, 1)})
        print("compiled", rows[-1], flush=True)
    for row, seconds in zip(rows, timed(calls, repeats), strict=True):
        row["seconds"] = [round(each, 4) for each in seconds]
    return rows


def main(
    parts: tuple[str, ...] = ("packing", "attention"),
    repeats: int = 5,
    results: Path = HERE / "results.jsonl",
    figure: Path = HERE / "figure.png",
    smoke: bool = False,
) -> None:
    """Measures, appends what was found and draws the newest of each part.

    Args:
        parts: what to measure.
        repeats: timed calls of each program.
        results: the file that the results are appended to.
        figure: the picture.
        smoke: a tiny decoder and short completions, nothing written: seconds.
    """
    keep_freed_memory()  # as the command line does
    load = os.getloadavg()[0]
    config, sizes, long = shape(), (4, 8, 256), (2, 1024)
    if smoke:
        config, sizes, long, repeats = DecoderConfig(VOCABULARY, 1, 16, 2, 1, 8, 32), (2, 4, 16), (1, 64), 1
    found = packing(config, *sizes, repeats) if "packing" in parts else []
    found += attention(config, *long, repeats) if "attention" in parts else []
    machine = {"cores": os.cpu_count(), "load_at_start": round(load, 2), "jax": jax.__version__}
    for row in found:
        row |= machine | {"date": datetime.date.today().isoformat()}
        print(f"{row | {'median_seconds': round(median(row['seconds']), 3)}}")
    if smoke:
        return
    with results.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in found)
    draw([json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()], figure)


if __name__ == "__main__":
    tyro.cli(main)
