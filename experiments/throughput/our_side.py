"""One side of the comparison: a step as `grpo_jax.train` takes it. Prints what it measured as JSON."""

import json
import resource
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.throughput.floor import multiplied_per_second, step_operations, training_operations
from grpo_jax.config import Config, from_dict
from grpo_jax.experience import Collector
from grpo_jax.memory import keep_freed_memory, make_room
from grpo_jax.models import decoder, pretrained
from grpo_jax.program import Program, compile_program
from grpo_jax.rollouts import sampler
from grpo_jax.tasks import Example
from grpo_jax.types import Prompts, Rollout


def examples(work: dict):
    """Prompts of random characters, all of the same number of tokens: one a character."""

    def draw(split: str, start: int, count: int) -> list[Example]:
        rows = np.random.default_rng(start).choice(list(work["alphabet"]), (count, work["prompt_tokens"]))
        return [Example(work["separator"].join(row), {}) for row in rows]

    return draw


def reward(prompts, completions, **_) -> list[float]:
    return [float(text.count("1") + text.count("e")) for text in completions]


def collector(program: Program, config: Config, work: dict) -> Collector:
    """What the training loop collects with, on our prompts and with no token that ends a completion early."""
    parts, rollout = program.parts, config.rollout
    task = parts.task._replace(examples=examples(work), max_prompt_tokens=work["prompt_tokens"])
    pad = task.tokenizer.pad_id
    generate = sampler(parts.policy, parts.strategy, rollout.group_size, rollout.max_tokens, (), pad)
    compiled = jax.jit(lambda params, prompts, key: generate(params, prompts, key=key))
    return Collector(
        parts._replace(task=task, rewards=(reward,), task_rewards=1),
        lambda params, prompts, *, key: compiled(params, prompts, key),
        rollout.prompts,
        program.rows,
        rollout.group_size,
        extra_rounds=0,
    )


def step(work: dict) -> dict[str, Any]:
    """Times whole steps: sampling, the reference's pass, forward, backward, Adam."""
    config = from_dict(work["config"])
    program = compile_program(config)
    collect = collector(program, config, work)
    state = program.state(program.initial(key=jax.random.key(0)), key=jax.random.key(1))
    rows = []
    for number in range(work["warm_up"] + work["steps"]):
        began, worked = time.perf_counter(), time.process_time()
        found = collect.collect(
            state.params, number * config.rollout.prompts, key=jax.random.fold_in(state.key, number)
        )
        sampled = time.perf_counter()
        # as the training loop does
        make_room(state.params, first=number == 0, sparing=config.model.remat_layers, quiet=True)
        state, metrics = program.update(state, program.place(found.rollout), program.place(found.batch))
        jax.block_until_ready((state, jax.device_get(metrics)))
        rows.append((time.perf_counter() - began, sampled - began, time.process_time() - worked))
    assert np.sum(found.rollout.prompts.mask) == config.rollout.prompts * work["prompt_tokens"]
    seconds, sampling, processor = zip(*rows[work["warm_up"] :], strict=True)
    path = config.model.path
    shape = config.model if path is None else pretrained.read_config(path)
    return {
        "seconds": seconds,
        "processor_seconds": processor,
        "sampling_seconds": sampling,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "sequences": found.rollout.mask.shape[0] * found.rollout.mask.shape[1],
        "tokens": sorted({int(length) for length in found.rollout.mask.sum(axis=-1).ravel()}),
        "operations": step_operations(shape, program.parts.policy.vocabulary_size, work),
    }


def training(work: dict) -> dict[str, Any]:
    """Times steps of Adam on the likelihood of whole sequences, nothing shared between them."""
    path = work["config"]["model"]["path"]
    shape, length, count = pretrained.read_config(path), work["length"], work["sequences"]
    policy, adam = decoder(shape), optax.adam(1e-6)
    tokens = np.random.default_rng(0).integers(0, shape.vocabulary_size, (count, length)).astype(np.int32)
    prompts = Prompts(jnp.asarray(tokens[:, :1]), jnp.ones((count, 1), bool))
    mask = jnp.ones((count, 1, length - 1), bool)
    rollout = Rollout(prompts, jnp.asarray(tokens[:, None, 1:]), mask, jnp.zeros(mask.shape), mask[..., 0])

    def loss(params, rollout):
        return -jnp.mean(policy.score(params, rollout, 1.0).log_probs)

    def update(params, moments, rollout):
        value, gradient = jax.value_and_grad(loss)(params, rollout)
        change, moments = adam.update(gradient, moments)
        return optax.apply_updates(params, change), moments, value

    compiled, params = jax.jit(update, donate_argnums=(0, 1)), pretrained.load(path, shape)
    state, rows = (params, adam.init(params), rollout), []
    params, moments, rollout = jax.device_put(state, jax.devices()[0])  # as outputs are: all steps share a compilation
    for number in range(work["warm_up"] + work["steps"]):
        began, worked = time.perf_counter(), time.process_time()
        make_room(params, first=number == 0, sparing=False, quiet=True)
        params, moments, value = compiled(params, moments, rollout)
        float(value)
        rows.append((time.perf_counter() - began, time.process_time() - worked))
    seconds, processor = zip(*rows[work["warm_up"] :], strict=True)
    operations = training_operations(shape, shape.vocabulary_size, count, length)
    return {"seconds": seconds, "processor_seconds": processor, "loss": float(value), "operations": operations}


def main(work: dict) -> dict[str, Any]:
    keep_freed_memory()  # as the command line does
    found = training(work) if work["name"] == "training" else step(work)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return found | {"peak_bytes": peak, "operations_per_second": multiplied_per_second(), "jax": jax.__version__}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
