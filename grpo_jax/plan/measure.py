"""A run's steps, compiled for devices that are not there: what each needs in memory, computes and moves."""

import math
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding

from grpo_jax.compiled import Compiled
from grpo_jax.config import Config
from grpo_jax.plan.chips import Topology
from grpo_jax.plan.hlo import Traffic, traffic
from grpo_jax.plan.operations import operations
from grpo_jax.plan.outline import outline
from grpo_jax.program import Program, Shapes, abstract_arguments, compile_program

GIGA = 1e9
OLDER = "older policies"
"""What `state_bytes` calls the parameters that completions are sampled from while those after them are trained."""


class Memory(NamedTuple):
    """Bytes on the device that needs most, while one step runs.

    Attributes:
        resident: the part of the training state that the step does not take, but that stays where it is.
        arguments: what it takes.
        results: what it returns, in memory of its own.
        temporaries: what it needs in between.
    """

    resident: float
    arguments: float
    results: float
    temporaries: float

    @property
    def peak(self) -> float:
        """All of them together."""
        return float(sum(self))


class Step(NamedTuple):
    """One compiled step.

    Attributes:
        name: what it does.
        often: how often it runs in an update of the policy, on average.
        memory: what it needs.
        operations: of one execution, on all devices together.
        traffic: of one execution, on each device.
        seconds: that compiling took.
        text: the compiled program.
    """

    name: str
    often: float
    memory: Memory
    operations: float
    traffic: Traffic
    seconds: float
    text: str


class TooLarge(Exception):
    """A step that the compiler refuses, since it does not fit.

    Attributes:
        step: its name.
        needed: bytes that it needs on a device, as far as the compiler says.
    """

    def __init__(self, step: str, needed: float) -> None:
        super().__init__(f"{step} needs {needed / GIGA:.1f} GB on a device, more than there is")
        self.step, self.needed = step, needed


class Measured(NamedTuple):
    """A configuration on a topology.

    Attributes:
        config: the run.
        topology: the devices.
        mesh: sizes of the mesh's axes.
        rows: prompts per update, padding included.
        state: bytes on a device of what stays there between steps, by kind.
        batch: bytes on a device of the completions and rewards of an update.
        cache: bytes on a device of the keys and values that sampling keeps, part of its temporaries.
        model_operations: operations of an update that the model needs by convention, see `model_operations`.
        steps: compiled.
    """

    config: Config
    topology: Topology
    mesh: dict[str, int]
    rows: int
    state: dict[str, float]
    batch: float
    cache: float
    model_operations: float
    steps: tuple[Step, ...]

    @property
    def peak(self) -> float:
        """The most that any step needs on a device, in bytes."""
        return max(step.memory.peak for step in self.steps)


def measure(
    config: Config,
    topology: Topology,
    shape: Path | None = None,
    names: tuple[str, ...] = (),
    known: Mapping[str, Step] = MappingProxyType({}),
) -> Measured:
    """Compiles a run's steps for a topology; nothing of the model is allocated.

    Args:
        config: the run.
        topology: the devices.
        shape: the model's config.json, see `outline`.
        names: the steps to compile. Empty: all that the configuration takes.
        known: steps of this very configuration that have been compiled before, by name.

    Raises:
        TooLarge: the compiler refuses one, since it does not fit.
        ValueError: from any part of the configuration.
    """
    program = _program(config, topology, shape)
    shapes = abstract_arguments(program, config.rollout.group_size, lagging=config.rollout.lag > 0)
    state = state_bytes(program, config.rollout.lag)
    share = program.mesh.shape["data"] * program.mesh.shape["fsdp"]
    batch = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((shapes.rollout, shapes.batch))) / share
    found = Measured(
        config,
        topology,
        dict(program.mesh.shape),
        program.rows,
        state,
        batch,
        _cache(program, config, shapes) / share,
        model_operations(program, config),
        (),
    )
    work = _steps(program, config)
    steps = [known.get(name) or _compiled(found, program, shapes, name, work[name]) for name in names or work]
    return found._replace(steps=tuple(steps))


def least(config: Config, topology: Topology, shape: Path | None = None) -> float:
    """Returns the bytes on a device below which no update fits: the state and one gradient; compiles nothing."""
    program = _program(config, topology, shape)
    return sum(state_bytes(program, config.rollout.lag).values()) + _bytes(program.shapes.params)


def _program(config: Config, topology: Topology, shape: Path | None) -> Program:
    if config.rollout.mesh is not None:
        raise ValueError(
            f"rollout.mesh={config.rollout.mesh}: a plan is for devices that all do the same; set --rollout.mesh None "
            "and give those of the updates as the topology, then those that sample"
        )
    return compile_program(config, **outline(config, shape)._asdict(), devices=topology.devices)


def state_bytes(program: Program, lag: int = 0) -> dict[str, float]:
    """Returns the bytes on a device of the training state and of a frozen base, by kind.

    Args:
        program: the run's steps.
        lag: updates that the policy which samples is behind; so many older ones, and one, are kept at most.
    """
    state = program.shapes
    kinds = {
        "parameters": state.params,
        "optimizer": state.opt_state,
        "reference": state.ref_params,
        "frozen base": program.update.base.shapes,
    }
    found = {kind: _bytes(tree) for kind, tree in kinds.items() if jax.tree.leaves(tree)}
    return found | ({OLDER: (lag + 1) * found["parameters"]} if lag else {})


