"""Freed memory kept for the next step, and huge pages for what a large model's takes, on Linux."""

import ctypes
import mmap
import os
import sys
from functools import cache
from pathlib import Path

import jax

from grpo_jax.types import Params

_LARGE = 1 << 28
"""Bytes of parameters from which a step takes many times as long as to fault in what sampling took."""
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
_NO_SIZE = -1
"""As a threshold larger than every block."""
_SMALL_BLOCKS = 1 << 30
"""Addresses for all other blocks: glibc takes the smallest free stretch that will do, and leaves the large one."""
_FENCE = 64 << 20
"""Addresses between and behind both, never written, so that they stay two and are not given up as the heap's end."""
_kept = False
"""Whether the settings of `keep_freed_memory` were taken, which hold for the whole process."""


def give_back_freed_memory() -> None:
    """Gives the system what has been freed so far, where glibc kept it: what reading weights took, say."""
    if (library := _glibc()) is not None:
        library.malloc_trim(0)


def make_room(params: Params, *, first: bool, sparing: bool, quiet: bool) -> None:
    """Gives back what is free: before an update, or another call of its size, which take most of all steps.

    Before the first one that is what reading weights and compiling left. Later it is what sampling will take again,
    which is given back where memory is spared: but not of a small model, beside whose step the page faults are felt.

    On CPUs the temporaries of a large model's update are one block of gigabytes, and to fault that in is felt too: if
    `keep_freed_memory` was called and memory is not spared, it is kept from the first update on, in huge pages. The
    next update finds it again, but for what other work would leave in it: before and after such, all that is free is
    given back.

    Args:
        params: the policy's parameters, which say how large it is.
        first: whether it is the first update.
        sparing: whether less memory is worth a slower step.
        quiet: whether nothing but sampling came since the last update or comes now: no evaluation, checkpoint, gradient
            share.
    """
    if first or (_is_large(params) and (sparing or not quiet)):
        give_back_freed_memory()
    if first and not sparing and _kept and is_large_on_cpu(params):
        _keep_large_blocks()


def is_large_on_cpu(params: Params) -> bool:
    """Whether the parameters are large and lie in the memory of a step's temporaries.

    There a checkpoint makes copies while it is written, and an update leaves it the old ones and allocates new.
    """
    return _is_large(params) and jax.default_backend() == "cpu"


def _is_large(params: Params) -> bool:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params)) >= _LARGE


def keep_freed_memory() -> bool:
    """Tells glibc to keep what a training step frees, instead of giving it back and asking again at every step.

    XLA on the CPU allocates its temporaries anew in each call; returned to the system they cost a page fault per 4 KiB,
    a quarter of the processor time of a small model's step. Peak memory does not change, but it stays taken. Call it
    before JAX allocates; the command line does.

    Returns:
        Whether the setting was taken; False where the C library is not glibc.
    """
    global _kept
    library = _glibc()
    settings = {_ARENA_MAX: 1, _MMAP_THRESHOLD: 1 << 30, _TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 << 20}
    _kept = library is not None and all(library.mallopt(name, value) == 1 for name, value in settings.items())
    return _kept


@cache  # once in a process, however many runs it makes
def _keep_large_blocks() -> None:
    """Keeps blocks of every size, large ones in huge pages: in addresses for three quarters of the machine's memory."""
    library = _glibc()
    if library is None or not all(library.mallopt(name, _NO_SIZE) == 1 for name in (_MMAP_THRESHOLD, _TRIM_THRESHOLD)):
        return
    size = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE // 4 * 3
    begin = library.malloc(size) if _huge_pages_are_free() else None
    if begin is None:  # small pages are kept as well
        return
    library.malloc(_FENCE)
    rest = library.malloc(_SMALL_BLOCKS)
    library.malloc(_FENCE)
    first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    library.madvise(first, (begin + size - first) // mmap.PAGESIZE * mmap.PAGESIZE, mmap.MADV_HUGEPAGE)
    for block in (begin, rest):
        library.free(block)


def _huge_pages_are_free() -> bool:
    """Whether huge pages have 2 MiB, not more, and addresses that are never written to count against no limit."""
    import resource

    try:
        strict = Path("/proc/sys/vm/overcommit_memory").read_text(encoding="ascii").strip() == "2"
    except OSError:
        return False
    limits = {resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)}
    return mmap.PAGESIZE == 4096 and not strict and limits == {resource.RLIM_INFINITY}


def _glibc() -> ctypes.CDLL | None:
    """Returns the C library; None where it is not glibc."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        library = ctypes.CDLL("libc.so.6")
        library.mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
        library.malloc_trim.argtypes = library.malloc.argtypes = (ctypes.c_size_t,)
        library.malloc.restype, library.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
        library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    except (OSError, AttributeError):
        return None
    return library
