import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax.sharding import batch_sharding, make_mesh
from grpo_jax.statistics import Maximum, Mean, maximum_of, mean_of, moments_of
from grpo_jax.updates import accumulate_gradient, join_groups, map_groups, pad_groups, split_groups
from grpo_jax.updates.micro_batches import merge_stacked
from tests.updates.builders import assert_near, compiled, rollout_and_batch


def test_padding_groups_have_no_token_and_no_valid_member():
    rollout, batch = rollout_and_batch(prompts=5)
    padded_rollout, padded = pad_groups((rollout, batch.check()), 4)
    assert padded.valid.shape[0] == 8
    assert padded.valid[:5].all()
    assert not padded.valid[5:].any()
    for mask in (padded.mask, padded_rollout.mask, padded_rollout.prompts.mask):
        assert mask[:5].any(axis=tuple(range(1, mask.ndim))).all()
        assert not mask[5:].any()
    np.testing.assert_array_equal(padded.rewards[:5], batch.rewards)


def test_a_multiple_is_left_as_it_is():
    rollout, _ = rollout_and_batch(prompts=4)
    assert pad_groups(rollout, 2) is rollout


def test_parts_take_every_count_th_group_and_join_in_the_first_order():
    groups = jnp.arange(6)
    np.testing.assert_array_equal(split_groups(groups, 3), [[0, 3], [1, 4], [2, 5]])
    tree = {"a": jnp.arange(12.0).reshape(6, 2), "b": groups}
    assert_near(join_groups(split_groups(tree, 2)), tree, atol=0, rtol=0)


def test_scalars_go_to_every_part():
    split = split_groups((jnp.arange(4), jnp.float32(2.5)), 2)
    np.testing.assert_array_equal(split[1], [2.5, 2.5])


def test_each_part_covers_every_data_shard_and_splitting_moves_nothing():
    mesh = make_mesh("data=4,fsdp=2")
    split = compiled(lambda groups: split_groups(groups, 3), in_shardings=batch_sharding(mesh))
    program = split.lower(jax.ShapeDtypeStruct((24, 5), jnp.float32)).compile()
    assert program.output_shardings.shard_shape((3, 8, 5)) == (3, 1, 5)
    assert not any(word in program.as_text() for word in ("all-gather", "all-to-all", "collective-permute"))


@pytest.mark.parametrize("count", [1, 2, 6])
def test_mapping_by_parts_is_mapping_the_whole(count):
    groups = jnp.arange(12.0).reshape(6, 2)
    np.testing.assert_array_equal(map_groups(lambda part: part**2, groups, count), groups**2)


def test_a_leaf_without_the_groups_axis_is_named():
    with pytest.raises(ValueError, match=r"\['b'\] has shape \(3,\), but the groups' axis P comes first and is 4"):
        split_groups({"a": jnp.zeros(4), "b": jnp.zeros(3)}, 2)
    with pytest.raises(ValueError, match="5 groups do not split into 2"):
        split_groups(jnp.zeros(5), 2)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        pad_groups(jnp.zeros(5), 0)


def terms(params, part):
    """A mean over a number of tokens that differs from part to part."""
    values, mask = part
    losses = jnp.square(values - params["centre"])
    return mean_of(losses, mask), {"highest": maximum_of(losses, mask), "values": moments_of(values, mask)}


def test_parts_of_unequal_size_weigh_by_their_counts():
    # Two parts of two tokens and five, all of loss 1..7 in their gradient: the mean over seven is 4, not 3.25.
    values = jnp.array([[1.0, 2, 0, 0, 0], [3, 4, 5, 6, 7]])
    mask = jnp.array([[True, True, False, False, False], [True] * 5])
    params = {"centre": jnp.float32(0.0)}
    gradient, mean, _ = accumulate_gradient(
        lambda params, part: (mean_of(part[0] * params["centre"], part[1]), {}), params, (values, mask), 2
    )
    assert gradient["centre"] == 4.0
    assert mean == Mean(0.0, 7.0)


@pytest.fixture(scope="module")
def accumulated():
    return {
        count: compiled(lambda p, x, count=count: accumulate_gradient(terms, p, x, count)) for count in (1, 2, 3, 6)
    }


@given(st.integers(0, 10_000), st.sampled_from([2, 3, 6]))
def test_any_split_gives_the_same_gradient_mean_and_statistics(accumulated, seed, count):
    random = np.random.default_rng(seed)
    values, mask = random.normal(size=(6, 3)).astype(np.float32), random.random((6, 3)) < 0.6
    params = {"centre": jnp.float32(random.normal())}
    inputs = (jnp.asarray(values), jnp.asarray(mask))
    gradient, mean, statistics = accumulated[count](params, inputs)
    whole_gradient, whole_mean, whole_statistics = accumulated[1](params, inputs)
    assert_near((gradient, mean), (whole_gradient, whole_mean), atol=1e-5)
    assert_near(statistics, whole_statistics, atol=1e-5)
    kept = [
        value for row, keep in zip(values, mask, strict=True) for value, kept in zip(row, keep, strict=True) if kept
    ]
    expected = sum(2 * (params["centre"] - value) for value in kept) / max(len(kept), 1)
    np.testing.assert_allclose(gradient["centre"], expected, rtol=1e-4, atol=1e-5)


def test_nothing_to_count_gives_exactly_zero(accumulated):
    inputs = (jnp.full((6, 3), 7.0), jnp.zeros((6, 3), bool))
    gradient, mean, _ = accumulated[3]({"centre": jnp.float32(1.0)}, inputs)
    assert gradient["centre"] == 0
    assert mean.compute() == 0


def test_sums_are_kept_in_float32_and_the_gradient_has_the_parameters_dtype():
    params = {"centre": jnp.bfloat16(0)}
    # 1 + 255 * 2^-9: in bfloat16 every small addend would be lost.
    values = jnp.full((256,), 2.0**-9).at[0].set(1.0)
    gradient, _, _ = accumulate_gradient(
        lambda p, part: (Mean(jnp.sum(part) * p["centre"].astype(jnp.float32), jnp.float32(0.0)), {}),
        params,
        values,
        256,
    )
    assert gradient["centre"].dtype == jnp.bfloat16
    np.testing.assert_allclose(float(gradient["centre"]), 1.5, rtol=1e-2)


def test_stacked_statistics_merge_like_one_after_the_other():
    parts = [{"m": Mean(jnp.float32(i), jnp.float32(2)), "x": Maximum(jnp.float32(-i))} for i in (3, 1, 2)]
    merged = merge_stacked(jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts))
    assert merged == {"m": Mean(6.0, 6.0), "x": Maximum(-1.0)}
