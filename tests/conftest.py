"""What every test runs under: eight virtual CPU devices, no silent broadcasting, reproducible examples."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("MPLBACKEND", "Agg")
# Tests compile far more than they compute: without LLVM's optimisation and fusion emitters they take half as long.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")

import jax
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
