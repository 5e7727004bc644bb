"""Where a run's steps live: updates on one mesh of devices, sampling on the same or on one of its own."""

from collections.abc import Callable, Sequence
from functools import cache, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float

from grpo_jax import hosts
from grpo_jax.compiled import Base, Compiled, Sampler
from grpo_jax.components import Parts
from grpo_jax.config import Config
from grpo_jax.models import Places, Policy
from grpo_jax.rollouts import greedy, sampler
from grpo_jax.sharding import (
    ON_THE_WAY,
    RULES,
    batch_sharding,
    group_by_group,
    group_multiple,
    make_mesh,
    mesh_size,
    other_layout,
    pin_groups,
    shardings,
    vocabulary_parts,
)
from grpo_jax.types import Params, Prompts, Rollout
from grpo_jax.updates import Score, map_groups


class Meshes(NamedTuple):
    """The devices of a run.

    Attributes:
        update: those that score, update and evaluate.
        sampling: those that sample; the same mesh unless ``config.rollout`` names devices of their own, or another
            layout of the same.
    """

    update: Mesh
    sampling: Mesh

    @property
    def apart(self) -> bool:
        """Whether sampling has devices of its own."""
        return not set(self.update.devices.flat) & set(self.sampling.devices.flat)


class Sampling(NamedTuple):
    """The steps that run where completions are sampled.

    Attributes:
        params: shapes of the parameters there, with their devices.
        generate: ``(params, prompts, *, key) -> Rollout``.
        answer: the same for evaluations, greedily and with a completion for each prompt; where updates run if sampling
            has devices of its own.
        old_log_probs: ``(params, rollout) -> log_probs [P, G, T]``, by the function that the update scores with.
        hand_over: ``params -> params`` for sampling: on its devices, and where updates go on meanwhile in memory of
            their own, since an update takes that of the parameters it is given.
    """

    params: Any
    generate: Sampler
    answer: Sampler
    old_log_probs: Compiled
    hand_over: Callable[[Params], Params]


def make_meshes(config: Config, devices: Sequence[Any] | None = None) -> Meshes:
    """Builds the meshes of a run: sampling takes the last devices where it has its own, updates the others.

    Args:
        config: the run; its ``mesh`` and ``rollout.mesh``.
        devices: the devices to use; None: all of them.

    Raises:
        ValueError: meshes that do not fit the devices, or an arrangement that several processes cannot have.
    """
    own, layout = config.rollout.mesh, config.rollout.layout
    if jax.process_count() > 1 and own is not None:
        raise ValueError(
            f"rollout.mesh={own} in {jax.process_count()} processes: a thread of each would launch rollouts beside "
            "updates in an order of its own, and the processes would wait for each other for ever; leave it out (each "
            "then samples where it updates), or use one process"
        )
    if own is not None and layout is not None:
        raise ValueError(
            f"rollout.mesh={own} gives sampling devices of its own and rollout.layout={layout} those of the updates; "
            "leave one of them out"
        )
    if own is None:
        mesh = make_mesh(config.mesh, devices)
        return Meshes(mesh, mesh if layout is None else _other_layout(mesh, layout))
    available = jax.devices() if devices is None else list(devices)
    count = mesh_size(own, "rollout.mesh")
    if count >= len(available):
        raise ValueError(
            f"rollout.mesh {own!r} takes {count} devices for sampling, but there are {len(available)} in all and "
            "updates need one at least; give it fewer, or leave it out to sample and update on the same devices"
        )
    return Meshes(make_mesh(config.mesh, available[:-count]), make_mesh(own, available[-count:]))


def _other_layout(mesh: Mesh, layout: str) -> Mesh:
    try:
        return other_layout(mesh, layout)
    except ValueError as error:
        raise ValueError(f"rollout.layout: {error}") from None


def places_on(mesh: Mesh) -> Places:
    """Returns where a model's arrays live on a mesh: groups stay on their devices."""
    return Places(pin_groups(mesh), group_multiple(mesh), group_by_group(mesh), vocabulary_parts(mesh))


def base_on(mesh: Mesh, parts: Parts) -> Base:
    """Returns what adapters adapt, on the devices of a mesh; nothing where the whole policy is trained."""
    adapters, load = parts.adapters, parts.load
    if adapters is None:
        return Base(lambda: None, None, None, lambda base, params: params)
    assert load is not None
    shapes = jax.eval_shape(lambda: parts.policy.init(key=jax.random.key(0)))
    places = shardings(mesh, parts.policy.logical_axes(), shapes)
    return Base(cache(lambda: load(places)), placed(shapes, places), places, adapters.merge)


def placed(shapes: Any, places: Any) -> Any:
    """Returns shapes with the devices that each array lives on."""
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), shapes, places
    )


def places_of(shapes: Any) -> Any:
    """Returns the devices that each array of a tree of shapes lives on."""
    return jax.tree.map(lambda leaf: leaf.sharding, shapes)


