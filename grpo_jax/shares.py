"""Problems answered by a policy, each process of a run reading and decoding its share of them."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Key

from grpo_jax import hosts
from grpo_jax.compiled import Sampler
from grpo_jax.tasks import Example, Task, decode, encode_prompts
from grpo_jax.types import Params, Rollout

CHANNEL = "experience"
"""Where processes talk while they collect completions, also beside the training loop."""
Generate = Callable[..., Rollout]
"""``(params, prompts, *, key) -> Rollout``, compiled and placed on the mesh."""


class Share(NamedTuple):
    """What a process has to do with a batch of problems: all of it, where it is the only one.

    Attributes:
        first: the first problem that it reads.
        last: the one after the last that it reads.
        scorers: which process decodes and scores each problem ``[P]``.
        scored: the problems that this one decodes and scores, ascending.
    """

    first: int
    last: int
    scorers: np.ndarray
    scored: np.ndarray


class Asked(NamedTuple):
    """Problems and what was sampled for them.

    Attributes:
        rollout: the completions of all problems ``[P, G, T]``, on the host, without padding groups.
        share: this process's share of the problems.
        scored: the completions of those that it scores.
        problems: those.
        texts: their completions, group by group.
    """

    rollout: Rollout
    share: Share
    scored: Rollout
    problems: list[Example]
    texts: list[str]


def ask(
    task: Task,
    generate: Generate,
    params: Params,
    split: str,
    start: int,
    groups: int,
    rows: int,
    *,
    key: Key[Array, ""],
) -> Asked:
    """Samples completions of problems; every process has to call it.

    Args:
        task: the problems.
        generate: the sampler.
        params: the policy's parameters.
        split: of which problems.
        start: the first of them.
        groups: how many, P.
        rows: groups of the compiled sampler, at least P; the rest is padding.
        key: consumed.

    Raises:
        ValueError: a prompt is longer than the task's limit.
    """
    share = share_of(generate, rows, groups)
    with hosts.together(CHANNEL):
        read = task.examples(split, start + share.first, share.last - share.first)
        texts = [example.prompt for example in read]
        prompts = encode_prompts(task.tokenizer, texts, task.max_prompt_tokens, rows - share.first)
        prompts = jax.tree.map(lambda leaf: np.pad(leaf, [(share.first, 0), (0, 0)]), prompts)
    rollout = jax.tree.map(lambda leaf: leaf[:groups], hosts.whole(generate(params, prompts, key=key)))
    scored = jax.tree.map(lambda leaf: leaf[share.scored], rollout)
    problems = [read[row - share.first] for row in share.scored]
    with hosts.together(CHANNEL):
        return Asked(rollout, share, scored, problems, decode(task.tokenizer, scored))


def share_of(generate: Generate, rows: int, groups: int) -> Share:
    """Returns this process's share of a batch.

    Args:
        generate: the sampler, which knows where its rows live; a function that does not know it has them all here.
        rows: rows of the compiled arrays.
        groups: the first of them, which are no padding.
    """
    if not isinstance(generate, Sampler) or hosts.count() == 1:
        return Share(0, groups, np.zeros(groups, np.int32), np.arange(groups))
    first, last = hosts.held_rows(generate.groups, rows)
    scorers = hosts.scored_by(generate.groups, rows)[:groups]
    return Share(min(first, groups), min(last, groups), scorers, np.flatnonzero(scorers == hosts.index()))


def everyones(share: Share, values: np.ndarray) -> np.ndarray:
    """Returns the numbers of all problems ``[P, ...]`` from those that each process found for its own."""
    if hosts.count() == 1:
        return values
    filled = np.zeros((len(share.scorers), *values.shape[1:]), values.dtype)
    filled[share.scored] = values
    return hosts.gathered(filled, CHANNEL)[share.scorers, np.arange(len(share.scorers))]
