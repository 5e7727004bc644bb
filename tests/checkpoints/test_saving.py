"""A checkpoint gives back the very bits that went in, or says why it cannot."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint.experimental.v1 as orbax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from grpo_jax import checkpoints
from grpo_jax.checkpoints import Keep
from grpo_jax.program import compile_program
from grpo_jax.types import TrainState
from tests.checkpoints.states import abstract, assert_bitwise_equal, make_state
from tests.runs import TINY


@pytest.fixture
def mesh():
    return jax.make_mesh((4, 2), ("data", "fsdp"), axis_types=(AxisType.Auto, AxisType.Auto))


@pytest.mark.parametrize("ref", [False, True])
def test_a_restored_state_equals_the_saved_one_bit_for_bit(tmp_path, ref):
    state = make_state(ref=ref)
    checkpoints.save(tmp_path, state, 5)
    for like in (state, abstract(state), jax.eval_shape(lambda: make_state(ref=ref))):
        restored = checkpoints.restore(tmp_path, like)
        assert isinstance(restored, TrainState)
        assert (restored.ref_params is None) is not ref
        assert_bitwise_equal(restored, state)


def test_a_restored_key_draws_the_same_numbers(tmp_path):
    for impl in ("threefry2x32", "rbg"):
        state = make_state()._replace(key=jax.random.key(3, impl=impl))
        checkpoints.save(tmp_path / impl, state, 0)
        restored = checkpoints.restore(tmp_path / impl, abstract(state))
        assert jax.random.key_impl(restored.key) == jax.random.key_impl(state.key)
        assert jnp.array_equal(jax.random.normal(restored.key, (4,)), jax.random.normal(state.key, (4,)))


def test_a_restored_state_may_be_donated(tmp_path):
    state = make_state()
    checkpoints.save(tmp_path, state, 1)
    restored = checkpoints.restore(tmp_path, abstract(state))
    step = jax.jit(lambda state: jax.tree.map(lambda x: x + 1, state._replace(key=())), donate_argnums=0)
    assert_bitwise_equal(step(restored), step(jax.tree.map(jnp.copy, state)))


def sharded(state, mesh):
    """Matrices split over all eight devices, everything else replicated."""

    def place(leaf):
        spec = PartitionSpec("data", "fsdp") if leaf.ndim == 2 else PartitionSpec()
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(place, state)


def test_a_state_on_eight_devices_comes_back_bit_for_bit_and_in_place(tmp_path, mesh):
    state = sharded(make_state(ref=True), mesh)
    assert len(state.params["embed"].sharding.device_set) == 8
    checkpoints.save(tmp_path, state, 1)
    restored = checkpoints.restore(tmp_path, abstract(state))
    assert_bitwise_equal(restored, state)
    for a, b in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)


def test_a_checkpoint_moves_between_one_device_and_eight(tmp_path, mesh):
    state = make_state()
    checkpoints.save(tmp_path / "one", state, 1)
    eight = checkpoints.restore(tmp_path / "one", abstract(sharded(state, mesh)))
    assert len(eight.params["embed"].sharding.device_set) == 8
    assert_bitwise_equal(eight, state)
    checkpoints.save(tmp_path / "eight", eight, 1)
    one = checkpoints.restore(tmp_path / "eight", abstract(state))
    assert all(len(leaf.sharding.device_set) == 1 for leaf in jax.tree.leaves(one))
    assert_bitwise_equal(one, state)


def test_a_checkpoint_of_eight_data_shards_moves_to_data_fsdp_and_tensor(tmp_path):
    """The real decoder's state, placed by the table of logical axes."""
    eight, cube = (compile_program(replace(TINY, mesh=mesh)) for mesh in ("data=8", "data=2,fsdp=2,tensor=2"))
    state = eight.state(eight.initial(key=jax.random.key(0)), key=jax.random.key(1))
    checkpoints.save(tmp_path, state, 3)
    moved = checkpoints.restore(tmp_path, cube.shapes)
    assert_bitwise_equal(moved, state)
    split = [leaf for leaf in jax.tree.leaves(moved.params) if leaf.addressable_shards[0].data.size < leaf.size]
    assert split, "nothing is split over fsdp and tensor"
    for leaf, wanted in zip(jax.tree.leaves(moved), jax.tree.leaves(cube.shapes), strict=True):
        assert leaf.sharding.is_equivalent_to(wanted.sharding, leaf.ndim)


