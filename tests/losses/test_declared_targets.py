"""The gradient that an objective declares is, to machine precision, the expectation of the one it has.

Every completion of a tabular policy is listed, the objective itself is differentiated on each of them (or on each pair,
where a group needs a baseline), and the sum, weighted by the sampler's probabilities, is compared with gradients taken
by hand in NumPy (tests/references/tabular.py).
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import kl
from grpo_jax.advantages import centred, from_function, leave_one_out, standardised
from grpo_jax.losses import degenerate, mismatch, objective, reductions, surrogates
from grpo_jax.types import Batch, Scores
from tests.references import tabular

POLICY, REFERENCE, SAMPLER = (tabular.random_logits(seed) for seed in (1, 2, 3))
EXACT = tabular.exact_gradients(POLICY, REFERENCE, SAMPLER)
UNIT = np.linalg.norm(EXACT["reverse"])
CARRY = (tabular.token_scores(POLICY), tabular.full_kl(POLICY, REFERENCE)[1])
BETA = 0.37
NO_ADVANTAGE = from_function(lambda rewards, mask: 0 * rewards, name="no_advantage")
# Nothing here runs for long enough to be worth optimising.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def not_zero_at_zero(u):
    return u + jnp.exp(-u)


ESTIMATORS = {
    "k1": kl.k1,
    "k2": kl.k2,
    "k3": kl.k3,
    "absolute": kl.absolute,
    "straight_through": kl.straight_through(kl.k3, kl.k2),
    "mixture": kl.mixture((0.3, kl.k1), (0.5, kl.k3)),
    "tanh": jnp.tanh,
    "not_zero_at_zero": not_zero_at_zero,
}
IMPORTANCE = {
    "token": ("none", "token", "prefix", "sequence", "causal", "detached_sequence"),
    "sequence": ("none", "sequence", "detached_sequence"),
}
IN_LOSS = [(each, "token", how) for each in ESTIMATORS for how in IMPORTANCE["token"]] + [
    (each, "sequence", how) for each in list(ESTIMATORS)[:6] for how in IMPORTANCE["sequence"]
]
AS_COST = [
    (each, placement, granularity)
    for each in list(ESTIMATORS)[:6]
    for placement, granularity in itertools.product(("reward", "to_go", "own_token", "both"), IMPORTANCE)
    if (placement, granularity) != ("own_token", "sequence")
] + [("not_zero_at_zero", placement, "token") for placement in ("reward", "to_go", "own_token", "both")]
FULL = [
    *(kl.full_vocabulary(placement, allow_biased=True) for placement in ("loss", "reward", "to_go", "both")),
    kl.full_vocabulary("loss", kl.prefix_weights()),
    kl.full_vocabulary("loss", kl.causal_weights()),
]


def build(term, surrogate=None, reduction=None, advantage=None):
    """An objective without any reward, so that its gradient is that of its KL term."""
    in_reward = term.sequence_cost is not None
    return objective(
        advantage or (leave_one_out() if in_reward else NO_ADVANTAGE),
        surrogate or surrogates.sequence_importance_weighted(),
        reduction or reductions.sequence_mean_of_token_sum(),
        kl=term,
    )


@functools.cache
def groups_of(size):
    """Every group of completions, as indices ``[N, G]``."""
    return np.array(list(itertools.product(range(len(tabular.COMPLETIONS)), repeat=size)))


def slopes(built, size, on_policy_by_default):
    """Returns a function from a sampler's logits to the gradients of each group by log-probs and exact KL."""

    def loss(log_probs, full_kl, old, ref, mask):
        recorded = None if on_policy_by_default else old
        batch = Batch(mask, jnp.zeros(mask.shape[:2]), old_log_probs=recorded, ref_log_probs=ref)
        return built(Scores(log_probs, full_kl=full_kl if built.needs_full_kl else None), batch, BETA)[0]

    compiled = jax.jit(jax.vmap(jax.grad(loss, argnums=(0, 1))), compiler_options=QUICK)

    def evaluated(sampler):
        full_kl = tabular.full_kl(POLICY, REFERENCE)[0]
        fields = (tabular.log_probs(POLICY), full_kl, tabular.log_probs(sampler), tabular.log_probs(REFERENCE))
        return compiled(*(jnp.asarray(field[groups_of(size)][:, None]) for field in (*fields, tabular.MASK)))

    return evaluated


