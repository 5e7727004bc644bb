"""What every test runs under: eight virtual CPU devices, no silent broadcasting, reproducible examples."""

import os
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("MPLBACKEND", "Agg")
# Tests compile far more than they compute: without LLVM's optimisation and fusion emitters they take half as long.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")

import jax
import pytest
from hypothesis import HealthCheck, settings

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")

settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
settings.load_profile("repeatable")

MAPPINGS = Path("/proc/self/maps")
MOST_MAPPINGS = 30_000
"""Linux gives a process 65,530 by default; XLA takes several for each compiled function, and crashes without."""


@pytest.fixture(autouse=True, scope="module")
def mappings_are_left():
    """Drops compiled functions between two files of tests where they take up too many of the process's mappings."""
    yield
    if MAPPINGS.exists() and MAPPINGS.read_bytes().count(b"\n") > MOST_MAPPINGS:
        jax.clear_caches()
