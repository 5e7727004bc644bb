"""The KL term of one completion: placements, granularities, importance weights, masks, and what is refused."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax import kl
from grpo_jax.ratios import log_ratio
from tests.references import kl as reference

MASK = np.array([True, True, False, True, False])
PER_TOKEN = st.lists(st.floats(-2, 2, width=32), min_size=5, max_size=5)


def tokens(log_ratios, policy_ratios=None, mask=None, full_kl=None):
    log_ratios = jnp.asarray(log_ratios, jnp.float32)
    mask = jnp.ones(log_ratios.shape, bool) if mask is None else jnp.asarray(mask)
    policy_ratios = jnp.zeros_like(log_ratios) if policy_ratios is None else jnp.asarray(policy_ratios, jnp.float32)
    return kl.Tokens(log_ratios, policy_ratios, mask, None if full_kl is None else jnp.asarray(full_kl, jnp.float32))


def test_two_tokens_are_charged_by_placement_and_granularity():
    completion = tokens([0.1, 0.3])
    charge = {
        ("own_token", "token"): [0.1, 0.3],
        ("to_go", "token"): [0.4, 0.3],
        ("to_go", "sequence"): [0.4, 0.4],
    }
    for (placement, granularity), expected in charge.items():
        term = kl.penalty(kl.k1, placement, granularity)
        assert (term.loss, term.sequence_cost) == (None, None)
        np.testing.assert_allclose(term.token_cost(completion), expected, rtol=1e-6)
    for granularity in ("token", "sequence"):
        np.testing.assert_allclose(kl.penalty(kl.k1, "reward", granularity).sequence_cost(completion), 0.4, rtol=1e-6)


def test_a_sequence_estimate_is_charged_once_and_a_token_estimate_for_each_token():
    completion = tokens([0.1, 0.3])
    by_token = kl.penalty(kl.k2, "loss").loss(completion)
    np.testing.assert_allclose(by_token, [0.005, 0.045], rtol=1e-6)
    whole = kl.penalty(kl.k2, "loss", "sequence").loss(completion)
    np.testing.assert_allclose(whole, [0, 0.08], rtol=1e-6)


def test_both_charges_the_loss_and_the_return():
    term = kl.penalty(kl.k3, "both")
    completion = tokens([0.5, -0.2])
    estimates = [reference.k3(0.5), reference.k3(-0.2)]
    np.testing.assert_allclose(term.loss(completion), estimates, rtol=1e-5)
    np.testing.assert_allclose(term.token_cost(completion), [sum(estimates), estimates[1]], rtol=1e-5)
    assert term.sequence_cost is None


@pytest.mark.parametrize(
    ("values", "mask", "expected"),
    [
        ([1.0, 7.0, 2.0, np.nan], [1, 0, 1, 0], [3, 2]),
        ([0.0, 0.0, 1.0], [1, 0, 1], [1, 1]),  # what an environment wrote in between keeps nothing back (verl 7278),
        ([1.0, 2.0, 3.0], [1, 1, 0], [3, 2]),  # what stands behind the end is nobody's doing,
        ([1.5, 1.0, 2.0, 2.0], [1, 1, 0, 0], [2.5, 1]),  # padding on the right least of all (TRL 7024)
    ],
)
def test_the_return_is_carried_through_gaps_and_does_not_flow_back_from_behind_the_end(values, mask, expected):
    mask = np.array(mask, bool)
    to_go = kl.penalty(lambda u: u, "to_go").token_cost(tokens(values, mask=mask))
    np.testing.assert_allclose(to_go[mask], expected)


def test_the_cost_does_not_touch_the_log_ratios_it_is_computed_from():
    completion = tokens(jnp.array([0.5, 0.7, 0.9]) - jnp.array([0.4, 0.5, 0.6]))
    kl.penalty(kl.k1, "to_go").token_cost(completion)
    np.testing.assert_allclose(completion.log_ratios, [0.1, 0.2, 0.3], rtol=1e-6)


@functools.cache
def compiled(estimator, placement, granularity):
    term = kl.penalty(getattr(kl, estimator), placement, granularity, allow_biased=True)
    part = term.loss or term.token_cost or term.sequence_cost
    return jax.jit(lambda log_probs, ref, mask: part(tokens(log_ratio(log_probs, ref, mask), mask=mask)))


@pytest.mark.parametrize("estimator", ["k1", "k3"])
@given(PER_TOKEN, PER_TOKEN, st.lists(st.booleans(), min_size=5, max_size=5))
def test_costs_of_a_completion_are_those_of_a_loop(estimator, log_probs, ref, mask):
    inputs = (jnp.asarray(log_probs, jnp.float32), jnp.asarray(ref, jnp.float32), jnp.asarray(mask))
    formula = reference.ESTIMATORS[estimator][0]
    each = reference.per_token(formula, log_probs, ref, mask)
    once = reference.per_sequence(formula, log_probs, ref, mask)
    close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-4)
    close(compiled(estimator, "own_token", "token")(*inputs) * np.array(mask), each)
    close(compiled(estimator, "to_go", "token")(*inputs) * np.array(mask), reference.to_go(each, mask))
    close(compiled(estimator, "reward", "token")(*inputs), sum(each))
    close(compiled(estimator, "reward", "sequence")(*inputs), once if any(mask) else 0)


def test_importance_weights_are_products_of_ratios():
    policy_ratios = jnp.array([0.1, -0.2, 0.0, 0.4, 0.0])
    mask = jnp.asarray(MASK)
    causal = reference.causal_weights(policy_ratios)
    before = reference.prefix_weights(policy_ratios)
    expected = {
        "none": np.ones(5),
        "token": np.exp(policy_ratios),
        "prefix": np.array(before) * np.exp(policy_ratios),
        "causal": causal,
        "sequence": np.full(5, causal[-1]),
        "detached_sequence": np.full(5, causal[-1]),
    }
    for name, weights in expected.items():
        found = getattr(kl.importance, name)().weights(policy_ratios, mask)
        np.testing.assert_allclose(found[MASK], np.array(weights)[MASK], rtol=1e-5, err_msg=name)


def test_what_stays_differentiable_in_the_weights():
    policy_ratios, mask = jnp.array([0.1, -0.2, 0.4]), jnp.ones(3, bool)

    def jacobian(correction):
        return jax.jacobian(lambda u: correction.weights(u, mask))(policy_ratios)

    ratio, product = np.exp(policy_ratios), np.exp(np.cumsum(policy_ratios))
    np.testing.assert_allclose(jacobian(kl.importance.none()), np.zeros((3, 3)))
    np.testing.assert_allclose(jacobian(kl.importance.detached_sequence()), np.zeros((3, 3)))
    np.testing.assert_allclose(jacobian(kl.importance.token()), np.diag(ratio), rtol=1e-5)
    np.testing.assert_allclose(jacobian(kl.importance.prefix()), np.diag(product), rtol=1e-5)
    np.testing.assert_allclose(jacobian(kl.importance.causal()), np.tril(np.tile(product[:, None], 3)), rtol=1e-5)
    np.testing.assert_allclose(jacobian(kl.importance.sequence()), np.full((3, 3), product[-1]), rtol=1e-5)


def test_an_importance_weighted_term_gives_the_gradients_of_nemo_rl():
    current, ref, old = jnp.array([-1.2, -0.7]), jnp.array([-0.9, -1.1]), jnp.array([-1.5, -0.4])
    mask = jnp.ones(2, bool)

    def gradient(sampler, estimator):
        def loss(log_probs):
            term = kl.penalty(estimator, "loss", importance=kl.importance.token())
            return 0.3 * jnp.mean(
                term.loss(tokens(log_ratio(log_probs, ref, mask), log_ratio(log_probs, sampler, mask)))
            )

        return jax.grad(loss)(current)

    for estimator in (kl.k1, kl.k3):
        on_policy, off_policy = gradient(current, estimator), gradient(old, estimator)
        slope = 0.15 if estimator is kl.k1 else 0.0  # The bare score of k1, which averages to nothing.
        ratio = np.exp(np.array([0.3, -0.3]))
        np.testing.assert_allclose(on_policy - slope, [-0.045, 0.06], atol=1e-6)
        np.testing.assert_allclose(off_policy - slope * ratio, [-0.060744, 0.044449], atol=1e-6)


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
def test_masked_tokens_cost_exactly_nothing(poison):
    ref = jnp.array([0.1, 0.2, 0.4, poison])
    mask = jnp.array([True, True, True, False])

    def total(log_probs):
        completion = tokens(log_ratio(log_probs, ref, mask), mask=mask)
        return jnp.sum(jnp.where(mask, kl.penalty(kl.k3, "loss").loss(completion), 0))

    value, gradient = jax.value_and_grad(total)(jnp.array([0.2, 0.3, 0.5, 0.7]))
    np.testing.assert_allclose(value, 3 * reference.k3(0.1), rtol=1e-4)
    np.testing.assert_allclose(gradient, [0.0951626] * 3 + [0], rtol=1e-4)


def test_an_estimator_that_is_not_zero_at_zero_is_not_charged_for_masked_tokens():
    completion = tokens([0.5, 0.0, 0.0], mask=[True, False, False])
    for placement in ("reward", "to_go"):
        term = kl.penalty(lambda u: u + 1, placement, allow_biased=True)
        cost = (term.sequence_cost or term.token_cost)(completion)
        np.testing.assert_allclose(np.ravel(cost)[0], 1.5)


def test_a_completion_without_tokens_costs_nothing():
    nothing = tokens([0.0, 0.0], mask=[False, False])
    for granularity in ("token", "sequence"):
        assert kl.penalty(lambda u: u + 1, "reward", granularity, allow_biased=True).sequence_cost(nothing) == 0


def test_the_exact_kl_is_charged_to_earlier_tokens_only():
    completion = tokens([0.0] * 4, mask=[True, True, True, False], full_kl=[1, 2, 4, np.nan])
    term = kl.full_vocabulary("both")
    np.testing.assert_allclose(term.token_cost(completion)[:3], [6, 4, 0])
    np.testing.assert_allclose(term.loss(completion)[:3], [1, 2, 4])
    whole = kl.full_vocabulary("reward", allow_biased=True).sequence_cost(completion)
    np.testing.assert_allclose(whole, 7)


def test_the_exact_kl_is_weighted_by_what_came_before_the_token():
    completion = tokens([0.0] * 3, policy_ratios=[0.1, 0.2, 0.3], full_kl=[1, 2, 4])
    weighted = np.array([1, 2, 4]) * np.exp([0, 0.1, 0.3])
    for weights in (kl.prefix_weights(), kl.causal_weights()):
        np.testing.assert_allclose(kl.full_vocabulary("loss", weights).loss(completion), weighted, rtol=1e-6)


def test_a_missing_exact_kl_is_named():
    with pytest.raises(ValueError, match="the scores hold no full_kl"):
        kl.full_vocabulary("loss").loss(tokens([0.0]))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: kl.penalty(kl.k1, "loss"), r"E\[grad log pi\] = 0"),
        (lambda: kl.penalty(kl.k1, "loss", "sequence"), r"E\[grad log pi\] = 0"),
        (lambda: kl.penalty(kl.k3, "reward"), "reverse - local_forward, whose pull vanishes near the reference"),
        (lambda: kl.penalty(kl.k3, "to_go"), "pull vanishes near the reference"),
        (lambda: kl.penalty(kl.k2, "reward"), "follows none, whose pull vanishes"),
        (lambda: kl.penalty(kl.absolute, "reward"), "pull vanishes"),
        (lambda: kl.penalty(lambda u: -u), "- reverse, which pushes the policy away"),
        (lambda: kl.penalty(lambda u: 0 * u, "loss"), "its expected gradient is zero"),
        (lambda: kl.penalty(kl.straight_through(kl.k3, kl.k2), "reward"), "pull vanishes"),
        (lambda: kl.full_vocabulary("reward"), "reverse - local_reverse, whose pull vanishes"),
        (lambda: kl.full_vocabulary("to_go"), "pull vanishes"),
        (
            lambda: inspect.unwrap(kl.penalty)(kl.k1, "los"),
            "placement is 'los'; choose one of loss, reward, to_go, own_token, both",
        ),
        (
            lambda: inspect.unwrap(kl.penalty)(kl.k1, "reward", "word"),
            "granularity is 'word'; choose one of token, sequence",
        ),
        (lambda: kl.penalty(kl.k1, "own_token", "sequence"), "a sequence has no token of its own"),
        (lambda: kl.penalty(kl.k3, "loss", "sequence", kl.importance.token()), "importance token weighs single tokens"),
        (lambda: kl.penalty(kl.k1, "reward", importance=kl.importance.token()), "the surrogate's ratio"),
        (lambda: kl.penalty(kl.k3, "both", importance=kl.importance.causal()), "would count it twice"),
        (lambda: kl.full_vocabulary("both", kl.causal_weights()), "already contain the return"),
        (lambda: inspect.unwrap(kl.full_vocabulary)("own_token"), "placement is 'own_token'"),
    ],
)
def test_terms_that_lead_nowhere_or_mean_nothing_are_refused(build, message):
    # Unwrapped above where the type checker of the tests would refuse an argument before the library sees it.
    with pytest.raises(ValueError, match=message):
        build()


def test_a_refusal_says_what_to_use_instead_and_may_be_overruled():
    with pytest.raises(ValueError, match=r"Use kl.penalty\(kl.k1, placement='to_go'\)"):
        kl.penalty(kl.k3, "reward")
    assert kl.penalty(kl.k3, "reward", allow_biased=True).allow_biased