def expected_gradients(built, samplers=(POLICY, SAMPLER), size=1, on_policy_by_default=False):
    """The objective's expected gradient by the logits, per unit of beta, for groups drawn from each sampler."""
    groups = groups_of(size)
    with jax.enable_x64(True):
        evaluated = slopes(built, size, on_policy_by_default)
        found = [evaluated(sampler) for sampler in samplers]
    expected = []
    for sampler, parts in zip(samplers, found, strict=True):
        weights = np.prod(tabular.probabilities(sampler)[groups], axis=1)[:, None, None]
        gradient = np.zeros_like(POLICY)
        for slope, carry in zip(parts, CARRY, strict=True):
            assert slope.dtype == np.float64
            # Each completion collects the weight of all groups in which it stands.
            collected = np.zeros(tabular.MASK.shape)
            np.add.at(collected, groups, weights * np.asarray(slope)[:, 0])
            gradient += np.einsum("nt,ntrv->rv", collected, carry)
        expected.append(gradient / BETA)
    return expected


def assert_follows(target, gradient):
    """Equal to what is declared, or, where nothing is declared, to no combination of the known gradients at all."""
    if target.none:
        known = np.stack([exact.ravel() for exact in EXACT.values()], axis=1)
        best = known @ np.linalg.lstsq(known, gradient.ravel(), rcond=None)[0]
        assert np.linalg.norm(best - gradient.ravel()) > 2e-3 * np.linalg.norm(gradient)
        return
    declared = sum((value * EXACT[name] for name, value in target.coefficients.items()), np.zeros_like(POLICY))
    error = np.linalg.norm(gradient - declared)
    assert error < 1e-10 * max(np.linalg.norm(declared), UNIT), f"{target.name}: {error}"


def assert_declarations_hold(built, size=1):
    on_policy, off_policy = expected_gradients(built, size=size)
    assert_follows(built.target, on_policy)
    assert_follows(built.off_policy_target, off_policy)


def test_the_known_gradients_are_those_of_finite_differences():
    def of_logits(name):
        def value(logits):
            pi, p = tabular.probabilities(logits), tabular.probabilities(REFERENCE)
            policy, reference = tabular.log_softmax(logits), tabular.log_softmax(REFERENCE)
            forward = np.sum(np.exp(reference) * (reference - policy), axis=1)
            reverse = np.sum(np.exp(policy) * (policy - reference), axis=1)
            ratio, visited = np.log(pi / p), np.where(tabular.MASK, 1, 0)
            frozen = tabular.probabilities(SAMPLER if "sampler" in name else POLICY)[:, None] * visited
            return {
                "reverse": np.sum(pi * ratio),
                "forward": -np.sum(p * ratio),
                "local_reverse": np.sum(frozen * reverse[tabular.ROWS]),
                "local_forward": np.sum(frozen * forward[tabular.ROWS]),
                "length": np.sum(pi / tabular.LENGTHS),
            }[name.removeprefix("sampler_")]

        return value

    for name, exact in EXACT.items():
        value, step = of_logits(name), 1e-5
        for index in np.ndindex(*POLICY.shape):
            move = np.zeros_like(POLICY)
            move[index] = step
            numeric = (value(POLICY + move) - value(POLICY - move)) / (2 * step)
            np.testing.assert_allclose(exact[index], numeric, atol=1e-9, err_msg=name)


@pytest.mark.parametrize(("estimator", "granularity", "importance"), IN_LOSS)
def test_a_term_in_the_loss_follows_what_it_declares(estimator, granularity, importance):
    correction = getattr(kl.importance, importance)()
    term = kl.penalty(ESTIMATORS[estimator], "loss", granularity, correction, allow_biased=True)
    assert_declarations_hold(build(term))


@pytest.mark.parametrize(("estimator", "placement", "granularity"), AS_COST)
def test_a_cost_follows_what_it_declares(estimator, placement, granularity):
    term = kl.penalty(ESTIMATORS[estimator], placement, granularity, allow_biased=True)
    assert_declarations_hold(build(term), size=2 if placement == "reward" else 1)


@pytest.mark.parametrize("term", FULL, ids=lambda term: term.name)
def test_the_exact_kl_follows_what_it_declares(term):
    assert_declarations_hold(build(term), size=2 if term.placement == "reward" else 1)


EVERY_SURROGATE = [
    surrogates.reinforce(),
    surrogates.importance_weighted(),
    surrogates.sequence_importance_weighted(),
    surrogates.clipped(0.1, 0.1),
    surrogates.clipped(0.0, 0.0),
    surrogates.dual_clipped(),
    surrogates.cispo(),
    surrogates.gspo_token(),
    surrogates.sapo(),
]


@pytest.mark.parametrize("surrogate", EVERY_SURROGATE, ids=lambda surrogate: surrogate.name)
def test_a_cost_under_any_surrogate_follows_what_it_declares(surrogate):
    built = build(kl.penalty(kl.k1, "to_go"), surrogate)
    assert built.target.name == "reverse"
    assert_declarations_hold(built)


@pytest.mark.parametrize("surrogate", EVERY_SURROGATE[:4], ids=lambda surrogate: surrogate.name)
def test_a_cost_at_its_own_token_is_corrected_by_token_ratios_up_to_the_prefixes(surrogate):
    assert_declarations_hold(build(kl.penalty(kl.k1, "own_token"), surrogate))