def test_a_save_does_not_hold_up_the_run_and_sees_nothing_of_what_it_does_next(tmp_path, monkeypatch):
    """The state is donated and overwritten while the checkpoint is not done yet."""
    go_on, real = threading.Event(), orbax.save_async

    class Held(NamedTuple):
        response: object

        def result(self):
            assert go_on.wait(60)
            return self.response.result()

    monkeypatch.setattr(orbax, "save_async", lambda *args, **kwargs: Held(real(*args, **kwargs)))
    overwrite = jax.jit(lambda params: jax.tree.map(lambda leaf: leaf * 0 + 7, params), donate_argnums=0)
    state = make_state()
    expected = jax.tree.map(jnp.copy, state)
    with checkpoints.saver(tmp_path) as saver:
        saver.save(state, 1)
        params = state.params
        for _ in range(20):
            params = overwrite(params)
        jax.block_until_ready(params)
        saver.check()
        go_on.set()
    assert_bitwise_equal(checkpoints.restore(tmp_path, expected), expected)


def test_whatever_else_is_saved_comes_back_though_its_shapes_change_from_step_to_step(tmp_path):
    class Item(NamedTuple):
        tokens: object
        version: object
        text: object

    def item(length):
        tokens = jnp.arange(length * 2, dtype=jnp.int32).reshape(length, 2)
        return Item(tokens, np.int64(2**40 + length), np.frombuffer(b"37+58=", np.uint8))

    like = make_state()
    with checkpoints.saver(tmp_path) as saver:
        for step, queue in enumerate([[], [item(3)], [item(0), item(5)]]):
            saver.save(like, step, extra={"queue": queue, "turn": step})
    for step, queue in enumerate([[], [item(3)], [item(0), item(5)]]):
        found = checkpoints.load(tmp_path, like, step)
        assert_bitwise_equal(found.state, like)
        again = checkpoints.rebuilt(found.extra, {"queue": [Item(0, 0, 0)] * len(queue), "turn": 0})
        assert int(again["turn"]) == step
        for leaf, expected in zip(jax.tree.leaves(again["queue"]), jax.tree.leaves(queue), strict=True):
            assert isinstance(leaf, np.ndarray)
            assert (leaf.dtype, leaf.shape) == (np.asarray(expected).dtype, np.shape(expected))
            np.testing.assert_array_equal(leaf, expected)
    with pytest.raises(ValueError, match=r"queue\.1\.text, queue\.1\.tokens, queue\.1\.version is in one"):
        checkpoints.rebuilt(found.extra, {"queue": [Item(0, 0, 0)], "turn": 0})


def test_the_newest_is_restored_unless_a_step_is_named(tmp_path):
    for step in (2, 10, 9):
        checkpoints.save(tmp_path, make_state(step), step)
    assert checkpoints.latest(tmp_path) == 10
    assert_bitwise_equal(checkpoints.restore(tmp_path, make_state()), make_state(10))
    assert_bitwise_equal(checkpoints.restore(tmp_path, make_state(), step=2), make_state(2))


def test_only_the_newest_are_kept(tmp_path):
    for step in range(1, 5):
        checkpoints.save(tmp_path, make_state(step), step, keep=Keep(2))
    assert checkpoints.steps(tmp_path) == [3, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "4"]


