"""One side of the comparison: a step as `grpo_jax.train` takes it. Prints seconds per step as JSON."""

import json
import math
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.config import ModelConfig, from_dict
from grpo_jax.experience import Collector
from grpo_jax.memory import keep_freed_memory
from grpo_jax.program import Program, compile_program
from grpo_jax.rollouts import sampler
from grpo_jax.tasks import Example


def examples(work: dict):
    """Prompts of random characters, all of the same length."""

    def draw(split: str, start: int, count: int) -> list[Example]:
        rows = np.random.default_rng(start).choice(list(work["alphabet"]), (count, work["prompt_tokens"]))
        return [Example("".join(row), {}) for row in rows]

    return draw


def reward(prompts, completions, **_) -> list[float]:
    return [float(text.count("1")) for text in completions]


def collector(program: Program, work: dict) -> Collector:
    """What the training loop collects with, on our prompts and with no token that ends a completion early."""
    parts, rollout = program.parts, work["config"]["rollout"]
    task = parts.task._replace(examples=examples(work), max_prompt_tokens=work["prompt_tokens"])
    group, tokens, pad = rollout["group_size"], rollout["max_tokens"], task.tokenizer.pad_id
    generate = sampler(parts.policy, parts.strategy, group, tokens, (), pad)
    compiled = jax.jit(lambda params, prompts, key: generate(params, prompts, key=key))
    return Collector(
        parts._replace(task=task, rewards=(reward,)),
        lambda params, prompts, *, key: compiled(params, prompts, key),
        rollout["prompts"],
        program.rows,
        group,
        extra_rounds=0,
    )


def operations(model: ModelConfig, vocabulary: int, work: dict) -> float:
    """Multiplications and additions in the matrix products that no step of this size can avoid.

    Every prompt token and every completion token but the last passes the network once to sample, once for the
    reference, and once forward and twice backward for the gradient.
    """
    rollout, prompt = work["config"]["rollout"], work["prompt_tokens"]
    length, rows = rollout["max_tokens"], rollout["prompts"] * rollout["group_size"]
    heads = model.heads * model.head_dim
    weights = model.width * (2 * heads + 2 * model.kv_heads * model.head_dim + 3 * model.hidden)
    tokens = rollout["prompts"] * prompt + rows * (length - 1)
    keys = rollout["prompts"] * prompt * (prompt + 1) / 2 + rows * sum(prompt + t for t in range(1, length))
    return 5 * 2 * (model.layers * (weights * tokens + 2 * heads * keys) + vocabulary * model.width * rows * length)


def multiplied_per_second(size: int = 1024, repeats: int = 20) -> float:
    """Operations per second in float32 products of two square matrices, the best of several."""
    square = jnp.ones((size, size), jnp.float32)
    product, best = jax.jit(jnp.matmul), math.inf
    for _ in range(repeats + 1):
        began = time.perf_counter()
        product(square, square).block_until_ready()
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best


def main(work: dict) -> dict:
    keep_freed_memory()  # as the command line does
    config = from_dict(work["config"])
    program = compile_program(config)
    collect = collector(program, work)
    state = program.state(program.initial(key=jax.random.key(0)), key=jax.random.key(1))
    rows = []
    for step in range(work["warm_up"] + work["steps"]):
        began, worked = time.perf_counter(), time.process_time()
        found = collect.collect(state.params, step * config.rollout.prompts, key=jax.random.fold_in(state.key, step))
        sampled = time.perf_counter()
        state, metrics = program.update(state, program.place(found.rollout), program.place(found.batch))
        jax.block_until_ready((state, jax.device_get(metrics)))
        rows.append((time.perf_counter() - began, sampled - began, time.process_time() - worked))
    seconds, sampling, processor = zip(*rows[work["warm_up"] :], strict=True)
    return {
        "seconds": seconds,
        "processor_seconds": processor,
        "sampling_seconds": sampling,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "sequences": found.rollout.mask.shape[0] * found.rollout.mask.shape[1],
        "tokens": sorted({int(length) for length in found.rollout.mask.sum(axis=-1).ravel()}),
        "operations": operations(config.model, program.parts.policy.vocabulary_size, work),
        "operations_per_second": multiplied_per_second(),
        "jax": jax.__version__,
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