@pytest.mark.parametrize("surrogate", [EVERY_SURROGATE[1], surrogates.gspo()], ids=lambda surrogate: surrogate.name)
def test_a_cost_in_the_reward_under_other_surrogates_follows_what_it_declares(surrogate):
    assert_declarations_hold(build(kl.penalty(kl.k1, "reward"), surrogate), size=2)


def test_a_self_included_mean_shrinks_the_cost_in_the_reward_by_one_member():
    built = build(kl.penalty(kl.k1, "reward"), advantage=centred())
    for gradient in expected_gradients(built, size=2):
        np.testing.assert_allclose(gradient, EXACT["reverse"] / 2, atol=1e-12)
    assert any("(G-1)/G" in note and "KL" in note for note in built.notes)


@pytest.mark.parametrize(
    "term",
    [kl.penalty(kl.k1), kl.penalty(kl.k2, "loss", "sequence"), kl.penalty(kl.k3, "loss"), kl.full_vocabulary("both")]
    + [kl.penalty(kl.k3, "loss", importance=kl.importance.token()), kl.penalty(kl.k3, "both")],
    ids=lambda term: term.name,
)
def test_without_recorded_log_probs_the_current_policy_counts_as_the_sampler(term):
    built = build(term)
    (gradient,) = expected_gradients(built, [POLICY], on_policy_by_default=True)
    assert_follows(built.target, gradient)
    assert built.target.name in ("reverse", "local_reverse", "local_forward")


DIVIDED = {
    "k1 loss": (kl.penalty(kl.k1, "loss", allow_biased=True), "length"),
    "k1 loss sequence": (kl.penalty(kl.k1, "loss", "sequence", allow_biased=True), "length"),
    "k1 loss detached": (
        kl.penalty(kl.k1, "loss", "sequence", kl.importance.detached_sequence(), allow_biased=True),
        "length",
    ),
    "k2 loss": (kl.penalty(kl.k2, "loss"), "none"),
    "k3 loss": (kl.penalty(kl.k3, "loss"), "none"),
    "k1 to_go": (kl.penalty(kl.k1), "none"),
    "k1 reward": (kl.penalty(kl.k1, "reward"), "none"),
    "full both": (kl.full_vocabulary("both"), "none"),
}


@pytest.mark.parametrize("case", DIVIDED)
def test_division_by_each_length_follows_at_most_a_push_on_length(case):
    term, name = DIVIDED[case]
    built = build(term, reduction=reductions.sequence_mean_of_token_mean())
    assert built.target.name == name
    assert_declarations_hold(built, size=2 if term.placement == "reward" else 1)


@pytest.mark.parametrize("case", ["k1 loss", "k2 loss", "k1 to_go"])
def test_division_by_the_batchs_tokens_follows_nothing(case):
    built = build(DIVIDED[case][0], reduction=reductions.token_mean())
    assert built.target.name == "none"
    assert_declarations_hold(built, size=2)


def test_a_constant_length_only_scales_the_gradient():
    built = build(kl.penalty(kl.k1), reduction=reductions.constant_length(7))
    assert built.target.name == built.off_policy_target.name == "reverse"
    for gradient in expected_gradients(built):
        np.testing.assert_allclose(7 * gradient, EXACT["reverse"], atol=1e-12)


@pytest.mark.parametrize(
    ("options", "on_policy", "off_policy"),
    [
        ({}, "reverse", "reverse"),
        ({"degenerate": degenerate.entropy_shaped()}, "reverse", "reverse"),
        ({"degenerate": degenerate.mask()}, "none", "none"),
        ({"degenerate": degenerate.smooth()}, "none", "none"),
        ({"mismatch": mismatch.truncated_token()}, "reverse", "none"),
        ({"off_policy": mismatch.off_policy_sequences(0.1)}, "reverse", "none"),
    ],
)
def test_whatever_reweights_groups_or_tokens_takes_the_declaration_back(options, on_policy, off_policy):
    built = objective(
        leave_one_out(),
        surrogates.sequence_importance_weighted(),
        reductions.sequence_mean_of_token_sum(),
        kl=kl.penalty(kl.k1, "to_go"),
        **options,
    )
    assert (built.target.name, built.off_policy_target.name) == (on_policy, off_policy)
    assert (built.target.none == "") == (on_policy != "none")


@pytest.mark.parametrize(
    ("advantage", "name"), [(centred(), "reverse"), (leave_one_out(), "reverse"), (standardised(), "none")]
)
def test_a_kl_term_in_the_reward_is_declared_only_where_the_advantage_scales_it_by_a_number(advantage, name):
    term = kl.penalty(kl.k1, "reward", allow_biased=True)
    built = objective(advantage, surrogates.reinforce(), reductions.sequence_mean_of_token_sum(), kl=term)
    assert built.target.name == name