def model_operations(program: Program, config: Config) -> float:
    """Returns what an update costs by convention: 2 operations for each weight and token, 6 where it is trained.

    Every token of prompts and completions is read once by the sampler, once by the reference where there is one, once
    by an older policy where that sampled, and once by the policy that is trained, for every optimizer step. Attention,
    embedding and recomputation do not count.
    """
    base = program.shapes.params if program.update.base.shapes is None else program.update.base.shapes
    weights = sum(leaf.size for leaf in jax.tree.leaves(base))
    weights -= 0 if "head" not in base else base["embedding"].size
    parts, group = program.parts, config.rollout.group_size
    tokens = config.rollout.prompts * (parts.task.max_prompt_tokens + group * parts.max_tokens)
    passes = (
        2 + 2 * parts.objective.needs_reference + 2 * (config.rollout.lag > 0) + 6 * config.update.updates_per_rollout
    )
    return float(weights * tokens * passes)


class _Work(NamedTuple):
    """A step to compile: how often it runs in an update, and whether it takes the whole state or parameters alone."""

    often: float
    step: Compiled
    whole: bool


def _steps(program: Program, config: Config) -> dict[str, _Work]:
    """Returns the steps that a configuration takes, by name."""
    shares, every, lag = config.gradient_share_every, config.evaluation.every, config.rollout.lag
    found = {"sampling": _Work(1, program.generate.compiled, False), "update": _Work(1, program.update, True)}
    if lag:
        found["old log-probs"] = _Work(1, program.old_log_probs, False)
    if shares:
        found["gradient share"] = _Work(1 / shares, program.share, True)
    if isinstance(program.certificate, Compiled):
        found["certificate"] = _Work(1 / config.certify_every, program.certificate, True)
    if every:
        calls = -(-config.evaluation.examples // program.evaluation_rows)
        found["evaluation"] = _Work(calls / every, program.answer.compiled, False)
    return found


def _compiled(found: Measured, program: Program, shapes: Shapes, name: str, work: _Work) -> Step:
    arguments = (program.shapes, shapes.rollout, shapes.batch)
    if name == "old log-probs":
        arguments = (program.shapes.params, shapes.rollout)
    elif not work.whole:
        prompts = shapes.questions if name == "evaluation" else shapes.prompts
        arguments = (program.shapes.params, prompts, jax.eval_shape(lambda: jax.random.key(0)))
    begun = time.monotonic()
    traced = work.step.trace(*arguments)
    try:
        compiled = traced.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        raise _too_large(name, error) from error
    seconds, text, needs = time.monotonic() - begun, compiled.as_text(), compiled.memory_analysis()
    assert needs is not None, "CPUs and TPUs say what a program needs"
    assert text is not None
    # Older policies: the update needs none of them; another step takes one, or the current one, and leaves as many.
    unused = (OLDER,) if work.whole else (OLDER, "optimizer", "reference")
    memory = Memory(
        float(sum(found.state.get(kind, 0.0) for kind in unused)),
        float(needs.argument_size_in_bytes),
        float(needs.output_size_in_bytes - needs.alias_size_in_bytes),
        float(needs.temp_size_in_bytes),
    )
    endless = program.parts.max_tokens
    moved = traffic(text, endless)
    return Step(name, work.often, memory, operations(traced.jaxpr, endless), moved, seconds, text)


def _too_large(name: str, error: Exception) -> Exception:
    """Returns what a compiler's refusal means; the error itself where it is about something else."""
    sizes = re.findall(r"(\d+(?:\.\d+)?)([GMK])", str(error))
    if "RESOURCE_EXHAUSTED" not in str(error) or not sizes:
        return error
    return TooLarge(name, max(float(size) * 1024 ** " KMG".index(unit) for size, unit in sizes))


def _bytes(tree: Any) -> float:
    """Returns the bytes on a device of arrays of which only shapes and shardings are known."""

    def one(leaf: Any) -> int:
        place = leaf.sharding
        shape = place.shard_shape(leaf.shape) if isinstance(place, NamedSharding) else leaf.shape
        return math.prod(shape) * getattr(leaf.dtype, "itemsize", 8)

    return float(sum(one(leaf) for leaf in jax.tree.leaves(tree)))


def _cache(program: Program, config: Config, shapes: Shapes) -> float:
    """Returns the bytes, on all devices together, of the keys and values of prompts and completions."""
    policy, group = program.parts.policy, config.rollout.group_size
    base = program.update.base
    params = program.shapes.params if base.shapes is None else base.shapes
    prefix = jax.eval_shape(policy.prefill, params, shapes.prompts).memory
    cache = jax.eval_shape(lambda: policy.empty_cache(program.rows, group, program.parts.max_tokens))
    return float(sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((prefix, cache))))


def with_options(config: Config, mesh: str, micro_batches: int) -> Config:
    """Returns a run with another mesh, and what has to follow it.

    Args:
        config: the run.
        mesh: its mesh.
        micro_batches: parts that an update is taken in.
    """
    return replace(
        config,
        mesh=mesh,
        update=replace(config.update, micro_batches=micro_batches),
        model=replace(config.model, logits_per_chunk=LOGITS_PER_DEVICE),
    )


LOGITS_PER_DEVICE = 2**25
"""Logits that a device holds at a time while it scores: 128 MiB in float32, and enough rows for its matrix units."""
