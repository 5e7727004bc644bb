"""What must not matter to an objective, what must, and where gradients stop."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from grpo_jax.statistics import Statistic
from tests.losses.composed import BETA, DEAD_RULE, OBJECTIVES, accumulated, evaluated, example, result_of

EVERY = pytest.mark.parametrize("name", OBJECTIVES)
POISONS = [np.nan, np.inf, -np.inf, 1e30]


def assert_equal(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def assert_close(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), found, expected)


def spoil(values, keep, poison):
    # On the host, where nothing is compiled for it.
    shape = keep.shape + (1,) * (values.ndim - keep.ndim)
    return jnp.asarray(np.where(np.reshape(keep, shape), values, np.float32(poison)))


def poisoned(name, poison):
    """Everything that is never to be read: masked tokens, invalid members, members without tokens, dropped groups."""
    scores, batch = example(name)
    mask, valid = np.array(batch.mask), np.array(batch.valid)
    member = valid & np.any(mask, axis=-1)
    tokens = mask & valid[..., None]
    if OBJECTIVES[name].parts.degenerate.name.startswith(("mask", "smooth")):
        tokens[[1, 3]] = False
    scores = jax.tree.map(lambda values: spoil(values, tokens, poison), scores)
    return scores, batch._replace(
        rewards=spoil(batch.rewards, member, poison),
        task_rewards=spoil(batch.task_rewards, member, poison),
        old_log_probs=spoil(batch.old_log_probs, tokens, poison),
        ref_log_probs=spoil(batch.ref_log_probs, tokens, poison),
        behaviour_log_probs=spoil(batch.behaviour_log_probs, tokens, poison),
        advantages=jnp.full_like(batch.advantages, poison),
    )


@EVERY
def test_the_example_is_alive(name):
    loss, gradient, _, metrics = result_of(name)
    assert np.isfinite(loss)
    assert loss != 0
    assert np.sum(np.asarray(gradient.log_probs) != 0) > 10
    for statistic in jax.tree.leaves(metrics):
        assert np.all(np.isfinite(statistic))
    assert metrics["degenerate"].compute() == 0.5
    assert metrics["unscorable"].total == 1
    dead = np.asarray(gradient.log_probs)[np.array([1, 3])]
    assert np.any(dead != 0) == (name not in DEAD_RULE)


@EVERY
@pytest.mark.parametrize("poison", POISONS)
def test_what_is_masked_changes_neither_loss_nor_gradient_nor_metrics(name, poison):
    assert_equal(evaluated(name)(*poisoned(name, poison), BETA), result_of(name))


@EVERY
def test_masked_and_invalid_tokens_have_a_gradient_of_exactly_zero(name):
    _, batch = example(name)
    masked = ~np.asarray(batch.mask & batch.valid[..., None])
    for slope in jax.tree.leaves(result_of(name)[1]):
        np.testing.assert_array_equal(np.asarray(slope)[masked], 0)


@EVERY
def test_nothing_but_the_scores_has_a_gradient(name):
    for field, slope in result_of(name)[2].items():
        np.testing.assert_array_equal(slope, 0, err_msg=field)


def merged(parts):
    def is_statistic(node):
        return isinstance(node, Statistic)

    def merge(one, other):
        return jax.tree.map(lambda a, b: a.merge(b), one, other, is_leaf=is_statistic)

    return functools.reduce(merge, parts)


@EVERY
def test_any_split_into_whole_groups_changes_nothing(name):
    scores, batch = example(name)
    prepared = OBJECTIVES[name].prepare(batch)
    pieces = []
    for group in range(4):
        piece = jax.tree.map(lambda leaf, at=group: leaf[at : at + 1], (scores, prepared))
        pieces.append(accumulated(name)(*piece, BETA))
    loss, gradient, _, metrics = result_of(name)
    slopes = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *(piece[0][0] for piece in pieces))
    for piece in pieces:
        jax.tree.map(lambda slope: np.testing.assert_array_equal(slope, 0), piece[0][1])
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        one, two, three, four = (pieces[at][1] for at in order)
        for mean, found in (
            merged([one, two, three, four]),
            merged([merged([one, two]), merged([three, four])]),
            merged([one, merged([two, merged([three, four])])]),
        ):
            assert_close(mean.compute(), loss)
            assert_close(jax.tree.map(lambda slope, n=mean.count: slope / n, slopes), gradient)
            assert_close(found, metrics)


@EVERY
def test_padding_in_width_and_in_groups_changes_nothing(name):
    scores, batch = example(name)

    def wider(leaf):
        fill = [(0, 4)] + [(0, 0)] * (leaf.ndim - 1)
        if leaf.ndim == 3 and leaf.shape[-1] == 6:
            fill[-1] = (1, 2)
        value = False if leaf.dtype == bool else 7.5
        return jnp.asarray(np.pad(leaf, fill, constant_values=value))

    loss, gradient, _, metrics = evaluated(name)(*jax.tree.map(wider, (scores, batch)), BETA)
    slopes = jax.tree.map(lambda slope: slope[:4, :, 1:7], gradient)
    assert_close((loss, slopes, metrics), (result_of(name)[0], result_of(name)[1], result_of(name)[3]))
    assert np.sum(np.asarray(gradient.log_probs) != 0) == np.sum(np.asarray(slopes.log_probs) != 0)


@EVERY
def test_the_order_of_groups_and_of_members_does_not_matter(name):
    loss, gradient, _, metrics = result_of(name)
    for groups, members in (([2, 0, 3, 1], [0, 1, 2, 3, 4]), ([0, 1, 2, 3], [3, 1, 4, 0, 2])):
        grid = np.ix_(groups, members)

        def order(leaf, at=grid):
            return jnp.asarray(np.asarray(leaf)[at])

        found = evaluated(name)(*jax.tree.map(order, example(name)), BETA)
        assert_close((found[0], found[1], found[3]), (loss, jax.tree.map(order, gradient), metrics))


@pytest.mark.parametrize("name", ["grpo", "exact"])
def test_compiled_and_interpreted_give_the_same(name):
    scores, batch = example(name)
    loss, metrics = OBJECTIVES[name](scores, batch, BETA)
    assert_close((loss, metrics), (result_of(name)[0], result_of(name)[3]))


@pytest.mark.parametrize("name", ["dapo", "rloo"])
def test_eight_devices_give_the_numbers_of_one(name):
    # Sixteen groups, two on each device; whitening and means then cross devices.
    example_8 = jax.tree.map(lambda leaf: jnp.concatenate([leaf] * 4), example(name))
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    sharded = jax.device_put(example_8, NamedSharding(mesh, PartitionSpec("data")))
    found, expected = evaluated(name)(*sharded, BETA), evaluated(name)(*example_8, BETA)
    assert len(found[1].log_probs.sharding.device_set) == 8
    assert_close(found, expected)


FIELDS = {
    "grpo": ("log_probs", "entropy", "mask", "rewards", "valid", "old_log_probs", "ref_log_probs", "beta"),
    "rloo": (
        "log_probs",
        "entropy",
        "mask",
        "rewards",
        "valid",
        "task_rewards",
        "old_log_probs",
        "ref_log_probs",
        "beta",
    ),
    "dapo": (
        "log_probs",
        "mask",
        "rewards",
        "task_rewards",
        "old_log_probs",
        "behaviour_log_probs",
        "ref_log_probs",
        "beta",
    ),
    "gspo": ("log_probs", "mask", "rewards", "valid", "task_rewards", "old_log_probs", "ref_log_probs", "beta"),
    "exact": ("log_probs", "entropy", "full_kl", "mask", "rewards", "task_rewards", "old_log_probs", "beta"),
    "cispo": ("log_probs", "mask", "rewards", "old_log_probs", "behaviour_log_probs", "ref_log_probs", "beta"),
}


def flipped(name, field):
    """The example with one field changed where it is read."""
    scores, batch = example(name)
    if field == "beta":
        return scores, batch, 2 * BETA
    at = (0, 1)
    if field in ("mask", "valid"):
        return scores, batch._replace(**{field: getattr(batch, field).at[at].set(False)}), BETA
    if field == "task_rewards":
        return scores, batch._replace(task_rewards=batch.task_rewards.at[0].set(1.0)), BETA
    if field in scores._fields:
        return scores._replace(**{field: 1.3 * getattr(scores, field) + 0.1}), batch, BETA
    change = 0.4 if field == "rewards" else jnp.linspace(0.1, 0.9, 6)
    return scores, batch._replace(**{field: getattr(batch, field).at[at].add(change)}), BETA


@pytest.mark.parametrize(("name", "field"), [(name, field) for name in FIELDS for field in FIELDS[name]])
def test_every_field_that_an_objective_reads_changes_its_gradient(name, field):
    found = evaluated(name)(*flipped(name, field))
    before, after = (np.asarray(run[1].log_probs) for run in (result_of(name), found))
    entropy = np.any(np.asarray(found[1].entropy) != np.asarray(result_of(name)[1].entropy))
    assert np.max(np.abs(after - before)) > 1e-4 or entropy or found[0] != result_of(name)[0]
    assert field not in ("old_log_probs", "ref_log_probs", "rewards") or np.max(np.abs(after - before)) > 1e-4


@pytest.mark.parametrize(
    ("name", "field"),
    [
        (name, field)
        for name, field in itertools.product(FIELDS, ("entropy", "full_kl", "behaviour_log_probs"))
        if field not in FIELDS[name]
    ],
)
def test_what_an_objective_does_not_declare_it_does_not_read(name, field):
    found = evaluated(name)(*flipped(name, field))
    assert_equal((found[0], found[1].log_probs), (result_of(name)[0], result_of(name)[1].log_probs))