def test_a_half_written_checkpoint_is_never_used(tmp_path):
    checkpoints.save(tmp_path, make_state(1), 1)
    checkpoints.save(tmp_path, make_state(2), 2)
    shutil.move(tmp_path / "2", tmp_path / "2.unfinished")
    shutil.copytree(tmp_path / "1", tmp_path / "3")
    (tmp_path / "3" / "manifest.json").unlink()
    (tmp_path / "4").mkdir()
    assert checkpoints.latest(tmp_path) == 1
    assert_bitwise_equal(checkpoints.restore(tmp_path, make_state()), make_state(1))
    checkpoints.save(tmp_path, make_state(4), 4, keep=Keep(2))
    assert checkpoints.steps(tmp_path) == [1, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "3.damaged", "4", "4.damaged"]


def test_a_process_killed_while_saving_leaves_the_earlier_checkpoint_and_a_folder_that_can_be_used(tmp_path):
    program = textwrap.dedent(
        """
        import os, pathlib, sys, jax, jax.numpy as jnp
        from grpo_jax import checkpoints
        from grpo_jax.types import TrainState
        def state(n):
            params = {"w": jnp.full((64, 64), n, jnp.float32)}
            return TrainState(params, (), None, (), jax.random.key(n), *[jnp.int32(n)] * 3)
        checkpoints.save(sys.argv[1], state(1), 1)
        def die(*arguments, **options):
            os.kill(os.getpid(), 9)
        os.rename = os.replace = pathlib.Path.rename = die
        checkpoints.save(sys.argv[1], state(2), 2)
        """
    )
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    died = subprocess.run([sys.executable, "-c", program, str(tmp_path)], env=environment, check=False, timeout=120)
    assert died.returncode == -signal.SIGKILL
    zero = jnp.int32(0)
    like = TrainState({"w": jnp.zeros((64, 64))}, (), None, (), jax.random.key(0), zero, zero, zero)
    assert sorted(path.name for path in tmp_path.iterdir()) != ["1"], "the killed process had begun to write"
    assert checkpoints.latest(tmp_path) == 1
    assert float(checkpoints.restore(tmp_path, like).params["w"][0, 0]) == 1
    checkpoints.save(tmp_path, like, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]


def test_another_configuration_is_refused_and_the_difference_named(tmp_path):
    checkpoints.save(tmp_path, make_state(), 1)
    with pytest.raises(
        ValueError, match=r"params\.embed: float32\[16, 8\] in the checkpoint, float32\[16, 4\] in this run"
    ):
        checkpoints.restore(tmp_path, make_state(width=4))
    with pytest.raises(ValueError, match=r"only in the checkpoint: opt_state\.1\.0\.count"):
        checkpoints.restore(tmp_path, make_state(optimizer=optax.sgd(0.1)))
    with pytest.raises(ValueError, match=r"only in this run: ref_params\.embed"):
        checkpoints.restore(tmp_path, make_state(ref=True))
    half = make_state()._replace(controller={"beta": jnp.bfloat16(0.1), "step": jnp.int32(3)})
    with pytest.raises(ValueError, match=r"controller\.beta: float32\[\] in the checkpoint, bfloat16\[\] in this run"):
        checkpoints.restore(tmp_path, half)


def test_what_cannot_be_done_is_said_at_once(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        checkpoints.restore(tmp_path / "nowhere", make_state())
    assert checkpoints.latest(tmp_path / "nowhere") is None
    with pytest.raises(ValueError, match="keep=0"):
        checkpoints.save(tmp_path, make_state(), 1, keep=Keep(0))
    with pytest.raises(ValueError, match="step=-1"):
        checkpoints.save(tmp_path, make_state(), -1)
    checkpoints.save(tmp_path, make_state(), 1)
    with pytest.raises(FileExistsError, match="step 1 is already saved"):
        checkpoints.save(tmp_path, make_state(), 1)
    with pytest.raises(FileNotFoundError, match=r"no checkpoint of step 4 in .*: it has those of steps \[1\]"):
        checkpoints.restore(tmp_path, make_state(), step=4)
