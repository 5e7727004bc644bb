from dataclasses import dataclass

import jax
import pytest
from jax.sharding import AxisType

from grpo_jax.sharding import group_multiple, make_mesh


def sizes(spec, **kwargs):
    return tuple(make_mesh(spec, **kwargs).shape.values())


def test_no_text_puts_all_devices_on_data():
    assert sizes("") == sizes("  ") == (8, 1, 1)


def test_axes_may_stand_in_any_order_with_spaces():
    assert sizes("data=4,fsdp=2") == (4, 2, 1)
    assert sizes(" tensor = 2 , data=2, fsdp = 2 ") == (2, 2, 2)


def test_minus_one_takes_the_devices_the_others_leave():
    assert sizes("data=-1,fsdp=2") == (4, 2, 1)
    assert sizes("fsdp=-1") == (1, 8, 1)
    assert sizes("data=8,tensor=-1") == (8, 1, 1)


def test_fewer_devices_can_be_given():
    assert sizes("data=2", devices=jax.devices()[:2]) == (2, 1, 1)
    assert sizes("", devices=jax.devices()[3:4]) == (1, 1, 1)


def test_every_axis_is_auto():
    assert make_mesh("data=4,fsdp=2").axis_types == (AxisType.Auto,) * 3


def test_groups_are_counted_per_data_shard_and_micro_batch():
    assert group_multiple(make_mesh("data=2,fsdp=2,tensor=2")) == 4
    assert group_multiple(make_mesh("data=4,fsdp=2"), micro_batches=3) == 24


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("data=4,fsdp=4", "'data=4,fsdp=4' needs 16 devices, but there are 8"),
        ("data=4", "needs 4 devices, but there are 8"),
        ("data=-1,fsdp=3", "8 devices do not divide by 3"),
        ("data=-1,fsdp=16", "8 devices do not divide by 16"),
        ("data=-1,fsdp=-1", "-1 may stand once"),
        ("model=8", "unknown axis 'model'"),
        ("data=4,,fsdp=2", "unknown axis ''"),
        ("data=4,data=2", "'data' stands twice"),
        ("data", "the size of 'data' is '', not a whole number"),
        ("data=two", "'two', not a whole number"),
        ("data=0", "must be positive"),
        ("data=-2", "must be positive"),
    ],
)
def test_a_mesh_that_cannot_be_is_refused_with_its_text(spec, message):
    with pytest.raises(ValueError, match=f"mesh '{spec}'") as caught:
        make_mesh(spec)
    assert message in str(caught.value)


@dataclass(frozen=True)
class Absent:
    """What a mesh looks at in a TPU that is not there."""

    id: int
    coords: tuple[int, int, int]
    platform: str = "tpu"
    device_kind: str = "TPU of a test"
    core_on_chip: int = 0
    process_index: int = 0


@dataclass(frozen=True)
class Chip(Absent):
    """A TPU of one of several 2x2 slices."""

    slice_index: int = 0


def chips(slices):
    places = [(x, y, 0) for y in range(2) for x in range(2)]
    return [
        Chip(4 * number + index, place, slice_index=number)
        for number in range(slices)
        for index, place in enumerate(places)
    ]


@pytest.mark.parametrize("spec", ["data=2,fsdp=2,tensor=2", "data=4,fsdp=2", "data=2,fsdp=4", "data=2,tensor=4", ""])
def test_only_data_reaches_across_slices(spec):
    mesh = make_mesh(spec, chips(2)[::-1])
    assert len({chip.id for chip in mesh.devices.flat}) == 8
    for row in mesh.devices:
        assert len({chip.slice_index for chip in row.flat}) == 1
    assert mesh.axis_types == (AxisType.Auto,) * 3


def test_an_axis_that_would_reach_across_slices_is_refused():
    with pytest.raises(ValueError, match=r"on 2 TPU slices.* but data is 1; give it a multiple of 2, as in data=2"):
        make_mesh("fsdp=-1", chips(2))
    with pytest.raises(ValueError, match=r"on 3 TPU slices.* but data is 2"):
        make_mesh("data=2,fsdp=-1", chips(3))


def test_one_slice_needs_no_data():
    assert sizes("fsdp=-1", devices=chips(1)) == (1, 4, 1)


def test_a_chip_to_compile_for_does_not_say_which_slice_it_is_of():
    compiled = [Absent(chip.id, chip.coords) for chip in chips(1)]
    assert sizes("fsdp=-1", devices=compiled) == (1, 4, 1)
