import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from grpo_jax.sharding import group_by_group, make_mesh, pin_groups

GROUPS, STEPS, WIDTH, VOCABULARY = 8, 6, 4, 11


@pytest.fixture(scope="module")
def mesh():
    return make_mesh("data=2,fsdp=2,tensor=2")


def test_what_is_pinned_is_split_by_groups_even_where_its_columns_were(mesh):
    columns = NamedSharding(mesh, P(None, "fsdp"))
    found = jax.jit(pin_groups(mesh), in_shardings=columns)(jax.device_put(jnp.arange(32.0).reshape(8, 4), columns))
    assert {shard.data.shape[0] for shard in found.addressable_shards} == {2}
    np.testing.assert_array_equal(found, np.arange(32.0).reshape(8, 4))


def test_what_does_not_divide_and_what_has_one_device_is_not_pinned(mesh):
    odd, even = jnp.ones((6, 4)), jnp.ones((8, 4))
    assert pin_groups(mesh)(odd) is odd
    assert pin_groups(make_mesh("", jax.devices()[:1]))(even) is even
    assert pin_groups(make_mesh("tensor=8"))(even) is even


def scored(apply, head, hidden):
    """Scores a position at a time, as the decoder does, so that the head is used in a loop."""

    def score(heads, groups):
        one = lambda hidden: jax.nn.logsumexp((hidden @ heads["head"].astype(hidden.dtype)).astype(jnp.float32), -1)  # noqa: E731
        return jnp.moveaxis(jax.lax.map(jax.checkpoint(one), jnp.moveaxis(groups, 1, 0)), 0, 1)

    return apply(score, {"head": head}, hidden, hidden.dtype)


def loss(apply, head, hidden):
    return jnp.sum(jnp.sin(scored(apply, head, hidden)))


def arrays(dtype):
    random = np.random.default_rng(0)
    head = jnp.asarray(random.normal(size=(WIDTH, VOCABULARY)), jnp.float32)
    return head, jnp.asarray(random.normal(size=(GROUPS, STEPS, WIDTH)), dtype)


def compiled(mesh, dtype):
    head, hidden = arrays(dtype)
    places = NamedSharding(mesh, P("fsdp")), NamedSharding(mesh, P(("data", "fsdp")))
    step = jax.jit(
        jax.value_and_grad(lambda head, hidden: loss(group_by_group(mesh), head, hidden), argnums=(0, 1)),
        in_shardings=places,
        out_shardings=(None, places),
    )
    return step.lower(head, hidden).compile(), jax.device_put((head, hidden), places)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_groups_scored_apart_have_the_values_and_gradients_of_all_together(mesh, dtype):
    step, inputs = compiled(mesh, dtype)
    alone = lambda f, weights, groups, dtype: f(weights, groups)  # noqa: E731
    expected = jax.jit(jax.value_and_grad(lambda *xs: loss(alone, *xs), argnums=(0, 1)))(*arrays(dtype))
    for one, other in zip(jax.tree.leaves(step(*inputs)), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(
            np.float32(one), np.float32(other), rtol=1e-5, atol=1e-5 if dtype == "float32" else 2e-2
        )


def test_the_head_travels_once_and_logits_never(mesh):
    text = compiled(mesh, "float32")[0].as_text()
    travelling = re.findall(r"= \(?\w+\[([\d,]*)\][^=]*? (all-gather|all-reduce|reduce-scatter|all-to-all)\(", text)
    with_vocabulary = [(shape, kind) for shape, kind in travelling if str(VOCABULARY) in shape.split(",")]
    assert with_vocabulary, "the head is split, so it has to be gathered"
    assert {shape for shape, _ in with_vocabulary} <= {f"{WIDTH},{VOCABULARY}", f"{WIDTH // 2},{VOCABULARY}"}
    assert [kind for _, kind in with_vocabulary].count("all-gather") == 1


def test_groups_that_do_not_divide_and_a_single_device_are_scored_together(mesh):
    head, hidden = arrays("float32")
    expected = scored(lambda f, weights, groups, dtype: f(weights, groups), head, hidden[:7])
    np.testing.assert_array_equal(scored(group_by_group(mesh), head, hidden[:7]), expected)
    alone = group_by_group(make_mesh("", jax.devices()[:1]))
    assert "shard_map" not in str(jax.make_jaxpr(lambda *xs: scored(alone, *xs))(head, hidden))
    assert "shard_map" in str(jax.make_jaxpr(lambda *xs: scored(group_by_group(mesh), *xs))(head, hidden))
