import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from grpo_jax.sharding import (
    RULES,
    batch_sharding,
    like_params,
    make_mesh,
    partition,
    shardings,
    state_shardings,
)
from grpo_jax.types import TrainState


@pytest.fixture(scope="module")
def mesh():
    return make_mesh("data=2,fsdp=2,tensor=2")


PARAMS = {
    "embedding": jnp.zeros((6, 4)),
    "blocks": {"query": jnp.zeros((3, 4, 2, 5)), "norm": jnp.zeros((3, 4))},
    "bias": jnp.zeros((7,)),
}
AXES = {
    "embedding": ("vocabulary", "embed"),
    "blocks": {"query": ("layers", "embed", "heads", "head_dim"), "norm": ("layers", "embed")},
    "bias": None,
}


def test_the_table_names_only_axes_of_the_mesh(mesh):
    for rule in RULES.values():
        assert set((rule,) if isinstance(rule, str) else rule or ()) <= set(mesh.axis_names)


@pytest.mark.parametrize(
    ("axes", "shape", "expected"),
    [
        (("vocabulary", "embed"), (6, 4), P("tensor", "fsdp")),
        (("layers", "embed", "heads", "head_dim"), (3, 4, 2, 5), P(None, "fsdp", "tensor", None)),
        (("embed", None, "mlp"), (4, 2, 8), P("fsdp", None, "tensor")),
        (None, (4, 4), P()),
        ((), (), P()),
        (("prompts", None), (4, 3), P(("data", "fsdp"), None)),
    ],
)
def test_a_dimension_is_split_over_the_mesh_axis_of_its_logical_axis(mesh, axes, shape, expected):
    assert partition(mesh, axes, shape) == expected


def test_a_dimension_that_does_not_divide_is_on_every_device(mesh):
    assert partition(mesh, ("vocabulary", "embed"), (7, 4)) == P(None, "fsdp")
    assert partition(mesh, ("embed", "kv_heads"), (5, 1)) == P(None, None)
    assert partition(mesh, ("prompts",), (6,)) == P(None)


def test_one_mesh_axis_splits_one_dimension_of_an_array(mesh):
    assert partition(mesh, ("vocabulary", "mlp"), (4, 4)) == P("tensor", None)
    assert partition(mesh, ("vocabulary", "mlp"), (5, 4)) == P(None, "tensor")


def test_axes_that_are_unknown_or_too_few_are_refused(mesh):
    with pytest.raises(ValueError, match="unknown logical axis 'width'"):
        partition(mesh, ("width",), (4,))
    with pytest.raises(ValueError, match=r"name 1 dimensions of an array of shape \(4, 4\)"):
        partition(mesh, ("embed",), (4, 4))


def test_shardings_have_the_shape_of_the_params_tree(mesh):
    found = shardings(mesh, AXES, jax.eval_shape(lambda: PARAMS))
    assert jax.tree.structure(found) == jax.tree.structure(PARAMS)
    assert found["blocks"]["query"] == NamedSharding(mesh, P(None, "fsdp", "tensor", None))
    assert found["bias"].is_fully_replicated
    placed = jax.device_put(PARAMS, found)
    assert placed["embedding"].addressable_shards[0].data.shape == (3, 2)


def test_batches_are_split_by_whole_groups_over_data_and_fsdp(mesh):
    placed = jax.device_put(np.arange(8.0).reshape(4, 2), batch_sharding(mesh))
    assert {shard.data.shape for shard in placed.addressable_shards} == {(1, 2)}
    assert len({shard.index[0].start for shard in placed.addressable_shards}) == 4


def partitioned():
    labels = {"embedding": "a", "blocks": {"query": "a", "norm": "b"}, "bias": "b"}
    return optax.partition({"a": optax.adamw(1e-3), "b": optax.set_to_zero()}, labels)


@pytest.mark.parametrize(
    "optimizer", [optax.adam(1e-3), optax.chain(optax.clip(1.0), optax.adamw(1e-3)), partitioned()]
)
def test_moments_are_split_like_their_parameter_and_counts_are_everywhere(mesh, optimizer):
    state = optimizer.init(PARAMS)
    found = like_params(state, PARAMS, shardings(mesh, AXES, PARAMS), NamedSharding(mesh, P()))
    assert jax.tree.structure(found) == jax.tree.structure(state)
    by_shape = {
        leaf.shape: sharding for leaf, sharding in zip(jax.tree.leaves(state), jax.tree.leaves(found), strict=True)
    }
    assert by_shape[(6, 4)].spec == P("tensor", "fsdp")
    assert by_shape[()].spec == P()


def test_an_array_at_a_parameters_path_with_another_shape_is_everywhere(mesh):
    found = like_params(
        {"row": {"embedding": jnp.zeros((4,))}}, PARAMS, shardings(mesh, AXES, PARAMS), NamedSharding(mesh, P())
    )
    assert found["row"]["embedding"].spec == P()


def test_a_policy_that_is_one_array_is_found_in_the_optimizers_state(mesh):
    params = jnp.zeros((4, 4))
    found = like_params(
        optax.adam(1.0).init(params), params, shardings(mesh, ("vocabulary", "embed"), params), NamedSharding(mesh, P())
    )
    assert found[0].mu.spec == P("tensor", "fsdp")
    assert found[0].count.spec == P()


@pytest.mark.parametrize("with_reference", [True, False])
def test_a_whole_training_state_can_be_placed(mesh, with_reference):
    zero = jnp.zeros((), jnp.int32)
    state = TrainState(
        params=PARAMS,
        opt_state=optax.adam(1e-3).init(PARAMS),
        ref_params=jax.tree.map(jnp.copy, PARAMS) if with_reference else None,
        controller=(jnp.zeros(()), zero),
        key=jax.random.key(0),
        step=zero,
        position=zero,
        rejected=zero,
    )
    placed = jax.device_put(state, state_shardings(mesh, AXES, jax.eval_shape(lambda: state)))
    assert placed.params["embedding"].sharding.spec == P("tensor", "fsdp")
    assert placed.opt_state[0].nu["embedding"].sharding.spec == P("tensor", "fsdp")
    assert placed.step.sharding.is_fully_replicated
    assert (placed.ref_params is not None) == with_reference
    if with_reference:
        assert placed.ref_params["embedding"].sharding.spec == P("tensor", "fsdp")
