"""The allocator's setting is taken and saves the page faults it is there to save; what it keeps can be given back."""

import mmap
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from grpo_jax import checkpoints, memory, train
from tests.runs import TINY, compiled

OFFERED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
"""Whether the system gives huge pages to all, to whoever asks, or to none."""
FAULTS = """
import resource, sys
from grpo_jax.memory import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
import jax, jax.numpy as jnp
step = jax.jit(lambda x: (jnp.outer(x, x) @ jnp.outer(x, x)).sum())
x = jnp.ones(1500)
step(x).block_until_ready()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step(x).block_until_ready()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


GIVEN_BACK = """
import numpy as np
from grpo_jax.memory import give_back_freed_memory, keep_freed_memory

def resident():
    fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(fields["VmRSS"].split()[0]) // 1024

assert keep_freed_memory()
kept = [np.ones(2**20) for _ in range(64)]
last = np.ones(2**20)
full = resident()
del kept
freed = resident()
give_back_freed_memory()
print(full, freed, resident(), last[0])
"""


LARGE = """
import ctypes, mmap, resource, sys
import jax
from grpo_jax.memory import keep_freed_memory, make_room

def addresses():
    return int(open("/proc/self/statm").read().split()[0]) * mmap.PAGESIZE

kept, sparing, size = sys.argv[1] == "kept", sys.argv[2] == "sparing", 2**30 + 2**20
if kept:
    assert keep_freed_memory()
params = {"w": jax.ShapeDtypeStruct((2**26,), "float32")}
make_room(params, first=True, sparing=sparing, quiet=True)
c = ctypes.CDLL("libc.so.6")
c.malloc.restype, c.malloc.argtypes, c.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
c.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
held = c.malloc(size)
found, before = [], addresses()
for _ in range(2):
    make_room(params, first=True, sparing=sparing, quiet=True)  # another run of the same process
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = c.malloc(size)
    c.memset(block, 1, size)
    c.free(block)
    found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)
    make_room(params, first=False, sparing=sparing, quiet=True)
print(*found, (addresses() - before) // 2**20)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is a Linux library")
def test_a_step_does_not_fault_in_again_what_the_last_one_freed():
    def faults(mode):
        done = subprocess.run([sys.executable, "-c", FAULTS, mode], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert faults("kept") < faults("given back") / 4


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is a Linux library")
def test_what_is_kept_can_be_given_back():
    """512 MiB below an array that stays: none of it goes back by itself, all of it when asked for."""
    done = subprocess.run([sys.executable, "-c", GIVEN_BACK], capture_output=True, text=True, check=True)
    full, freed, given_back = (int(word) for word in done.stdout.split()[:3])
    assert freed > full - 100
    assert given_back < full - 400


def faults_of_a_large_block(kept, spared):
    """Page faults of writing a block of just over 1 GiB before and after it was freed, and MiB of addresses added."""
    done = subprocess.run([sys.executable, "-c", LARGE, kept, spared], capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is a Linux library")
def test_a_large_models_blocks_stay_but_where_memory_is_spared_or_the_setting_was_not_asked_for():
    offered = OFFERED.read_text(encoding="ascii") if OFFERED.exists() else "[never]"
    pages = 2**30 // mmap.PAGESIZE
    first, again, added = faults_of_a_large_block("kept", "not sparing")
    assert again < pages / 4
    assert added < 4096  # a second run of the same process takes no addresses of its own
    if memory._huge_pages_are_free() and "[never]" not in offered:
        assert first < pages / 4
    if "[always]" not in offered:
        for mode in (("kept", "sparing"), ("as it is", "not sparing")):
            assert faults_of_a_large_block(*mode)[1] > pages / 4


@pytest.mark.parametrize(
    ("floats", "first", "sparing", "quiet", "expected"),
    [
        (10, True, False, True, 1),
        (10, False, True, False, 0),
        (2**26, False, True, True, 1),
        (2**26, False, False, False, 1),
        (2**26, False, False, True, 0),
    ],
)
def test_room_is_made_before_the_first_update_and_before_those_of_a_large_model_that_spares_memory_or_did_other_work(
    floats, first, sparing, quiet, expected, monkeypatch
):
    calls = []
    monkeypatch.setattr(memory, "give_back_freed_memory", lambda: calls.append(None))
    memory.make_room({"w": jax.ShapeDtypeStruct((floats,), "float32")}, first=first, sparing=sparing, quiet=quiet)
    assert len(calls) == expected


@pytest.mark.parametrize("recomputed", [False, True])
def test_a_run_makes_room_and_says_what_comes_before_and_after_an_update(recomputed, tmp_path, monkeypatch):
    """Steps end with a checkpoint (2, 4, 6), an evaluation (3, 6), and begin with a gradient share (5)."""
    calls = []

    def noted(params, *, first, sparing, quiet):
        assert sparing == recomputed
        calls.append((first, quiet))

    monkeypatch.setattr(train, "make_room", noted)
    train.train(run_of_six(monkeypatch, remat_layers=recomputed), tmp_path / "run")
    quiet = [(False, True)]
    loud = [(False, False)]
    assert calls == [(True, False), *quiet, *loud, *loud, *loud, *loud, *loud, *loud, *loud, *quiet, *loud]


@pytest.mark.parametrize("large", [False, True])
def test_no_checkpoint_is_being_written_beside_a_large_models_update(large, tmp_path, monkeypatch):
    """A saver that never ends by itself: a small model's run updates beside it, a large one's waits."""
    writing, beside = [], []
    config = run_of_six(monkeypatch)
    program = compiled(config)

    @contextmanager
    def saver(*_):
        yield checkpoints.Saver(lambda *_, **__: writing.append(None), lambda: None, writing.clear)

    def update(*given):
        beside.append(len(writing))
        return program.update(*given)

    monkeypatch.setattr(train, "compile_program", lambda *_: program._replace(update=update))
    monkeypatch.setattr(train.checkpoints, "saver", saver)
    monkeypatch.setattr(train, "is_large_on_cpu", lambda _: large)
    train.train(config, tmp_path / "run")
    assert beside == ([0] * 6 if large else [1, 1, 2, 2, 3, 3])


def test_parameters_are_large_on_cpus_from_256_mebibytes_on():
    assert memory.is_large_on_cpu({"w": jax.ShapeDtypeStruct((2**26,), "float32")})
    assert not memory.is_large_on_cpu({"w": jax.ShapeDtypeStruct((2**26 - 1,), "float32")})


def run_of_six(monkeypatch, remat_layers=False):
    """Checkpoints at 2, 4, 6, evaluations at 3 and 6, a gradient share at 5; compiled as other tests' programs are."""
    monkeypatch.setattr(train, "compile_program", lambda config, _: compiled(replace(config, model=TINY.model)))
    monkeypatch.setattr(train, "save_curves", lambda *_: None)
    every = {"checkpoint_every": 2, "evaluation": replace(TINY.evaluation, every=3), "gradient_share_every": 5}
    return replace(TINY, steps=6, model=replace(TINY.model, remat_layers=remat_layers), **every)
