"""What a policy knows: held-out problems of every kind, and how far it is from its reference."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from experiments.small_scale import sums
from experiments.small_scale.setting import Setting, over_seeds, sampler_of, score_of
from experiments.small_scale.sums import Problems
from grpo_jax.losses import Objective
from grpo_jax.types import Params, Prompts


class World(NamedTuple):
    """What a run reads besides parameters: problems to train on, and held-out ones of every kind.

    KL and entropy are measured on those of the kind ``main``.
    """

    trained: Problems
    held_out: dict[str, Problems]
    main: str = "sums"


def world(setting: Setting) -> World:
    """Builds the problems; the same for every seed."""
    held_out = {kind: sums.problems(kind, True, setting.evaluated) for kind in sums.KINDS}
    return World(sums.problems("sums", False), held_out)


@functools.lru_cache
def looks_of(setting: Setting, build: Callable[[Setting], World] = world) -> tuple[World, Callable]:
    """Returns the problems and the compiled evaluation of all snapshots, before and during training."""

    known = build(setting)

    def one(params: Params, snapshots: Params, key: Key[Array, ""], held_out: dict[str, Problems]) -> dict[str, Array]:
        everything = jax.tree.map(lambda first, later: jnp.concatenate([first[None], later]), params, snapshots)
        return jax.lax.map(lambda now: look(setting, now, params, held_out, known.main, key=key), everything)

    return known, over_seeds(one, setting)


def look(
    setting: Setting,
    params: Params,
    ref_params: Params,
    held_out: dict[str, Problems],
    main: str = "sums",
    *,
    key: Key[Array, ""],
) -> dict[str, Float[Array, ""]]:
    """Evaluates a policy on held-out problems.

    Args:
        setting: see there.
        params: of the policy.
        ref_params: of the reference.
        held_out: problems by kind.
        main: the kind on which KL and entropy are measured.
        key: consumed; with the same one the reference's completions are the same.

    Returns:
        Scalars by name. accuracy_KIND: mean probability of the right completion, exactly what sampling at temperature 1
        gets right on average. reverse_kl and forward_kl: KL(pi||p) and KL(p||pi), nats per completion: sums of
        the exact KL of each next token over prefixes that pi, or p, sampled. entropy: nats per completion, likewise.
    """
    score, found = score_of(setting), {}
    for kind, asked in held_out.items():
        right = sums.as_rollout(asked.prompts, asked.right, asked.right_mask)
        found[f"accuracy_{kind}"] = jnp.mean(jnp.exp(jnp.sum(score(params, right).log_probs, axis=-1)))
    asked = held_out[main]
    sample = sampler_of(setting, 4, asked.right.shape[1])
    ours, theirs = (sample(each, asked.prompts, key=key) for each in (params, ref_params))
    scores = score(params, ours, entropy=True, ref_params=ref_params)
    found["reverse_kl"] = jnp.mean(jnp.sum(scores.full_kl, axis=-1))
    found["entropy"] = jnp.mean(jnp.sum(scores.entropy, axis=-1))
    found["forward_kl"] = jnp.mean(jnp.sum(score(ref_params, theirs, ref_params=params).full_kl, axis=-1))
    return found


def kl_on(kind: str) -> Callable[..., Callable[..., dict[str, Array]]]:
    """Builds what measures, besides, KL(pi||p) on held-out problems of one more kind: ``reverse_kl_KIND``, in nats."""

    def looks(objective: Objective, setting: Setting) -> Callable[..., dict[str, Array]]:
        asked, compiled = world(setting).held_out[kind], _kl_of(setting)

        def measure(params: Params, snapshots: Params, keys: Array, beta: Array) -> dict[str, Array]:
            return {f"reverse_kl_{kind}": compiled(params, snapshots, keys, asked.prompts)}

        return measure

    return looks


@functools.lru_cache
def _kl_of(setting: Setting) -> Callable:
    sample, score = sampler_of(setting, 4), score_of(setting)

    def one(params: Params, snapshots: Params, key: Key[Array, ""], prompts: Prompts) -> Float[Array, " K"]:
        def at(now: Params) -> Float[Array, ""]:
            scores = score(now, sample(now, prompts, key=key), ref_params=params)
            return jnp.mean(jnp.sum(scores.full_kl, axis=-1))

        return jax.lax.map(
            at, jax.tree.map(lambda first, later: jnp.concatenate([first[None], later]), params, snapshots)
        )

    return over_seeds(one, setting)
