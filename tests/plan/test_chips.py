"""Names of devices, and what is published about them."""

import importlib.util

import pytest

from grpo_jax.plan import CHIPS, chips, slices, topology


def test_virtual_devices_are_those_of_this_process():
    found = topology("cpu:4")
    assert (found.name, len(found.devices), found.chip) == ("cpu:4", 4, None)
    with pytest.raises(ValueError, match="cpu:9: this process has 8 virtual devices; set JAX_NUM_CPU_DEVICES=9"):
        topology("cpu:9")


@pytest.mark.parametrize("name", ["v5e", "v5e:", "v9:4x4", "v5e:4", "v5e:0x4", "cpu:x", "cpu:0", "v5e:4x4x4x4"])
def test_a_name_that_is_none_is_refused_with_examples(name):
    with pytest.raises(ValueError, match=r"write cpu:8, or a chip and the shape of its slice, such as v5e:16x16"):
        topology(name)


def test_without_libtpu_a_tpu_names_the_remedy(monkeypatch):
    monkeypatch.setattr(chips, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'grpo-jax\[plan\]'"):
        topology("v5e:4x4")


def test_slices_of_a_chip_grow():
    assert slices("v5e:16x16")[0] == "v5e:2x2"
    assert slices("cpu:8") == ()
    for kind, chip in CHIPS.items():
        sizes = [size(shape) for shape in chip.slices]
        assert sizes == sorted(set(sizes)), kind
        assert chip.flops / chip.bandwidth > 100  # operations for each byte, at which both peaks are reached
        assert chip.links < chip.bandwidth


def size(shape):
    sides = [int(side) for side in shape.split("x")]
    return sides[0] * sides[1] * (sides[2] if len(sides) == 3 else 1)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is missing: pip install 'grpo-jax[plan]'"
)
@pytest.mark.parametrize("kind", CHIPS)
def test_every_slice_is_one_that_libtpu_compiles_for(kind):
    for name in slices(f"{kind}:x"):
        assert len(topology(name).devices) == size(name.partition(":")[2])
    with pytest.raises(ValueError, match=f"--topology {kind}:3x5"):
        topology(f"{kind}:3x5")
