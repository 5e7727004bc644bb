"""Training states to save, and what makes two of them the same."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

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