def sampler_on(
    mesh: Mesh, policy: Policy, parts: Parts, base: Base, params: Any, strategy: Any, size: int, slots: int | None
) -> Sampler:
    """Builds the sampler of a policy on a mesh.

    Args:
        mesh: the mesh.
        policy: the policy, its groups pinned to the mesh.
        parts: budget, end and padding.
        base: what adapters adapt, on the mesh, and whether parameters have to be laid out anew.
        params: shapes of the parameters, with their devices.
        strategy: how tokens are chosen.
        size: completions per prompt, G.
        slots: most completions that decode at a time.
    """
    ends, pad = parts.task.tokenizer.end_ids, parts.task.tokenizer.pad_id
    options = {"slots": slots, "shards": group_multiple(mesh)}
    generate = sampler(policy, strategy, size, parts.max_tokens, ends, pad, **options)
    groups = batch_sharding(mesh)

    def merged(frozen: Params | None, params: Params, prompts: Prompts, key: Any) -> Rollout:
        return generate(base.merge(frozen, params), prompts, key=key)

    places = (base.places, places_of(params), groups, None)
    return Sampler(Compiled(jax.jit(merged, in_shardings=places, out_shardings=groups), base), groups)


def samples_beside(config: Config) -> bool:
    """Returns whether a run samples beside its updates, ahead of them; several processes take turns, with a lag too."""
    return config.rollout.lag > 0 and hosts.count() == 1


def sampling_steps(config: Config, meshes: Meshes, parts: Parts, base: Base, params: Any) -> Sampling:
    """Builds what runs where completions are sampled.

    Args:
        config: the run.
        meshes: its devices.
        parts: what the configuration stands for, groups pinned to the mesh of the updates.
        base: what adapters adapt, on the mesh of the updates.
        params: shapes of what is trained, on the mesh of the updates.
    """
    rollout, mesh, policy, home = config.rollout, meshes.sampling, parts.policy, (base, params)
    on_mesh = policy if mesh is meshes.update else parts.policy_on(places_on(mesh))
    if meshes.apart:
        policy, base = on_mesh, base_on(mesh, parts)
        axes = (parts.policy if parts.adapters is None else parts.adapters).logical_axes()
        params = placed(params, shardings(mesh, axes, params))
    groups = batch_sharding(mesh if meshes.apart else meshes.update)

    def old_log_probs(frozen: Params | None, params: Params, rollout: Rollout) -> Float[Array, "P G T"]:
        score = score_with(policy.score, base.merge, config.rollout.temperature, frozen)
        return map_groups(lambda part: score(params, part).log_probs, rollout, config.update.micro_batches)

    scored = jax.jit(old_log_probs, in_shardings=(base.places, places_of(params), groups), out_shardings=groups)
    reading = base if meshes.apart or mesh is meshes.update else _laid_out(base, mesh, on_mesh, config.model.dtype)
    answering = (meshes.update, parts.policy, parts, *home) if meshes.apart else (mesh, on_mesh, parts, reading, params)
    return Sampling(
        params=params,
        generate=sampler_on(mesh, on_mesh, parts, reading, params, parts.strategy, rollout.group_size, rollout.slots),
        answer=sampler_on(*answering, greedy(), 1, rollout.slots),
        old_log_probs=Compiled(scored, base),
        hand_over=_hand_over(meshes, params, meanwhile=samples_beside(config)),
    )


def _laid_out(base: Base, mesh: Mesh, policy: Policy, dtype: str) -> Base:
    """Returns a base whose merged parameters are moved to where a mesh has them, matrices rounded to what is computed.

    They move once for all tokens that are decoded; scales of norms are computed with as they are.
    """
    axes = policy.logical_axes()
    shapes = jax.eval_shape(lambda: policy.init(key=jax.random.key(0)))
    ways = [shardings(mesh, axes, shapes, rules) for rules in (ON_THE_WAY, RULES)]

    def moved(leaf: Array, axes: tuple, *places: Any) -> Array:
        is_matrix = len([axis for axis in axes if axis != "layers"]) > 1
        leaf = leaf.astype(dtype) if is_matrix else leaf
        return reduce(jax.lax.with_sharding_constraint, places, leaf)

    def merge(frozen: Params | None, params: Params) -> Params:
        return jax.tree.map(moved, base.merge(frozen, params), axes, *ways)

    return base._replace(merge=merge)


def score_with(score: Callable, merge: Callable, temperature: float, base: Params | None) -> Score:
    """Binds base and temperature to a policy's scoring function."""

    def bound(params: Params, rollout: Rollout, *, entropy: bool = False, ref_params: Params | None = None):
        reference = None if ref_params is None else merge(base, ref_params)
        return score(merge(base, params), rollout, temperature, entropy=entropy, ref_params=reference)

    return bound


def _hand_over(meshes: Meshes, params: Any, *, meanwhile: bool) -> Callable[[Params], Params]:
    if meshes.apart:
        places = places_of(params)
        return lambda params: jax.device_put(params, places, may_alias=False)
    if not meanwhile:
        return lambda params: params  # the update takes their memory only once sampling has ended
    return jax.jit(lambda params: jax.tree.map(jnp.copy, params), out_shardings=places_of(params))
