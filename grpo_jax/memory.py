"""Freed memory kept for the next step, on Linux."""

import ctypes
import sys

import jax

from grpo_jax.types import Params

_LARGE = 1 << 28
"""Bytes of parameters from which a step takes many times as long as to fault in what sampling took."""
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8


def give_back_freed_memory() -> None:
    """Gives the system what has been freed so far, where glibc kept it: what reading weights took, say."""
    if (library := _glibc()) is not None:
        library.malloc_trim(0)


def make_room(params: Params, *, first: bool) -> None:
    """Gives back what is free before an update, which takes most of all steps.

    Before the first one that is what reading weights and compiling left. Later it is what sampling will take again: to
    fault that in is next to nothing beside a large model's step, and felt beside a small one's, which keeps it.

    Args:
        params: the policy's parameters, which say how large it is.
        first: whether it is the first update.
    """
    if first or sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params)) >= _LARGE:
        give_back_freed_memory()


def keep_freed_memory() -> bool:
    """Tells glibc to keep what a training step frees, instead of giving it back and asking again at every step.

    XLA on the CPU allocates its temporaries anew in each call; returned to the system they cost a page fault per 4 KiB,
    a quarter of the processor time of a small model's step. Peak memory does not change, but it stays taken. Call it
    before JAX allocates; the command line does.

    Returns:
        Whether the setting was taken; False where the C library is not glibc.
    """
    library = _glibc()
    if library is None:
        return False
    settings = {_ARENA_MAX: 1, _MMAP_THRESHOLD: 1 << 30, _TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 << 20}
    return all(library.mallopt(name, value) == 1 for name, value in settings.items())


def _glibc() -> ctypes.CDLL | None:
    """Returns the C library; None where it is not glibc."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        library = ctypes.CDLL("libc.so.6")
        return library if library.mallopt and library.malloc_trim else None
    except (OSError, AttributeError):
        return None
