"""Completions laid end to end: each stands once, whole and in order, in as few positions as first fit gives."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax.types import Packing, Prompts, Rollout
from grpo_jax.updates import pack, pad_groups, split_groups
from grpo_jax.updates.packing import first_fit, lengths_of


def rollout_of(mask):
    """A rollout in which every token is another number."""
    mask = np.asarray(mask, bool)
    prompts = Prompts(np.zeros((len(mask), 1), np.int32), np.ones((len(mask), 1), bool))
    tokens = np.arange(mask.size, dtype=np.int32).reshape(mask.shape)
    return Rollout(prompts, tokens, mask, np.zeros(mask.shape, np.float32), mask.any(-1))


def ragged(lengths, budget):
    return rollout_of(np.arange(budget) < np.asarray(lengths)[..., None])


def by_loops(rollout):
    """What stands in each bin, read back token by token: {(group, member): [step, ...]}, in order."""
    found = {}
    members, steps = (np.asarray(leaf) for leaf in rollout.packing)
    for group, row, place in np.ndindex(members.shape):
        if members[group, row, place]:
            key = (group, members[group, row, place] - 1)
            found.setdefault(key, []).append((row, place, steps[group, row, place]))
    return found


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 12), st.integers(1, 9))
def test_every_completion_stands_once_in_one_bin_as_one_run_whatever_the_mask(seed, members, budget, widths):
    random = np.random.default_rng(seed)
    mask = random.random((3, members, budget)) < random.random()
    packed = pack(rollout_of(mask), widths).check()
    found = by_loops(packed)
    for (group, member), places in found.items():
        last = np.flatnonzero(mask[group, member])[-1]
        row, start, _ = places[0]
        assert places == [(row, start + step, step) for step in range(last + 1)]
    assert set(found) == {(group, member) for group, member in np.argwhere(mask.any(-1)).tolist()}
    _, bins, width = packed.packing.members.shape
    assert bins <= members
    assert width in {min(number * -(-budget // widths), budget) for number in range(1, widths + 1)}


def test_the_longest_go_first_each_to_the_first_bin_with_room():
    bins, offsets = first_fit(np.array([[2, 5, 3, 4, 1]]), 6)
    # 5 | 4 | 3 beside nothing: a third bin | 2 to the second bin | 1 to the first
    assert bins.tolist() == [[1, 0, 2, 1, 0]]
    assert offsets.tolist() == [[4, 0, 0, 0, 5]]


@pytest.mark.parametrize(
    ("lengths", "budget", "widths", "shape"),
    [
        ([[4, 4, 4, 4]], 8, 8, (4, 4)),  # 16 positions either way: the narrower bins, whose tokens read less
        ([[3, 3, 3, 3]], 8, 1, (2, 8)),  # only one width
        ([[3, 3, 3, 3]], 8, 8, (4, 3)),  # all as long: what lies behind the longest is cut off
        ([[8, 1, 1, 1]], 8, 4, (2, 8)),  # the longest fills a bin of its own
        ([[2, 2, 1, 1], [5, 1, 1, 1]], 8, 8, (1, 8)),  # one shape for all groups
        ([[0, 0, 0, 0]], 8, 4, (1, 2)),  # nothing at all
        ([[8] * 4], 8, 4, (4, 8)),  # nothing to gain
        ([[2] * 16], 8, 1, (4, 8)),
        ([[2] * 18], 8, 1, (6, 8)),  # five bins, rounded up to a multiple of ceil(18 / 8)
    ],
)
def test_the_shape_with_the_fewest_positions_wins(lengths, budget, widths, shape):
    assert pack(ragged(lengths, budget), widths).packing.members.shape[1:] == shape


def test_few_shapes_occur_however_the_lengths_fall():
    random = np.random.default_rng(0)
    shapes = set()
    for _ in range(200):
        lengths = np.clip(random.geometric(1 / 64, (8, 8)), 1, 256)
        shapes.add(pack(ragged(lengths, 256), 4).packing.members.shape[1:])
    assert {width for _, width in shapes} <= {64, 128, 192, 256}
    assert len(shapes) <= 8  # of 4 * 8 that there could be


def test_context_between_scored_tokens_stands_in_the_bin_and_padding_does_not():
    mask = [[[True, False, True, False], [False, True, False, False]]]
    packed = pack(rollout_of(mask), 4)
    assert lengths_of(np.array(mask)).tolist() == [[3, 2]]
    assert packed.packing.members.tolist() == [[[1, 1, 1], [2, 2, 0]]]
    assert packed.packing.steps.tolist() == [[[0, 1, 2], [0, 1, 0]]]


def test_padding_groups_and_micro_batches_take_the_packing_with_them():
    packed = pack(ragged([[1, 4], [2, 2], [4, 4]], 4), 2)
    parts = split_groups(pad_groups(packed, 4), 2)
    assert parts.packing.members.shape == (2, 2, *packed.packing.members.shape[1:])
    for part in range(2):
        one = jax.tree.map(lambda leaf, part=part: np.asarray(leaf[part]), parts)
        assert one.packing.holds(one.mask).all()
    assert not np.any(parts.packing.members[1, 1])


def spoilt(packing, **changes):
    """The packing [1, 2, 4] of two completions of three tokens with some entries of its first row exchanged."""
    leaves = {name: np.array(leaf) for name, leaf in packing._asdict().items()}
    for name, values in changes.items():
        for place, value in values.items():
            leaves[name][0, 0, place] = value
    return Packing(**leaves)


WRONG = {
    "a token is missing": {"members": {2: 0}},
    "a completion is missing": {"members": {0: 0, 1: 0, 2: 0}},
    "one completion lies over another": {"members": {0: 2, 1: 2, 2: 2}},
    "a token stands twice": {"members": {3: 1}, "steps": {3: 2}},
    "tokens are out of order": {"steps": {0: 1, 1: 0}},
    "a completion begins late": {"steps": {0: 1, 1: 2, 2: 3}},
    "there is no such member": {"members": {3: 9}},
    "there is no such token": {"members": {3: 1}, "steps": {3: 99}},
    "a number is negative": {"members": {3: -1}},
    "a step is negative": {"members": {3: 1}, "steps": {3: -1}},
}


@pytest.mark.parametrize("changes", WRONG.values(), ids=WRONG)
def test_a_packing_that_loses_or_repeats_tokens_is_refused(changes):
    rollout = pack(ragged([[3, 3]], 4), 1)
    assert rollout.packing.members.shape == (1, 2, 4)
    wrong = rollout._replace(packing=spoilt(rollout.packing, **changes))
    with pytest.raises(ValueError, match=r"every completion of the groups \[0\] once, whole and in order"):
        wrong.check()


def test_a_packing_of_another_mask_or_another_number_of_groups_is_refused():
    rollout = pack(ragged([[1, 2], [3, 3]], 4), 1)
    longer = rollout._replace(mask=np.ones((2, 2, 4), bool))
    with pytest.raises(ValueError, match=r"the groups \[0, 1\]"):
        longer.check()
    with pytest.raises(AssertionError):
        rollout._replace(packing=jax.tree.map(lambda leaf: leaf[:1], rollout.packing)).check()
    with pytest.raises(AssertionError):
        rollout._replace(packing=rollout.packing._replace(steps=rollout.packing.steps[..., :-1])).check()


def test_a_number_of_widths_below_one_is_refused():
    with pytest.raises(ValueError, match="widths is 0; give at least 1"):
        pack(ragged([[1]], 2), 0)
