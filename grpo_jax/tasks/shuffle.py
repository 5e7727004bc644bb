"""Randomness as a pure function of the index: hashes and keyed permutations, vectorised on the host."""

import numpy as np
from jaxtyping import Int, UInt64

_ROUNDS = 4


def _mix(values: UInt64[np.ndarray, " N"]) -> UInt64[np.ndarray, " N"]:
    """Scrambles 64 bits (the finaliser of SplitMix64; multiplication wraps)."""
    values = (values ^ (values >> 30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> 27)) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> 31)


def hashed(*words: int | Int[np.ndarray, "..."] | UInt64[np.ndarray, "..."]) -> UInt64[np.ndarray, " N"]:
    """Hashes words, element by element.

    Args:
        words: non-negative integers, or arrays ``[N]`` of them. The order counts.

    Returns:
        One hash per element, uniform on 64 bits; one element when all words are plain integers.

    References:
        Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators" (the mixing constants).
    """
    state = np.zeros(1, np.uint64)
    for word in words:
        state = _mix((state + np.uint64(0x9E3779B97F4A7C15)) ^ np.atleast_1d(np.asarray(word, np.uint64)))
    return state


def _network(values: UInt64[np.ndarray, " N"], half: int, keys: UInt64[np.ndarray, " N"]) -> UInt64[np.ndarray, " N"]:
    """A balanced Feistel network: for every key a permutation of ``range(2 ** (2 * half))``."""
    low = np.uint64((1 << half) - 1)
    left, right = values >> np.uint64(half), values & low
    for turn in range(_ROUNDS):
        left, right = right, left ^ (hashed(keys, turn, right) & low)
    return (left << np.uint64(half)) | right


def permuted(indices: Int[np.ndarray, " N"], size: int, keys: UInt64[np.ndarray, "..."]) -> Int[np.ndarray, " N"]:
    """Looks indices up in a permutation of ``range(size)`` that is never written down.

    A Feistel network permutes the next power of four; values outside the range are sent through it again until they
    fall inside (cycle walking), which keeps it a permutation.

    Args:
        indices: places to look up ``[N]``, in ``[0, size)``.
        size: length of the permutation, at most 2^62.
        keys: which permutation, ``[N]`` or ``[1]``; made by ``hashed``.

    Returns:
        What stands at those places ``[N]``, int64.

    References:
        Black and Rogaway 2002, "Ciphers with arbitrary finite domains", section 3.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = np.broadcast_to(keys, indices.shape)
    values = _network(indices.astype(np.uint64), half, keys)
    while (outside := np.flatnonzero(values >= np.uint64(size))).size:
        values[outside] = _network(values[outside], half, keys[outside])
    return values.astype(np.int64)


def unordered_pair(ranks: Int[np.ndarray, " N"]) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " N"]]:
    """Turns ranks into pairs ``0 <= low <= high``, with ``rank = high (high + 1) / 2 + low``.

    Args:
        ranks: ranks ``[N]``, in ``[0, 2^62)``.

    Returns:
        low ``[N]`` and high ``[N]``.
    """
    high = ((np.sqrt(8.0 * ranks + 1.0) - 1.0) / 2.0).astype(np.int64)
    # The float64 root is off by one either way for large ranks.
    high -= high * (high + 1) // 2 > ranks
    high += (high + 1) * (high + 2) // 2 <= ranks
    return ranks - high * (high + 1) // 2, high
