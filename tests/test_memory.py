"""The allocator's setting is taken, and saves the page faults it is there to save."""

import subprocess
import sys

import pytest

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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is a Linux library")
def test_a_step_does_not_fault_in_again_what_the_last_one_freed():
    def faults(mode):
        done = subprocess.run([sys.executable, "-c", FAULTS, mode], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert faults("kept") < faults("given back") / 4
