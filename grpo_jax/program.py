"""The compiled steps of a run, placed on the mesh: sample, update, diagnose."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from grpo_jax.compiled import Base, Compiled, Sampler
from grpo_jax.components import Checkpoint, Parts, build
from grpo_jax.config import Config
from grpo_jax.losses import Objective, assert_degenerate_gradients_are_zero
from grpo_jax.oracle import LEAST_BLOCKS, Findings, sampled_findings
from grpo_jax.rollouts import greedy, sampler
from grpo_jax.sharding import batch_sharding, group_multiple, make_mesh, pin_groups, shardings, state_shardings
from grpo_jax.tasks import Task
from grpo_jax.types import Batch, Params, Prompts, Rollout, TrainState
from grpo_jax.updates import Learner, Score, gradient_share, learner, reference_scores

_BLOCKS = 8
"""Blocks that a batch is cut into for its certificate, where it has as many groups."""


class Program(NamedTuple):
    """What runs on the devices.

    Attributes:
        parts: what the configuration stands for.
        mesh: the devices.
        rows: groups of the compiled update, P rounded up to what mesh and micro-batches need.
        evaluation_rows: prompts per call of ``answer``.
        initial: ``(*, key) -> params``; those of the pretrained model where there is one.
        state: ``(params, *, key) -> TrainState``.
        update: ``(state, rollout, batch) -> (state, metrics)``; donates the state.
        generate: ``(params, prompts, *, key) -> Rollout``, G random completions per prompt.
        answer: the same, one greedy completion per prompt.
        share: ``(state, rollout, batch) -> []``, the share of the gradient that degenerate groups carry.
        certificate: ``(state, rollout, batch) -> Findings``, which gradient the KL term follows as far as the batch
            tells; None unless ``config.certify_every`` asks for it.
        check: ``(state, rollout, batch) -> None``, raises AssertionError where an invariant does not hold.
        shapes: the training state's shapes, with the devices they live on, to restore a checkpoint to.
        score: the policy's scoring function, temperature bound; of adapters it is not there.
        whole: ``params -> params`` of the policy itself, adapters merged into their base.
        place: puts a tree with leading axis P on the mesh.
    """

    parts: Parts
    mesh: Mesh
    rows: int
    evaluation_rows: int
    initial: Callable[..., Params]
    state: Callable[..., TrainState]
    update: Compiled
    generate: Sampler
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
    _check(config)
    mesh = make_mesh(config.mesh, devices)
    parts = build(config, pin_groups(mesh), checkpoint, task)
    parts = parts if objective is None else parts._replace(objective=objective)
    base = _base(parts, mesh)
    score_with = partial(_score_with, parts.policy.score, base.merge, config.rollout.temperature)

    def learn_with(score: Score) -> Learner:
        return learner(
            score,
            parts.objective,
            parts.optimizer,
            parts.controller,
            parts.reference,
            micro_batches=config.update.micro_batches,
            updates_per_rollout=config.update.updates_per_rollout,
            measure_entropy=True,
        )

    learn = learn_with(score_with(None))
    shapes = _shapes(learn, parts, mesh)
    states = jax.tree.map(lambda leaf: leaf.sharding, shapes)
    groups = batch_sharding(mesh)
    multiple = group_multiple(mesh, micro_batches=config.update.micro_batches)
    ends, pad = parts.task.tokenizer.end_ids, parts.task.tokenizer.pad_id
    decoding = {"slots": config.rollout.slots, "shards": group_multiple(mesh)}
    random = sampler(parts.policy, parts.strategy, config.rollout.group_size, parts.max_tokens, ends, pad, **decoding)
    best = sampler(parts.policy, greedy(), 1, parts.max_tokens, ends, pad, **decoding)

    def placed(build: Callable[[Score], Callable], **options: Any) -> Callable:
        def function(frozen, state, rollout, batch):
            return build(score_with(frozen))(state, rollout, batch)

        return jax.jit(function, in_shardings=(base.places, states, groups, groups), **options)

    certificate = None
    if config.certify_every:
        blocks = _certificate_blocks(parts, config)
        certificate = Compiled(placed(partial(_certificate, parts=parts, config=config, blocks=blocks)), base)
    check = placed(partial(_check_invariants, parts=parts, micro_batches=config.update.micro_batches))
    return Program(
        parts=parts,
        mesh=mesh,
        rows=-(-config.rollout.prompts // multiple) * multiple,
        evaluation_rows=-(-min(config.evaluation.examples, 256) // multiple) * multiple,
        initial=_initial(parts, states.params),
        state=_state(learn, states),
        update=Compiled(
            placed(lambda score: learn_with(score).update, out_shardings=(states, None), donate_argnums=1), base
        ),
        generate=_sampler(random, base, states.params, groups),
        answer=_sampler(best, base, states.params, groups),
        share=Compiled(placed(partial(_share, parts=parts, micro_batches=config.update.micro_batches)), base),
        certificate=certificate,
        check=Compiled(chex.chexify(check, async_check=False) if config.check_invariants else check, base),
        shapes=shapes,
        score=score_with(None) if parts.adapters is None else None,
        whole=_whole(parts, base, states.params),
        place=lambda tree: jax.device_put(tree, groups),
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


def abstract_arguments(program: Program, group_size: int) -> Shapes:
    """Returns the shapes and dtypes that a run feeds to its steps, as ``experience.Collector`` makes them.

    Args:
        program: the steps.
        group_size: completions per prompt, G.
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
            behaviour_log_probs=log_probs,
        )
        rollout = Rollout(read, jnp.zeros(each, jnp.int32), mask, log_probs, jnp.zeros(members, bool))
        return Shapes(read, prompts(program.evaluation_rows), rollout, batch)

    return jax.eval_shape(shapes)


