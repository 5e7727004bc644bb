"""Accuracy on problems never trained on, and completions to look at."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Int, Key

from grpo_jax import hosts
from grpo_jax.metrics import Proportion, Sample, proportion
from grpo_jax.rewards import Rewards, score_part, some_scored
from grpo_jax.shares import CHANNEL, Asked, Generate, Share, ask, everyones
from grpo_jax.tasks import Example, Task, columns_of, decode, for_rewards
from grpo_jax.types import Params


class Evaluation(NamedTuple):
    """What a policy does on one split.

    Attributes:
        accuracy: mean reward of the scorable completions, one greedy completion per problem.
        examples: problems.
        samples: the first completions, to be read.
        interval: the same mean with its 95 % interval; None where a reward lies outside [0, 1].
    """

    accuracy: float
    examples: int
    samples: list[Sample]
    interval: Proportion | None = None


def evaluate(
    task: Task, generate: Generate, params: Params, split: str, examples: int, rows: int, *, shown: int = 10
) -> Evaluation:
    """Scores one completion for each of the first problems of a split.

    Args:
        task: the problems and their reward.
        generate: a sampler of one completion per prompt, greedy for an accuracy that does not depend on noise.
        params: the policy's parameters.
        split: which problems.
        examples: most problems; a smaller split is taken whole.
        rows: prompts per call of the sampler.
        shown: samples to keep.

    Raises:
        ValueError: an unknown split, or no example asked for.
    """
    total = _counted(task, split, examples)
    parts = range(0, total, rows)
    # A greedy sampler reads no key; a random one gets its own noise for each part.
    asked = [
        ask(task, generate, params, split, start, min(rows, total - start), rows, key=jax.random.key(start))
        for start in parts
    ]
    rewards = _scored(task, asked, parts, 1)[:, 0]
    with hosts.together(CHANNEL):
        samples = _samples(task, split, asked, rewards[:shown]) if hosts.is_writer() else []
    known = rewards[~np.isnan(rewards)].astype(np.float64)
    bounded = np.all((known >= 0) & (known <= 1))
    return Evaluation(float(np.nanmean(rewards)), total, samples, proportion(known) if bounded else None)


def right_of_samples(
    task: Task,
    generate: Generate,
    params: Params,
    split: str,
    examples: int,
    rows: int,
    samples: int,
    *,
    key: Key[Array, ""],
    right_from: float = 1.0,
) -> Int[np.ndarray, " P"]:
    """Counts the right ones among several random completions of each of the first problems of a split.

    Args:
        task: the problems and their reward.
        generate: a random sampler of any number of completions per prompt.
        params: the policy's parameters.
        split: which problems.
        examples: most problems, P; a smaller split is taken whole.
        rows: prompts per call of the sampler.
        samples: completions of each problem, n.
        key: consumed.
        right_from: reward from which a completion is right; one that cannot be scored is not.

    Returns:
        How many of the n completions of each problem are right, for `grpo_jax.metrics.pass_at_k`.

    Raises:
        ValueError: an unknown split, or no example or sample asked for.
    """
    if samples < 1:
        raise ValueError(f"right_of_samples: {samples} samples of each problem; give at least 1")
    total = _counted(task, split, examples)
    right = []
    for start in range(0, total, rows):
        count, rewards = min(rows, total - start), []
        while sum(found.shape[1] for found in rewards) < samples:
            own = jax.random.fold_in(jax.random.fold_in(key, start), len(rewards))
            asked = ask(task, generate, params, split, start, count, rows, key=own)
            rewards.append(_scored(task, [asked], [0], asked.rollout.tokens.shape[1]))
        right.append(np.sum(np.concatenate(rewards, axis=1)[:, :samples] >= right_from, axis=1))
    return np.concatenate(right)


def _scored(task: Task, asked: Sequence[Asked], starts: Sequence[int], size: int) -> np.ndarray:
    """Returns the rewards of all completions ``[P, G]``; the reward function is called once, also for several parts."""
    problems = [problem for part in asked for problem in part.problems]
    texts = [text for part in asked for text in part.texts]
    with hosts.together(CHANNEL):
        prompts, answers = for_rewards(problems, texts)
        own = score_part([task.reward], prompts, answers, columns_of(problems), size)
    scorers = np.concatenate([part.share.scorers for part in asked])
    scored = np.concatenate([start + part.share.scored for start, part in zip(starts, asked, strict=True)])
    share = Share(0, len(scorers), scorers, scored)
    return some_scored(Rewards(everyones(share, own.values), own.names)).values[..., 0]


def _samples(task: Task, split: str, asked: Sequence[Asked], rewards: np.ndarray) -> list[Sample]:
    """Returns the first problems with their completions, as many as there are rewards."""
    problems = task.examples(split, 0, len(rewards))
    texts: list[str] = []
    for part in asked:
        left = len(rewards) - len(texts)
        texts += decode(task.tokenizer, jax.tree.map(lambda leaf, left=left: leaf[:left], part.rollout))
    return [
        Sample(problem.prompt, text, None if np.isnan(reward) else reward, _expected(task, problem))
        for problem, text, reward in zip(problems, texts, rewards.tolist(), strict=True)
    ]


def _counted(task: Task, split: str, examples: int) -> int:
    """Returns how many problems of a split there are to take."""
    if split not in task.splits:
        raise ValueError(f"unknown split {split!r} of {task.name}; choose one of {', '.join(task.splits)}")
    if examples < 1:
        raise ValueError(f"evaluate: {examples} examples of {split!r}; give at least 1")
    size = task.splits[split]
    return examples if size is None else min(examples, size)


def _expected(task: Task, problem: Example) -> str | None:
    """Returns the right completion, or else what the data has as the answer."""
    if task.demonstration is not None:
        return task.demonstration(problem)
    found = next((problem.columns[name] for name in ("answer", "solution") if name in problem.columns), None)
    return None if found is None else str(found)


def out_of_domain(task: Task) -> list[str]:
    """Returns the splits that are neither trained on nor like those that are."""
    return [split for split in task.splits if split not in ("train", "validation")]


def described(accuracies: Mapping[str, float]) -> str:
    """Returns accuracies as text: "validation 0.52, longer 0.01"."""
    return ", ".join(f"{split} {accuracy:.3f}" for split, accuracy in accuracies.items())
