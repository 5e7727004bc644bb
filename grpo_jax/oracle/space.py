"""All completions of a small policy, and all groups of them, counted before anything is computed."""

import itertools
import math
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

LIMIT = 2**18
"""Most completions, or groups, that are listed unless a caller asks for more."""
COUNTED = 10**18
"""Where counting stops: a number with thousands of digits takes minutes to find and tells nobody anything."""


class Space(NamedTuple):
    """Every completion, N of them, as NumPy arrays.

    Attributes:
        tokens: token ids ``[N, T]``, 0 where masked.
        mask: True up to and including the end token ``[N, T]``.
        nodes: number of the prefix before each token ``[N, T]``; meaningless where masked.
        edges: for every prefix and next token, one completion and position where it stands ``[E, 2]``.
        edge_nodes: the prefix of each edge ``[E]``, from 0 to the number of prefixes - 1.
    """

    tokens: np.ndarray
    mask: np.ndarray
    nodes: np.ndarray
    edges: np.ndarray
    edge_nodes: np.ndarray


class Groups(NamedTuple):
    """Groups of completions to sum over.

    Attributes:
        members: indices of completions ``[M, G]``.
        multiplicity: number of ordered groups that each stands for ``[M]``.
    """

    members: np.ndarray
    multiplicity: np.ndarray


def count_completions(vocabulary_size: int, max_tokens: int, end_ids: tuple[int, ...] = ()) -> int:
    """Returns how many completions there are, or `COUNTED` where there are more.

    The sum is sum_{t<T} (V-e)^(t-1) e + (V-e)^(T-1) V, for e end tokens.
    """
    ends = len(set(end_ids))
    finished, unfinished = 0, 1
    for _ in range(max_tokens - 1):
        finished, unfinished = finished + unfinished * ends, unfinished * (vocabulary_size - ends)
        if finished + unfinished > COUNTED:
            break
    return min(finished + unfinished * vocabulary_size, COUNTED)