def _base(parts: Parts, mesh: Mesh) -> Base:
    adapters, load = parts.adapters, parts.load
    if adapters is None:
        return Base(lambda: None, None, None, lambda base, params: params)
    assert load is not None
    shapes = jax.eval_shape(lambda: parts.policy.init(key=jax.random.key(0)))
    places = shardings(mesh, parts.policy.logical_axes(), shapes)
    return Base(cache(lambda: load(places)), _placed(shapes, places), places, adapters.merge)


def _check(config: Config) -> None:
    least = {
        "rollout.prompts": (config.rollout.prompts, 1),
        "rollout.max_tokens": (1 if config.rollout.max_tokens is None else config.rollout.max_tokens, 1),
        "rollout.resample_rounds": (config.rollout.resample_rounds, 0),
        "warm_start.steps": (config.warm_start.steps, 0),
        "warm_start.batch": (config.warm_start.batch, 1),
        "warm_start.check_every": (config.warm_start.check_every, 1),
        "evaluation.examples": (config.evaluation.examples, 1),
        "evaluation.every": (config.evaluation.every, 0),
        "update.packing_widths": (1 if config.update.packing_widths is None else config.update.packing_widths, 1),
        "update.max_rejected": (config.update.max_rejected, 1),
        "steps": (config.steps, 1),
        "seed": (config.seed, 0),
        "checkpoint_every": (config.checkpoint_every, 1),
        "keep_checkpoints": (config.keep_checkpoints, 1),
        "keep_best": (config.keep_best, 0),
        "keep_every": (config.keep_every, 0),
        "gradient_share_every": (config.gradient_share_every, 0),
        "certify_every": (config.certify_every, 0),
        "diagnose_every": (config.diagnose_every, 0),
    }
    for name, (value, lowest) in least.items():
        if value < lowest:
            raise ValueError(f"{name} is {value}; give at least {lowest}")
    if config.rollout.group_size < 2:
        raise ValueError(
            f"rollout.group_size is {config.rollout.group_size}: with one completion there is nothing to compare it "
            "with and every advantage is 0; give at least 2"
        )
    rows = config.rollout.prompts * config.rollout.group_size
    if config.rollout.slots is not None and not 1 <= config.rollout.slots < rows:
        raise ValueError(
            f"rollout.slots is {config.rollout.slots}; give at least 1 and fewer than the {rows} completions of a "
            "batch, or leave it out to decode all at once"
        )
    if not 0 < config.warm_start.learning_rate < float("inf"):
        raise ValueError(f"warm_start.learning_rate is {config.warm_start.learning_rate}; give a positive number")
    if not 0 <= config.warm_start.slips < 1:
        raise ValueError(f"warm_start.slips is {config.warm_start.slips}; give a share of demonstrations in [0, 1)")
    if not 0 < config.warm_start.target <= 1:
        raise ValueError(f"warm_start.target is {config.warm_start.target}; give an accuracy in (0, 1]")
    _check_kept(config)


def _check_kept(config: Config) -> None:
    if config.keep_every % config.checkpoint_every:
        raise ValueError(
            f"keep_every is {config.keep_every}, but there is a checkpoint every {config.checkpoint_every} steps "
            "(checkpoint_every); give a multiple of that"
        )
    if config.keep_best and config.evaluation.every == 0:
        raise ValueError(
            f"keep_best is {config.keep_best}, but no step is evaluated; give evaluation.every a number of steps, such "
            f"as {config.checkpoint_every}"
        )


