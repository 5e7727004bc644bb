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
