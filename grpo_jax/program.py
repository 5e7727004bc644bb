"""The compiled steps of a run, placed on the mesh: sample, update, diagnose."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from grpo_jax.compiled import Base, Compiled, Sampler
from grpo_jax.components import Checkpoint, Parts, build
from grpo_jax.config import Config, check_limits
from grpo_jax.hosts import put
from grpo_jax.inspection import certificate_blocks, certificate_step, invariants_step, share_step
from grpo_jax.losses import Objective
from grpo_jax.oracle import Findings
from grpo_jax.placement import (
    Meshes,
    base_on,
    make_meshes,
    placed,
    places_of,
    places_on,
    sampling_steps,
    score_with,
)
from grpo_jax.sharding import batch_sharding, group_multiple, state_shardings
from grpo_jax.tasks import Task
from grpo_jax.types import Batch, Params, Prompts, Rollout, TrainState
from grpo_jax.updates import Learner, Score, learner


class Program(NamedTuple):
    """What runs on the devices.

    Attributes:
        parts: what the configuration stands for.
        mesh: the devices that update and evaluate.
        sampling_mesh: those that sample, the same unless ``config.rollout.mesh`` names others.
        rows: groups of the compiled steps, P rounded up to what meshes and micro-batches need.
        evaluation_rows: prompts per call of ``answer``.
        initial: ``(*, key) -> params``; those of the pretrained model where there is one.
        state: ``(params, *, key) -> TrainState``.
        update: ``(state, rollout, batch) -> (state, metrics)``; donates the state.
        hand_over: ``params -> params`` for ``generate``, where sampling reads them; see ``placement.Sampling``.
        generate: ``(params, prompts, *, key) -> Rollout``, G random completions per prompt.
        old_log_probs: ``(params, rollout) -> log_probs [P, G, T]`` of the policy that sampled, where it did.
        answer: the same, one greedy completion per prompt.
        share: ``(state, rollout, batch) -> []``, the share of the gradient that degenerate groups carry.
        certificate: ``(state, rollout, batch) -> Findings``, which gradient the KL term follows as far as the batch
            tells; None unless ``config.certify_every`` asks for it.
        check: ``(state, rollout, batch) -> None``, raises AssertionError where an invariant does not hold.
        shapes: the training state's shapes, with the devices they live on, to restore a checkpoint to.
        score: the policy's scoring function, temperature bound; of adapters it is not there.
        whole: ``params -> params`` of the policy itself, adapters merged into their base.
        place: puts a tree with leading axis P on the mesh, see ``hosts.put``.
    """

    parts: Parts
    mesh: Mesh
    sampling_mesh: Mesh
    rows: int
    evaluation_rows: int
    initial: Callable[..., Params]
    state: Callable[..., TrainState]
    update: Compiled
    hand_over: Callable[[Params], Params]
    generate: Sampler
    old_log_probs: Compiled
    answer: Sampler
    share: Compiled
    certificate: Callable[[TrainState, Rollout, Batch], Findings] | None
    check: Callable[[TrainState, Rollout, Batch], None]
    shapes: TrainState
    score: Score | None
    whole: Callable[[Params], Params]
    place: Callable[[Any], Any]


def compile_program(
    config: Config,
    objective: Objective | None = None,
    *,
    checkpoint: Checkpoint | None = None,
    task: Task | None = None,
    devices: Sequence[Any] | None = None,
) -> Program:
    """Builds every step of a run and where its arrays live; XLA compiles each at its first call.

    Args:
        config: the run.
        objective: one of your own, in place of the one that ``config.objective`` describes.
        checkpoint: stands in for the model that ``config.model.path`` names, which is then not read.
        task: stands in for the problems that ``config.task`` describes, which are then not read.
        devices: what the mesh is made of, also devices to compile for that are not there. None: all of this machine.

    Raises:
        ValueError: from any part of the configuration, before anything is computed.
    """
    check_limits(config)
    meshes = make_meshes(config, devices)
    mesh, micro_batches = meshes.update, config.update.micro_batches
    parts = build(config, places_on(mesh), checkpoint, task)
    parts = parts if objective is None else parts._replace(objective=objective)
    base = base_on(mesh, parts)
    score_of = partial(score_with, parts.policy.score, base.merge, config.rollout.temperature)

    def learn_with(score: Score) -> Learner:
        return learner(
            score,
            parts.objective,
            parts.optimizer,
            parts.controller,
            parts.reference,
            micro_batches=micro_batches,
            updates_per_rollout=config.update.updates_per_rollout,
            measure_entropy=True,
        )

    learn = learn_with(score_of(None))
    shapes = _shapes(learn, parts, mesh)
    states, groups = places_of(shapes), batch_sharding(mesh)

    def compiled(build: Callable[[Score], Callable], **options: Any) -> Callable:
        def function(frozen, state, rollout, batch):
            return build(score_of(frozen))(state, rollout, batch)

        return jax.jit(function, in_shardings=(base.places, states, groups, groups), **options)

    certificate = None
    if config.certify_every:
        blocks = certificate_blocks(parts, config)
        certificate = Compiled(compiled(partial(certificate_step, parts=parts, config=config, blocks=blocks)), base)
    check = compiled(partial(invariants_step, parts=parts, micro_batches=micro_batches))
    sampling = sampling_steps(config, meshes, parts, base, shapes.params)
    examples = min(config.evaluation.examples, 256)
    return Program(
        parts=parts,
        mesh=mesh,
        sampling_mesh=meshes.sampling,
        rows=_rounded(config.rollout.prompts, meshes, micro_batches),
        evaluation_rows=_rounded(examples, Meshes(mesh, mesh if meshes.apart else meshes.sampling), micro_batches),
        initial=_initial(parts, states.params),
        state=_state(learn, states),
        update=Compiled(
            compiled(lambda score: learn_with(score).update, out_shardings=(states, None), donate_argnums=1), base
        ),
        hand_over=sampling.hand_over,
        generate=sampling.generate,
        old_log_probs=sampling.old_log_probs,
        answer=sampling.answer,
        share=Compiled(compiled(partial(share_step, parts=parts, micro_batches=micro_batches)), base),
        certificate=certificate,
        check=Compiled(chex.chexify(check, async_check=False) if config.check_invariants else check, base),
        shapes=shapes,
        score=score_of(None) if parts.adapters is None else None,
        whole=_whole(parts, base, states.params),
        place=partial(put, sharding=groups),
    )


class Shapes(NamedTuple):
    """Shapes of what the steps of a program take besides the training state.

    Attributes:
        prompts: of ``generate``.
        questions: the prompts of ``answer``.
        rollout: of ``update`` and ``share``.
        batch: the same.
    """

    prompts: Prompts
    questions: Prompts
    rollout: Rollout
    batch: Batch


def abstract_arguments(program: Program, group_size: int, *, lagging: bool = False) -> Shapes:
    """Returns the shapes and dtypes that a run feeds to its steps, as ``experience.Collector`` makes them.

    Args:
        program: the steps.
        group_size: completions per prompt, G.
        lagging: whether an older policy sampled, whose log-probs the batch then has.
    """
    parts, float32 = program.parts, jnp.float32

    def prompts(rows: int) -> Prompts:
        shape = (rows, parts.task.max_prompt_tokens)
        return Prompts(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, bool))

    def shapes() -> Shapes:
        members = (program.rows, group_size)
        each = (*members, parts.max_tokens)
        mask, log_probs, read = jnp.zeros(each, bool), jnp.zeros(each, float32), prompts(program.rows)
        own = (*members, parts.task_rewards) if parts.task_rewards > 1 and parts.rewards_apart else members
        rewards = jnp.zeros((*members, len(parts.rewards)) if parts.rewards_apart else members, float32)
        shaped = len(parts.rewards) > parts.task_rewards
        batch = Batch(
            mask=mask,
            rewards=rewards,
            valid=jnp.zeros(members, bool),
            task_rewards=jnp.zeros(own, float32) if shaped else None,
            old_log_probs=log_probs if lagging else None,
            behaviour_log_probs=log_probs,
        )
        rollout = Rollout(read, jnp.zeros(each, jnp.int32), mask, log_probs, jnp.zeros(members, bool))
        return Shapes(read, prompts(program.evaluation_rows), rollout, batch)

    return jax.eval_shape(shapes)


def _rounded(groups: int, meshes: Meshes, micro_batches: int) -> int:
    """Returns how many groups every device of both meshes gets the same number of in each micro-batch."""
    multiple = math.lcm(*(group_multiple(mesh, micro_batches=micro_batches) for mesh in meshes))
    return -(-groups // multiple) * multiple


def _shapes(learn: Learner, parts: Parts, mesh: Mesh) -> TrainState:
    key = jax.random.key(0)
    trained = parts.policy if parts.adapters is None else parts.adapters
    shapes = jax.eval_shape(lambda: learn.init(trained.init(key=key), key=key))
    places = state_shardings(mesh, trained.logical_axes(), shapes)
    return placed(shapes, places)


def _initial(parts: Parts, places: Any) -> Callable[..., Params]:
    load, trained = parts.load, parts.policy if parts.adapters is None else parts.adapters
    if load is not None and parts.adapters is None:
        return lambda *, key: load(places)
    compiled = jax.jit(lambda key: trained.init(key=key), out_shardings=places)
    return lambda *, key: compiled(key)


def _state(learn: Learner, places: TrainState) -> Callable[..., TrainState]:
    compiled = jax.jit(
        lambda params, key: learn.init(params, key=key), in_shardings=(places.params, None), out_shardings=places
    )
    return lambda params, *, key: compiled(params, key)


def _whole(parts: Parts, base: Base, places: Any) -> Callable[[Params], Params]:
    if parts.adapters is None:
        return lambda params: params
    return Compiled(jax.jit(base.merge, in_shardings=(base.places, places), out_shardings=base.places), base)