def completions(vocabulary_size: int, max_tokens: int, end_ids: tuple[int, ...] = (), *, limit: int = LIMIT) -> Space:
    """Lists every completion: up to the first end token, or ``max_tokens`` long.

    Args:
        vocabulary_size: number of token ids, V.
        max_tokens: longest completion, T.
        end_ids: tokens that end a completion; none: all have ``max_tokens``.
        limit: most completions to list.

    Raises:
        ValueError: nothing to list, an end token out of range, or more than ``limit`` completions.
    """
    if vocabulary_size < 1 or max_tokens < 1:
        raise ValueError(f"oracle: vocabulary_size {vocabulary_size} and max_tokens {max_tokens} must be at least 1")
    if any(not 0 <= token < vocabulary_size for token in end_ids):
        raise ValueError(f"oracle: end_ids {end_ids} must lie in 0..{vocabulary_size - 1}, the policy's vocabulary")
    count = count_completions(vocabulary_size, max_tokens, end_ids)
    if count > limit:
        raise ValueError(
            f"oracle: {vocabulary_size} tokens and {max_tokens} positions make {_many(count)} completions, more than "
            f"{limit:,}; take a smaller vocabulary or length, raise limit, or estimate by Monte Carlo from samples: "
            "grpo_jax.oracle.certify_sampled"
        )
    tokens, nodes, finished, prefixes = _grow(vocabulary_size, max_tokens, end_ids)
    lengths = np.argmax(finished, axis=1) + 1
    mask = np.arange(max_tokens) < lengths[:, None]
    keys = np.where(mask, nodes * vocabulary_size + tokens, -1)
    found, first = np.unique(keys.ravel(), return_index=True)
    real = found >= 0
    edges = np.stack(np.divmod(first[real], max_tokens), axis=1)
    assert len(edges) == prefixes * vocabulary_size
    return Space(np.where(mask, tokens, 0).astype(np.int32), mask, nodes, edges, found[real] // vocabulary_size)


def _grow(vocabulary_size: int, max_tokens: int, end_ids: tuple[int, ...]) -> tuple:
    """Returns tokens, prefixes' numbers and ends ``[N, T]`` of every completion, and the number of prefixes."""
    open_tokens = open_nodes = np.zeros((1, 0), np.int64)
    rows, prefixes = [], 0
    for t in range(max_tokens):
        here = prefixes + np.arange(len(open_tokens))
        prefixes += len(here)
        following = np.tile(np.arange(vocabulary_size), len(here))[:, None]
        tokens = np.concatenate([np.repeat(open_tokens, vocabulary_size, axis=0), following], axis=1)
        nodes = np.concatenate(
            [np.repeat(open_nodes, vocabulary_size, axis=0), np.repeat(here, vocabulary_size)[:, None]], 1
        )
        ended = np.isin(tokens[:, -1], end_ids) | (t == max_tokens - 1)
        padding = ((0, 0), (0, max_tokens - t - 1))
        rows.append([np.pad(values[ended], padding) for values in (tokens, nodes)] + [np.full(ended.sum(), t)])
        open_tokens, open_nodes = tokens[~ended], nodes[~ended]
    tokens, nodes, last = (np.concatenate(part) for part in zip(*rows, strict=True))
    return tokens, nodes, np.arange(max_tokens) == last[:, None], prefixes


def count_multisets(count: int, group_size: int) -> int:
    """Returns how many groups there are irrespective of order, N + G - 1 choose G."""
    return math.comb(count + group_size - 1, group_size)


def sizes_in_words(count: int, group_sizes: Collection[int]) -> str:
    """Returns how much there is to sum over; raises ValueError where any of it is too much to list."""
    words = [f"{count:,} completions"]
    for size in sorted(group_sizes):
        groups = count_multisets(count, size)
        check_groups(groups, count, size)
        words.append(f"{groups:,} groups of {size}")
    return ", ".join(words)


def multisets(count: int, group_size: int, *, limit: int = LIMIT) -> Groups:
    """Lists every group irrespective of order, (N + G - 1 choose G) of them: for objectives symmetric in members.

    Args:
        count: number of completions, N.
        group_size: members of a group, G.
        limit: most groups to list.

    Raises:
        ValueError: more than ``limit`` groups.
    """
    check_groups(count_multisets(count, group_size), count, group_size, limit)
    members = np.array(list(itertools.combinations_with_replacement(range(count), group_size)), np.int32)
    multiplicity = np.full(len(members), float(math.factorial(group_size)))
    run = np.ones(len(members))
    for i in range(1, group_size):
        run = np.where(members[:, i] == members[:, i - 1], run + 1, 1)
        multiplicity /= run
    return Groups(members, multiplicity)


def ordered(count: int, group_size: int, *, limit: int = LIMIT) -> Groups:
    """Lists every ordered group, N^G of them; arguments and errors as in `multisets`."""
    check_groups(count**group_size, count, group_size, limit)
    members = np.array(list(itertools.product(range(count), repeat=group_size)), np.int32)
    return Groups(members, np.ones(len(members)))


def check_groups(groups: int, count: int, group_size: int, limit: int = LIMIT) -> None:
    """Raises ValueError where ``groups`` of ``group_size`` out of ``count`` completions are more than ``limit``."""
    if group_size < 1:
        raise ValueError(f"oracle: group_size is {group_size}; give at least 1")
    if groups > limit:
        raise ValueError(
            f"oracle: {_many(count)} completions make {_many(groups)} groups of {group_size}, more than {limit:,}; "
            "take a smaller group_size, vocabulary or length, raise limit, or estimate by Monte Carlo from samples: "
            "grpo_jax.oracle.certify_sampled"
        )


def _many(count: int) -> str:
    return f"{count:,}" if count < COUNTED else f"{COUNTED:,} or more"
