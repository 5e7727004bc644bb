"""Listing completions and groups: counts, prefixes, multiplicities, refusals."""

import itertools

import numpy as np
import pytest

from grpo_jax.oracle import space as spaces
from tests.references import tabular


def as_tuples(space):
    return [tuple(int(v) for v in row[keep]) for row, keep in zip(space.tokens, space.mask, strict=True)]


def test_the_listed_completions_are_those_of_a_plain_loop():
    space = spaces.completions(tabular.VOCABULARY, tabular.WIDTH, (tabular.END,))
    assert sorted(as_tuples(space)) == sorted(tabular.COMPLETIONS)


@pytest.mark.parametrize(
    ("vocabulary", "length", "ends"), [(2, 5, ()), (3, 4, (1,)), (4, 3, (0, 3)), (1, 3, ()), (3, 1, (2,))]
)
def test_completions_are_counted_before_they_are_listed(vocabulary, length, ends):
    space = spaces.completions(vocabulary, length, ends)
    assert len(space.tokens) == spaces.count_completions(vocabulary, length, ends) == len(set(as_tuples(space)))


def test_every_prefix_has_a_number_and_every_next_token_one_edge():
    space = spaces.completions(3, 3, (0,))
    prefix_of = {}
    for n, completion in enumerate(as_tuples(space)):
        for t in range(len(completion)):
            assert prefix_of.setdefault(space.nodes[n, t], completion[:t]) == completion[:t]
    assert len(set(prefix_of.values())) == len(prefix_of) == space.edge_nodes.max() + 1
    found = {(space.edge_nodes[e], as_tuples(space)[n][t]) for e, (n, t) in enumerate(space.edges)}
    assert found == set(itertools.product(prefix_of, range(3)))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_multisets_stand_for_all_ordered_groups(size):
    groups, plain = spaces.multisets(5, size), spaces.ordered(5, size)
    sizes = {}
    for row in plain.members:
        sizes[tuple(sorted(row))] = sizes.get(tuple(sorted(row)), 0) + 1
    assert {tuple(row): m for row, m in zip(groups.members, groups.multiplicity, strict=True)} == sizes
    assert np.sum(groups.multiplicity) == 5**size


def test_too_much_is_refused_with_the_count_and_the_alternative():
    with pytest.raises(ValueError, match=r"1,048,576 completions.*Monte Carlo"):
        spaces.completions(2, 20)
    with pytest.raises(ValueError, match=r"1,000,000,000 groups of 3.*Monte Carlo"):
        spaces.ordered(1000, 3)
    with pytest.raises(ValueError, match=r"1,000,000,000,000,000,000 or more completions"):
        spaces.completions(100_000, 100_000, (0,))
    with pytest.raises(ValueError, match=r"1,000,000,000,000,000,000 or more groups"):
        spaces.multisets(100_000, 100_000)
    with pytest.raises(ValueError, match="end_ids"):
        spaces.completions(3, 2, (3,))