def _score_with(score: Callable, merge: Callable, temperature: float, base: Params | None) -> Score:
    """Binds base and temperature to a policy's scoring function."""

    def bound(params: Params, rollout: Rollout, *, entropy: bool = False, ref_params: Params | None = None):
        reference = None if ref_params is None else merge(base, ref_params)
        return score(merge(base, params), rollout, temperature, entropy=entropy, ref_params=reference)

    return bound


def _shapes(learn: Learner, parts: Parts, mesh: Mesh) -> TrainState:
    key = jax.random.key(0)
    trained = parts.policy if parts.adapters is None else parts.adapters
    shapes = jax.eval_shape(lambda: learn.init(trained.init(key=key), key=key))
    places = state_shardings(mesh, trained.logical_axes(), shapes)
    return _placed(shapes, places)


def _placed(shapes: Any, places: Any) -> Any:
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), shapes, places
    )


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


def _sampler(generate: Callable, base: Base, places: Any, groups: NamedSharding) -> Sampler:
    def merged(frozen: Params | None, params: Params, prompts: Prompts, key: Any) -> Rollout:
        return generate(base.merge(frozen, params), prompts, key=key)

    compiled = jax.jit(merged, in_shardings=(base.places, places, groups, None), out_shardings=groups)
    return Sampler(Compiled(compiled, base))


def _whole(parts: Parts, base: Base, places: Any) -> Callable[[Params], Params]:
    if parts.adapters is None:
        return lambda params: params
    return Compiled(jax.jit(base.merge, in_shardings=(base.places, places), out_shardings=base.places), base)


def _filled(score: Score, parts: Parts, micro_batches: int, state: TrainState, rollout: Rollout, batch: Batch) -> Batch:
    if not parts.objective.needs_reference or parts.objective.needs_full_kl:
        return batch
    scored = reference_scores(score, parts.reference, micro_batches=micro_batches)
    return batch._replace(ref_log_probs=scored(state.ref_params, rollout, batch))


def _share(score: Score, parts: Parts, micro_batches: int) -> Callable:
    measure = gradient_share(score, parts.objective, micro_batches=micro_batches)

    def share(state: TrainState, rollout: Rollout, batch: Batch):
        beta = parts.controller.beta(state.controller)
        filled = _filled(score, parts, micro_batches, state, rollout, batch.check())
        return measure(state.params, rollout, filled, beta, state.ref_params)

    return share


def _certificate_blocks(parts: Parts, config: Config) -> int:
    """Returns how many blocks a batch is cut into; raises ValueError where there is nothing to certify."""
    if parts.objective.parts.kl is None:
        raise ValueError("certify_every has no effect, since the objective has no KL term; give 0, or beta above 0")
    if not parts.reference.needs_params:
        raise ValueError(
            f"certify_every needs the parameters of a reference policy, which {parts.reference.description} has not; "
            "give 0, or another reference"
        )
    if config.rollout.prompts < LEAST_BLOCKS:
        raise ValueError(
            f"certify_every compares groups with each other, but rollout.prompts is {config.rollout.prompts}; give at "
            f"least {LEAST_BLOCKS}"
        )
    # Blocks of equal size where they can be, small enough for memory, and few: more add no power, but passes of little.
    size = -(-config.rollout.prompts // max(_BLOCKS, config.update.micro_batches))
    return max(config.rollout.prompts // size, LEAST_BLOCKS)


def _certificate(score: Score, parts: Parts, config: Config, blocks: int) -> Callable:
    estimate = sampled_findings(score, parts.objective, config.rollout.group_size, blocks=blocks)
    scored = reference_scores(score, parts.reference, micro_batches=config.update.micro_batches)

    def certificate(state: TrainState, rollout: Rollout, batch: Batch) -> Findings:
        batch = batch.check()._replace(ref_log_probs=scored(state.ref_params, rollout, batch))
        beta = parts.controller.beta(state.controller)
        return estimate(state.params, rollout, batch, beta, state.ref_params, jax.random.key(0))

    return certificate


def _check_invariants(score: Score, parts: Parts, micro_batches: int) -> Callable:
    def check(state: TrainState, rollout: Rollout, batch: Batch) -> jax.Array:
        objective = parts.objective
        reference = state.ref_params if objective.needs_full_kl else None
        scores = score(state.params, rollout, entropy=objective.needs_entropy, ref_params=reference)
        filled = _filled(score, parts, micro_batches, state, rollout, batch.check())
        assert_degenerate_gradients_are_zero(objective, scores, filled, parts.controller.beta(state.controller))
        return jnp.zeros(())

    return check
