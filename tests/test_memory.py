"""The allocator's setting is taken and saves the page faults it is there to save; what it keeps can be given back."""

import subprocess
import sys

import jax
import pytest

from grpo_jax import memory

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


@pytest.mark.parametrize(("floats", "first", "expected"), [(10, True, 1), (10, False, 0), (2**26, False, 1)])
def test_room_is_made_before_the_first_update_and_before_every_one_of_a_large_model(
    floats, first, expected, monkeypatch
):
    calls = []
    monkeypatch.setattr(memory, "give_back_freed_memory", lambda: calls.append(None))
    memory.make_room({"w": jax.ShapeDtypeStruct((floats,), "float32")}, first=first)
    assert len(calls) == expected
