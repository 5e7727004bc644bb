"""A checkpoint gives back the very bits that went in, or says why it cannot."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from grpo_jax import checkpoints
from grpo_jax.types import TrainState


def make_state(seed=0, width=8, optimizer=None, ref=False):
    """A state with nested containers, optax NamedTuples, two dtypes and values no decimal literal would give."""
    optimizer = optimizer or optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    key = jax.random.key(seed)
    params = {
        "embed": jax.random.normal(key, (16, width)) / 3,
        "layers": [{"w": jax.random.normal(key, (width, width), jnp.bfloat16)}, {"w": jnp.full((width,), jnp.nan)}],
    }
    opt_state = jax.tree.map(lambda x: x + jnp.ones_like(x) / 7, optimizer.init(params))
    return TrainState(
        params=params,
        opt_state=opt_state,
        ref_params=jax.tree.map(jnp.copy, params) if ref else None,
        controller={"beta": jnp.float32(0.1), "step": jnp.int32(3)},
        key=jax.random.fold_in(key, 7),
        step=jnp.int32(5),
        position=jnp.int32(40),
        rejected=jnp.int32(0),
    )


def abstract(state):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def bits(leaf):
    leaf = jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
    return leaf.dtype, leaf.shape, np.asarray(leaf).tobytes()


def assert_bitwise_equal(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert bits(a) == bits(b)


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


def test_the_newest_is_restored_unless_a_step_is_named(tmp_path):
    for step in (2, 10, 9):
        checkpoints.save(tmp_path, make_state(step), step)
    assert checkpoints.latest(tmp_path) == 10
    assert_bitwise_equal(checkpoints.restore(tmp_path, make_state()), make_state(10))
    assert_bitwise_equal(checkpoints.restore(tmp_path, make_state(), step=2), make_state(2))


def test_only_the_newest_are_kept(tmp_path):
    for step in range(1, 5):
        checkpoints.save(tmp_path, make_state(step), step, keep=2)
    assert checkpoints.steps(tmp_path) == [3, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "4"]


def test_a_half_written_checkpoint_is_never_used(tmp_path):
    checkpoints.save(tmp_path, make_state(1), 1)
    checkpoints.save(tmp_path, make_state(2), 2)
    shutil.move(tmp_path / "2", tmp_path / "2.orbax-checkpoint-tmp")
    shutil.copytree(tmp_path / "1", tmp_path / "3")
    (tmp_path / "3" / "state" / "_METADATA").unlink()
    (tmp_path / "4").mkdir()
    assert checkpoints.latest(tmp_path) == 1
    assert_bitwise_equal(checkpoints.restore(tmp_path, make_state()), make_state(1))
    checkpoints.save(tmp_path, make_state(4), 4, keep=2)
    assert checkpoints.steps(tmp_path) == [1, 4]


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
        checkpoints.save(tmp_path, make_state(), 1, keep=0)
    with pytest.raises(ValueError, match="step=-1"):
        checkpoints.save(tmp_path, make_state(), -1)
    checkpoints.save(tmp_path, make_state(), 1)
    with pytest.raises(FileExistsError, match="step 1 is already saved"):
        checkpoints.save(tmp_path, make_state(), 1)
    with pytest.raises(FileNotFoundError, match=r"no checkpoint of step 4 in .*: it has those of steps \[1\]"):
        checkpoints.restore(tmp_path, make_state(), step=4)
