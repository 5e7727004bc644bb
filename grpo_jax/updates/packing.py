"""Completions of a group laid end to end, so that scoring them costs their tokens and not their padding."""

import numpy as np

from grpo_jax.types import Packing, Rollout


def pack(rollout: Rollout, widths: int) -> Rollout:
    """Lays the completions of every group into bins of one common size, first fit, longest first.

    The width S is one of ``widths`` sizes, the multiples of ``ceil(T / widths)``; of those that hold the longest
    completion, the one with the fewest positions B S over all. B is the most bins that a group needs, rounded up to a
    multiple of ``ceil(G / 8)``. So no more than ``widths * min(G, 8)`` shapes ever compile, and in a run far fewer. A
    function of the mask alone: a resumed run packs as it did.

    Args:
        rollout: completions ``[P, G, T]`` of NumPy arrays, on the host.
        widths: how many sizes S may have, >= 1. With more, bins fit closer and compile more often.

    Returns:
        The rollout with its packing ``[P, B, S]``. Masked positions before a completion's last unmasked one are read
        as context and stand in it; groups without any token are empty.

    Raises:
        ValueError: for widths below 1.
    """
    if widths < 1:
        raise ValueError(f"pack: widths is {widths}; give at least 1")
    lengths = lengths_of(np.asarray(rollout.mask))
    budget = rollout.mask.shape[2]
    unit, every = -(-budget // widths), -(-lengths.shape[1] // 8)
    best = None
    for width in range(unit, budget + unit, unit):
        width = min(width, budget)
        if width < lengths.max(initial=1):
            continue
        bins, offsets = first_fit(lengths, width)
        used = 1 + int(np.max(np.where(lengths > 0, bins, 0), initial=0))
        height = min(-(-used // every) * every, lengths.shape[1])
        if best is None or height * width < best[0] * best[1]:
            best = height, width, bins, offsets
    assert best is not None
    return rollout._replace(packing=_placed(lengths, *best))


def lengths_of(mask: np.ndarray) -> np.ndarray:
    """Returns the positions of each completion up to its last unmasked one ``[P, G]``; 0 where there is none."""
    return np.max(np.where(mask, np.arange(1, mask.shape[2] + 1), 0), axis=2, initial=0)


def first_fit(lengths: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Gives each completion, longest first, to the first of its group's bins that has room for it.

    Args:
        lengths: ``[P, G]``, none above width.
        width: positions of a bin.

    Returns:
        Number of the bin, and first position in it, of each completion ``[P, G]``.
    """
    groups, members = lengths.shape
    rows = np.arange(groups)
    bins, offsets = np.zeros(lengths.shape, int), np.zeros(lengths.shape, int)
    room = np.full((groups, members), width)
    for member in np.argsort(-lengths, axis=1, kind="stable").T:
        length = lengths[rows, member]
        chosen = np.argmax(room >= length[:, None], axis=1)
        bins[rows, member], offsets[rows, member] = chosen, width - room[rows, chosen]
        room[rows, chosen] -= length
    return bins, offsets


def _placed(lengths: np.ndarray, height: int, width: int, bins: np.ndarray, offsets: np.ndarray) -> Packing:
    groups, members, steps = np.nonzero(np.arange(lengths.max(initial=0)) < lengths[..., None])
    places = groups, bins[groups, members], offsets[groups, members] + steps
    shape = (lengths.shape[0], height, width)
    packing = Packing(np.zeros(shape, np.int32), np.zeros(shape, np.int32))  # pyright: ignore[reportArgumentType]
    packing.members[places], packing.steps[places] = members + 1, steps  # pyright: ignore
    return packing
