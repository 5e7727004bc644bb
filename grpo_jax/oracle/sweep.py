"""Certificates of many objectives on the same instances, one compiled function for all that differ in data alone."""

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from grpo_jax.models import prefix_tabular
from grpo_jax.oracle.catalogue import Configuration
from grpo_jax.oracle.exact import expectation
from grpo_jax.oracle.instance import Enumerated, Tables, enumerated, random_instance, tables
from grpo_jax.oracle.judgement import Record, judge
from grpo_jax.oracle.space import multisets

Evaluated = dict[int, list[tuple[bool, Tables]]]
"""By number of rewards: whether another policy samples, and the tables, for several instances."""


def evaluated(
    seeds: Sequence[int] = (0,), vocabulary_size: int = 3, max_tokens: int = 3, listed: Enumerated | None = None
) -> Evaluated:
    """Evaluates random instances, on-policy and off-policy, with one reward and with two.

    Args:
        seeds: one instance each.
        vocabulary_size: number of token ids, V, of the policy with free logits at every prefix; token 0 ends.
        max_tokens: longest completion, T.
        listed: another policy; then the two numbers are not read.

    Raises:
        ValueError: too many completions to list.
    """
    listed = listed or enumerated(prefix_tabular(vocabulary_size, max_tokens), max_tokens)
    found: Evaluated = {1: [], 2: []}
    for seed in seeds:
        for rewards in found:
            instance = random_instance(listed, seed, rewards)
            found[rewards] += [(off_policy, tables(instance, off_policy)) for off_policy in (False, True)]
    return found


def sweep(configurations: Iterable[Configuration], on: Evaluated) -> Iterator[tuple[Configuration, list[Record]]]:
    """Yields each configuration with its records: on-policy and off-policy of the first instance, of the second, ...

    Args:
        configurations: all with objectives that are symmetric in the members of a group, as all shipped ones are.
        on: what `evaluated` returned.

    Raises:
        ValueError: too many groups to list.
    """
    configurations = list(configurations)
    count = len(on[1][0][1].mask)
    groups = {size: multisets(count, size) for size in {each.group_size for each in configurations}}

    def certified(configuration: Configuration) -> list[Record]:
        size, built = configuration.group_size, configuration.objective
        records = []
        for off_policy, known in on[configuration.rewards]:
            found = expectation(built, known, groups[size], reduction=built.parts.reduction)
            records.append(judge(built, known, found, size, off_policy))
        return records

    # XLA compiles without holding Python's lock, and compiling is what takes the time. Neighbours with the same KL term
    # share what is compiled, so they stay together.
    together = [list(each) for _, each in itertools.groupby(configurations, lambda each: id(each.objective.parts.kl))]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for batch, found in zip(together, pool.map(lambda batch: list(map(certified, batch)), together), strict=True):
            yield from zip(batch, found, strict=True)
