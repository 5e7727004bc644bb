"""What all runs of an experiment share: the decoder's shape, the sizes of everything, and seeds mapped over."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

import grpo_jax as gj
from experiments.small_scale import sums


class Setting(NamedTuple):
    """What all runs of an experiment have in common.

    Attributes:
        layers, width, heads: shape of the decoder; its feed-forward network is twice as wide, and all heads read
            the same keys and values.
        imitated: steps of the warm start, each on ``demonstrations``.
        demonstrations: of a step.
        slips: share of demonstrations that forget every carry.
        imitation_rate: Adam's learning rate in the warm start.
        prompts: groups of an update.
        group: completions of a group.
        updates: of a run.
        every: updates between two evaluations; divides ``updates``.
        learning_rate: Adam's, after five updates of warm-up; the gradient's norm is clipped at 1.
        evaluated: held-out problems of each kind.
        at_once: seeds that are trained side by side under vmap, the others after them. On CPU 1 is the quickest
            (batched products of small matrices are slow there), on accelerators as many as there are.
    """

    layers: int = 2
    width: int = 32
    heads: int = 4
    imitated: int = 1000
    demonstrations: int = 192
    slips: float = 0.7
    imitation_rate: float = 4e-3
    prompts: int = 32
    group: int = 8
    updates: int = 120
    every: int = 20
    learning_rate: float = 1e-3
    evaluated: int = 128
    at_once: int = 1


SMOKE = Setting(
    layers=1, width=16, heads=2, imitated=20, demonstrations=40, prompts=4, group=4, updates=4, every=2, evaluated=8
)
"""Seconds, and learns nothing."""


def policy_of(setting: Setting) -> gj.models.Policy:
    """Builds the decoder."""
    return gj.models.decoder(
        gj.models.DecoderConfig(
            vocabulary_size=len(sums.SYMBOLS),
            layers=setting.layers,
            width=setting.width,
            heads=setting.heads,
            kv_heads=1,
            head_dim=setting.width // setting.heads,
            hidden=2 * setting.width,
        )
    )


def score_of(setting: Setting) -> Callable:
    """Returns the decoder's scoring function at temperature 1."""
    return functools.partial(policy_of(setting).score, temperature=1.0)


def sampler_of(setting: Setting, group: int, max_tokens: int = sums.MAX_TOKENS) -> Callable:
    """Returns the sampler of groups of that many completions, of at most so many tokens, at temperature 1."""
    chosen = gj.rollouts.categorical()
    return gj.rollouts.sampler(policy_of(setting), chosen, group, max_tokens, (sums.END,), sums.END)


def over_seeds(function: Callable, setting: Setting) -> Callable:
    """Maps a function of one seed's arguments over leading axes ``[S]`` and compiles it; the last is shared."""

    def mapped(*arguments: Any) -> Any:
        *each, shared = arguments
        size = min(setting.at_once, jax.tree.leaves(each)[0].shape[0])
        return jax.lax.map(lambda one: function(*one, shared), tuple(each), batch_size=size if size > 1 else None)

    return jax.jit(mapped)
