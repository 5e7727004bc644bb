"""Accuracy on problems never trained on, and completions to look at."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Int, Key

from grpo_jax.experience import Generate, sample
from grpo_jax.metrics import Proportion, Sample, proportion
from grpo_jax.rewards import score
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
    problems: list[Example] = []
    completions: list[str] = []
    for start in range(0, total, rows):
        part = task.examples(split, start, min(rows, total - start))
        # A greedy sampler reads no key; a random one gets its own noise for each part.
        rollout = sample(task, generate, params, part, rows, key=jax.random.key(start))
        problems += part
        completions += decode(task.tokenizer, rollout)[: len(part)]
    prompts, answers = for_rewards(problems, completions)
    rewards = score([task.reward], None, prompts, answers, columns_of(problems), 1)[:, 0]
    samples = [
        Sample(problem.prompt, completion, None if np.isnan(reward) else reward, _expected(task, problem))
        for problem, completion, reward in zip(problems[:shown], completions, rewards.tolist(), strict=False)
    ]
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
        part = task.examples(split, start, min(rows, total - start))
        rewards: list[np.ndarray] = []
        while sum(found.shape[1] for found in rewards) < samples:
            own = jax.random.fold_in(jax.random.fold_in(key, start), len(rewards))
            rollout = sample(task, generate, params, part, rows, key=own)
            size = rollout.tokens.shape[1]
            completions = decode(task.tokenizer, rollout)[: len(part) * size]
            prompts, answers = for_rewards(part, completions)
            rewards.append(score([task.reward], None, prompts, answers, columns_of(part), size))
        right.append(np.sum(np.concatenate(rewards, axis=1)[:, :samples] >= right_from, axis=1))
    return np.concatenate(right)


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
