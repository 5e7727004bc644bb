import jax
import pytest


@pytest.fixture(autouse=True)
def devices_of_all_tests():
    """JAX makes its devices at its first use: a plan for two must not be that use, and leave two to all others."""
    assert len(jax.devices("cpu")) == 8
