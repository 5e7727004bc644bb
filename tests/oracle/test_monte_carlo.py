"""Certificates from samples against the exact ones, on a policy small enough to have both."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import kl
from grpo_jax.losses import mismatch, objective
from grpo_jax.models import prefix_tabular
from grpo_jax.oracle import certify, enumerated, expectation, multisets, random_instance, tables
from grpo_jax.oracle import references as known
from grpo_jax.oracle.blocks import _projections, block_products
from grpo_jax.oracle.certify import as_objective
from grpo_jax.oracle.declared import declaration
from grpo_jax.oracle.jackknife import findings
from grpo_jax.oracle.references import basis
from grpo_jax.oracle.targets import NAMES
from grpo_jax.rollouts import categorical, sampler
from grpo_jax.types import Batch, Prompts

GROUPS, MEMBERS, BLOCKS, DIRECTIONS, REPLICATIONS = 72, 2, 8, 4, 250
DIRECTION_KEY = jax.random.key(5)
POLICY = prefix_tabular(3, 2)


def near(instance):
    """Policy and sampler half way to the reference, so that no weight is so rare that no sample has it."""
    theirs = np.asarray(instance.ref_params["logits"])
    params, behaviour = (
        {"logits": ((np.asarray(each["logits"]) + theirs) / 2).astype(np.float32)}
        for each in (instance.params, instance.behaviour_params)
    )
    return instance._replace(params=params, behaviour_params=behaviour)


INSTANCE = near(random_instance(enumerated(POLICY, 2), 1))
PARAMS, REF, BEHAVIOUR = (
    {"logits": jnp.asarray(np.asarray(each["logits"], np.float32))}
    for each in (INSTANCE.params, INSTANCE.ref_params, INSTANCE.behaviour_params)
)
score = functools.partial(POLICY.score, temperature=1.0)
generate = sampler(POLICY, categorical(), MEMBERS, 2, (0,), 0)
PROMPTS = Prompts(jnp.zeros((GROUPS, 1), jnp.int32), jnp.ones((GROUPS, 1), bool))


def declaring(term, **coefficients):
    """The term with another declaration planted in it."""
    target = kl.Target(slope=1.0, **coefficients)
    return term._replace(target=target, loss_off_policy=target, cost_target=target)


def drawn(key, off_policy=False):
    """A rollout and its batch; rewards are 0."""
    rollout = generate(BEHAVIOUR if off_policy else PARAMS, PROMPTS, key=key)
    batch = Batch(rollout.mask, jnp.zeros((GROUPS, MEMBERS)), ref_log_probs=score(REF, rollout).log_probs)
    return rollout, batch._replace(old_log_probs=rollout.log_probs if off_policy else None)


@functools.cache
def replicated(name, off_policy):
    """The findings of many samples, and of the exact expectation what they estimate."""
    certified = as_objective(TERMS[name])
    promised = declaration(certified, MEMBERS, off_policy)
    chosen = basis(promised.target)
    measure = block_products(score, certified, MEMBERS, blocks=BLOCKS, directions=DIRECTIONS, off_policy=off_policy)

    def once(key):
        rollout, batch = drawn(key, off_policy)
        return findings(measure(PARAMS, rollout, batch, 1.0, REF, DIRECTION_KEY), chosen)

    found = jax.device_get(jax.jit(jax.vmap(once))(jax.random.split(jax.random.key(3), REPLICATIONS)))
    evaluated = tables(INSTANCE, off_policy)
    exact = expectation(certified, evaluated, multisets(len(evaluated.mask), MEMBERS))
    unit = sum(value * evaluated.targets[target] for target, value in chosen.follows.coefficients.items())
    difference = exact.kl - (0 * unit if promised.target.name == "zero" else unit)
    return found, exact, unit, difference, evaluated


TERMS = {
    "k1": kl.penalty(kl.k1),
    "k1 in the loss": kl.penalty(kl.k1, "loss", allow_biased=True),
    "wrong": declaring(kl.penalty(kl.k3, "loss", "sequence"), reverse=1.0),
    "local": kl.penalty(kl.k1, "own_token"),
}


def directed(gradient):
    """An exact gradient on the random directions."""
    tree = jax.tree.map(lambda leaf: jnp.asarray(gradient, jnp.float32).reshape(leaf.shape), PARAMS)
    return np.asarray(_projections((tree,), DIRECTION_KEY, DIRECTIONS))[:, 0]


def covers(interval, truth, slack=1e-6):
    return np.mean((interval.low <= truth + slack) & (interval.high >= truth - slack))


def assert_mean(values, truth):
    """The mean over replications is the truth, up to four of its standard errors."""
    error = np.std(values, axis=0) / np.sqrt(len(values))
    np.testing.assert_array_less(np.abs(np.mean(values, axis=0) - truth), 4 * error + 1e-7)


@pytest.mark.parametrize(
    ("name", "off_policy"),
    [
        ("k1", False),
        ("k1", True),
        ("local", False),
        pytest.param("k1 in the loss", False, marks=pytest.mark.slow),
        pytest.param("wrong", False, marks=pytest.mark.slow),
    ],
)
def test_estimates_are_unbiased_and_intervals_cover(name, off_policy):
    found, exact, unit, difference, _ = replicated(name, off_policy)
    assert_mean(found.projections.value, directed(exact.kl))
    assert_mean(found.differences.value, directed(difference))
    assert_mean(found.squared_bias.value, np.sum(np.square(difference)))
    assert_mean(found.squared_unit.value, np.sum(np.square(unit)))
    assert_mean(found.variance.value, exact.kl_variance)
    assert 0.90 <= covers(found.projections, directed(exact.kl)) <= 0.99
    assert covers(found.squared_bias, np.sum(np.square(difference))) >= 0.93
    seen = np.isfinite(found.relative_bias.low)
    assert seen.mean() > 0.8
    relative = jax.tree.map(lambda leaf: leaf[seen], found.relative_bias)
    assert covers(relative, np.linalg.norm(difference) / np.linalg.norm(unit)) >= 0.93
    if name != "wrong":  # a true declaration is seldom called wrong
        assert np.mean(found.relative_bias.low > 0) < 0.05
    if name == "k1 in the loss":  # what pulls nowhere has no direction
        assert np.mean(np.isfinite(found.cosine.low)) < 0.05


@pytest.mark.parametrize(("name", "off_policy"), [("k1", False), ("local", False), ("k1", True)])
def test_the_intervals_of_cosines_cover_also_at_their_bound(name, off_policy):
    found, exact, unit, _, evaluated = replicated(name, off_policy)
    for interval, other in ((found.cosine, unit), (found.cosine_reverse, evaluated.targets["reverse"])):
        seen = np.isfinite(interval.low)
        assert seen.mean() > 0.5
        cosine = exact.kl @ other / np.linalg.norm(exact.kl) / np.linalg.norm(other)
        assert covers(jax.tree.map(lambda leaf, seen=seen: leaf[seen], interval), cosine) >= 0.93


def test_weights_say_how_many_samples_of_the_policy_those_of_another_are_worth():
    found, _, _, _, evaluated = replicated("k1", True)
    exact = 1 / np.sum(evaluated.probabilities * np.square(evaluated.weights))
    np.testing.assert_allclose(np.mean(found.effective_sample_size), exact, rtol=0.05)
    np.testing.assert_allclose(replicated("k1", False)[0].effective_sample_size, 1, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_every_reference_follows_what_it_stands_for(name):
    found = certify(known.reference(kl.Target(**{name: 0.5})), max_tokens=2)
    assert found.agrees
    assert found.off.declared == f"0.5 {name}"
    assert found.off.distance < 1e-12


def test_nothing_is_no_reference():
    for target in (kl.Target(), kl.Target(reverse=1.0).without("for a reason")):
        with pytest.raises(ValueError, match="no gradient that a reference could follow"):
            known.reference(target)


def baselines(rollout, weights):
    """The mean KL to come of the other members that still run, and the weight of what came before, at every token."""
    exact, found = np.asarray(score(PARAMS, rollout, ref_params=REF).full_kl), np.zeros(rollout.mask.shape)
    for p, g, t in np.argwhere(rollout.mask):
        others = [
            exact[p, other, t + 1 :].sum() for other in range(MEMBERS) if other != g and rollout.mask[p, other, t]
        ]
        found[p, g, t] = weights[p, g, t] * np.mean(others) if others else 0
    return jnp.asarray(found, jnp.float32)


@pytest.mark.parametrize("off_policy", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_products_are_those_of_the_gradients_of_blocks_taken_one_by_one(off_policy):
    term = kl.penalty(kl.k3, "loss", "token", kl.importance.detached_sequence())
    parts = as_objective(term).parts
    certified = objective(*parts[:2], parts.reduction, kl=term, mismatch=mismatch.truncated_sequence(1e9))
    rollout, batch = drawn(jax.random.key(0), off_policy)
    rewards = jnp.arange(2.0 * GROUPS).reshape(GROUPS, 2) % 3
    batch = batch._replace(behaviour_log_probs=rollout.log_probs, rewards=rewards)
    if off_policy:
        batch = batch._replace(old_log_probs=score(PARAMS, rollout).log_probs)
    measured = block_products(score, certified, MEMBERS, blocks=4, off_policy=off_policy)
    found = jax.jit(measured)(PARAMS, rollout, batch, 0.7, REF, DIRECTION_KEY)

    def gradient(built, batch, beta):
        blocks = jax.tree.map(lambda leaf: jnp.stack([leaf[block::4] for block in range(4)]), (rollout, batch))
        loss = lambda params, block: built(score(params, block[0], ref_params=REF), block[1], beta)[0]  # noqa: E731
        each = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0)))(PARAMS, blocks)["logits"]
        return np.asarray(each).reshape(4, -1)

    plain = batch._replace(rewards=0 * rewards, old_log_probs=rollout.log_probs if off_policy else None)
    followed = "reverse" if off_policy else "local_forward"  # a bounded weight corrects only in part
    others = [gradient(known.reference(kl.Target(**{name: 1.0})), plain, 1.0) for name in ("reverse", followed)]
    weighted = baselines(rollout, np.exp(np.cumsum(score(PARAMS, rollout).log_probs - rollout.log_probs, axis=-1)))
    control = lambda scores, batch, beta: (beta * jnp.sum(scores.log_probs * batch.rewards), None)  # noqa: E731
    others[0] = others[0] - gradient(control, plain._replace(rewards=weighted), 1 / 36)
    own = (gradient(certified, batch, 0.7) - gradient(certified, batch, 0.0)) / 0.7
    expected = np.stack([own - others[-1], *others], axis=1)
    np.testing.assert_allclose(found.own, np.einsum("bid,bjd->bij", expected, expected), atol=2e-6)
    np.testing.assert_allclose(found.sums, np.einsum("bid,jd->bij", expected, expected.sum(axis=0)), atol=2e-6)
    np.testing.assert_allclose(found.neighbours, np.einsum("bid,bjd->bij", expected[1:], expected[:-1]), atol=2e-6)
    np.testing.assert_array_equal(found.groups, 18)


def test_padding_the_record_of_the_sampler_and_beta_change_nothing_on_policy():
    measured = jax.jit(block_products(score, as_objective(kl.k1), MEMBERS, blocks=5))
    rollout, batch = drawn(jax.random.key(1))
    batch = batch.check()._replace(old_log_probs=rollout.log_probs, behaviour_log_probs=rollout.log_probs)

    def products(batch, beta=1.0):
        return measured(PARAMS, rollout, batch, jnp.float32(beta), REF, DIRECTION_KEY)

    found = products(batch)
    np.testing.assert_array_equal(found.groups, [15, 15, 14, 14, 14])
    other = batch._replace(old_log_probs=rollout.log_probs - 1, behaviour_log_probs=rollout.log_probs + 1)
    jax.tree.map(np.testing.assert_array_equal, products(other), found)
    missing = batch.valid & (jnp.arange(GROUPS) < GROUPS - 4)[:, None]
    np.testing.assert_array_equal(products(batch._replace(valid=missing)).groups, [14, 14, 14, 13, 13])
    for beta in (0.0, 0.01):  # 0 stands for 1
        np.testing.assert_allclose(products(batch, beta).sums, found.sums, rtol=1e-3, atol=1e-5)
