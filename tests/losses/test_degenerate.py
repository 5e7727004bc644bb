"""Groups whose members all scored alike: what they still do, and what each rule makes of them."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import kl
from grpo_jax.advantages import leave_one_out, standardised, weighted_sum
from grpo_jax.losses import degenerate, objective, reductions, surrogates
from grpo_jax.types import Batch, Scores

QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
ADVANTAGES = {"grpo": standardised(), "rloo": leave_one_out()}
TERMS = {
    "k3 in the loss": kl.penalty(kl.k3, "loss"),
    "k2 of the sequence in the loss": kl.penalty(kl.k2, "loss", "sequence"),
    "k1 in the reward": kl.penalty(kl.k1, "reward"),
    "k1 to go": kl.penalty(kl.k1, "to_go"),
    "k1 at its own token": kl.penalty(kl.k1, "own_token"),
    "k3 in both": kl.penalty(kl.k3, "both"),
    "exact in both": kl.full_vocabulary("both"),
}
RULES = {
    "keep": degenerate.keep(),
    "mask all": degenerate.mask("all"),
    "mask live": degenerate.mask("live"),
    "smooth": degenerate.smooth(),
    "entropy": degenerate.entropy_shaped(),
}
DEAD = np.array([False, True, True])
PAIRS = [(a, t) for a in ADVANTAGES for t in TERMS if not (a == "grpo" and TERMS[t].sequence_cost)]


def inputs(rewards, seed=0):
    rewards = np.asarray(rewards, np.float32)
    shape = (*rewards.shape[:2], 3)
    # Drawn on the host, where a new shape costs no compilation.
    log_probs, ref, entropy, full = np.random.default_rng(seed).standard_normal((4, *shape)).astype(np.float32)
    scores = Scores(*(jnp.asarray(x) for x in (log_probs, np.abs(entropy), np.abs(full))))
    return scores, Batch(jnp.asarray(np.ones(shape, bool)), jnp.asarray(rewards), ref_log_probs=jnp.asarray(ref))


@functools.cache
def build(advantage, term, rule, eta=0.0):
    return objective(
        ADVANTAGES[advantage],
        surrogates.clipped(),
        reductions.token_mean(),
        kl=TERMS[term],
        degenerate=rule,
        entropy_coefficient=eta,
    )


@functools.cache
def gradients(advantage, term):
    """Gradients by every score under keep and both masks, with an entropy bonus where asked for."""

    def each(scores, batch, beta):
        found = {}
        for rule in ("keep", "mask all", "mask live"):
            built = build(advantage, term, RULES[rule], eta=0.01)
            found[rule] = jax.grad(lambda scores, built=built: built(scores, batch, beta)[0])(scores)
        return found

    return jax.jit(each, compiler_options=QUICK)


@pytest.mark.parametrize(("advantage", "term"), PAIRS)
def test_equal_rewards_move_the_policy_by_kl_and_masking_stops_exactly_that(advantage, term):
    scores, batch = inputs([[0.0, 1, 1, 0], [0.7] * 4, [0.0] * 4])
    found = gradients(advantage, term)(scores, batch, 0.04)
    without = gradients(advantage, term)(scores, batch, 0.0)
    assert np.any(found["keep"].log_probs[DEAD] != 0), "with beta > 0 the KL term acts"
    np.testing.assert_array_equal(without["keep"].log_probs[DEAD], 0, "with beta = 0 nothing does")
    assert np.all(found["keep"].entropy != 0), "the entropy bonus acts on every group"
    for rule in ("mask all", "mask live"):
        for slope in jax.tree.leaves(found[rule]):
            np.testing.assert_array_equal(slope[DEAD], 0)
        assert np.any(found[rule].log_probs[~DEAD] != 0)
        assert np.all(found[rule].entropy[~DEAD] != 0)
    for kept, masked, live in zip(*(jax.tree.leaves(found[rule]) for rule in found), strict=True):
        np.testing.assert_array_equal(masked[~DEAD], kept[~DEAD], "live groups are untouched")
        np.testing.assert_allclose(live[~DEAD], 3 * kept[~DEAD], rtol=1e-5, atol=1e-8)


@functools.cache
def compiled(built):
    return jax.jit(jax.grad(built, has_aux=True), compiler_options=QUICK)


def evaluate(built, scores, batch, beta=0.1):
    """Gradients by every score, and metrics."""
    return compiled(built)(scores, batch, beta)


@pytest.mark.parametrize(
    ("term", "slope"),
    [(kl.penalty(kl.k3, "loss"), 0.015739), (kl.penalty(kl.k3, "loss", importance=kl.importance.token()), 0.02)],
)
def test_the_kl_slope_of_a_token_in_a_group_of_equal_rewards(term, slope):
    built = objective(standardised(), surrogates.clipped(), reductions.token_mean(), kl=term)
    batch = Batch(jnp.ones((1, 4, 1), bool), jnp.ones((1, 4)), ref_log_probs=jnp.full((1, 4, 1), -1.5))
    gradient, _ = evaluate(built, Scores(jnp.full((1, 4, 1), -1.0)), batch, 0.04)
    np.testing.assert_allclose(4 * gradient.log_probs, slope, atol=1e-6)


def group(rewards, mask=None):
    rewards = jnp.asarray(rewards, jnp.float32)
    mask = jnp.ones(rewards.shape, bool) if mask is None else jnp.asarray(mask)
    spread = jnp.max(rewards, where=mask, initial=-jnp.inf) - jnp.min(rewards, where=mask, initial=jnp.inf)
    return degenerate.Group(jnp.where(mask, rewards, 0), mask, spread, spread <= 0)


def test_the_smooth_weight_is_exactly_zero_for_equal_rewards_where_a_shifted_sigmoid_is_a_half():
    weight = degenerate.smooth().weight
    for value in (0.0, 0.1, 0.7, 1e6):
        assert weight(group([value] * 16)) == 0
    np.testing.assert_allclose(jax.nn.sigmoid((0.0 - 1e-6) * 1000), 0.49975, atol=1e-6)


def test_the_smooth_weight_rises_from_zero_to_one_with_the_standard_deviation():
    weight = degenerate.smooth(scale=0.1).weight
    np.testing.assert_allclose(weight(group([0.0, 0.2])), np.tanh(1), rtol=1e-5)
    np.testing.assert_allclose(weight(group([0.0, 0.02, 9e9], [True, True, False])), np.tanh(0.1), rtol=1e-5)
    assert weight(group([0.0, 5.0])) == 1
    rising = [float(weight(group([0.0, spread]))) for spread in (0, 1e-6, 1e-3, 0.1, 0.3, 1)]
    assert rising == sorted(rising)
    assert rising[1] > 0


def test_the_smooth_weight_scales_a_groups_whole_gradient():
    scores, batch = inputs([[0.0, 1], [0.5, 0.501], [0.3, 0.3]])
    kept, smoothed = (
        evaluate(build("rloo", "k1 to go", rule), scores, batch)[0].log_probs
        for rule in (degenerate.keep(), degenerate.smooth(1e-3))
    )
    weights = np.array([1, np.tanh(0.5), 0])[:, None, None]
    np.testing.assert_allclose(smoothed, weights * kept, rtol=2e-4, atol=1e-7)
    np.testing.assert_array_equal(smoothed[2], 0)


@pytest.mark.parametrize("value", [0.1, 0.7, 1 / 3, 1e-30, 1e30, -2.6])
def test_equal_rewards_are_degenerate_whatever_their_value_and_a_standard_deviation_would_not_see_it(value):
    scores, batch = inputs(np.full((1, 16), value))
    gradient, metrics = evaluate(build("grpo", "k3 in the loss", RULES["keep"]), scores, batch, 0.0)
    np.testing.assert_array_equal(gradient.log_probs, 0)
    assert metrics["degenerate"].compute() == 1
    assert (metrics["advantage"].mean, metrics["advantage"].std()) == (0, 0)


def test_the_formula_gives_sixteen_rewards_of_seven_tenths_an_advantage_of_nine_tenths():
    rewards = np.full(16, 0.7, np.float32)
    residue = rewards - np.asarray(jnp.sum(jnp.asarray(rewards)) / 16)
    formula = residue / (np.sqrt(np.sum(residue**2) / 15) + 1e-8)
    np.testing.assert_allclose(formula, 0.896, atol=1e-3)
    scores, batch = inputs(rewards[None])
    gradient, _ = evaluate(build("grpo", "k3 in the loss", RULES["keep"]), scores, batch, 0.0)
    np.testing.assert_array_equal(gradient.log_probs, 0)


def test_all_right_is_rewarded_by_entropy_and_all_wrong_punished_by_the_lack_of_it():
    entropy = jnp.array([[0.2, 0.5, 9.0], [1.0, 0.3, 0.1]])
    tokens = jnp.array([[True, True, False], [True, True, True]])
    shape = degenerate.entropy_shaped(alpha=0.1).shape
    right = shape(group([1.0, 1]), entropy, tokens)
    np.testing.assert_allclose(right, [[0.02, 0.05, 0], [0.1, 0.03, 0.01]], rtol=1e-5)
    wrong = shape(group([0.0, 0]), entropy, tokens)
    np.testing.assert_allclose(wrong, [[-0.03, 0, 0], [0, -0.07, -0.09]], rtol=1e-5, atol=1e-8)
    np.testing.assert_array_equal(shape(group([0.0, 1]), entropy, tokens), 0)


def test_entropy_shapes_advantages_but_carries_no_gradient():
    scores, batch = inputs([[1.0, 1], [0, 0], [0, 1]])
    gradient, _ = evaluate(build("grpo", "k3 in the loss", RULES["entropy"]), scores, batch, 0.0)
    np.testing.assert_array_equal(gradient.entropy, 0)
    highest = np.max(scores.entropy, axis=-1, keepdims=True)
    expected = 0.1 * np.stack([scores.entropy[0], (scores.entropy - highest)[1]])
    np.testing.assert_allclose(gradient.log_probs[:2], -expected / 18, rtol=1e-4, atol=1e-7)


DEGENERATE = {
    "one differs": ([1.0, 0, 0, 0], False),
    "all but one equal": ([1.0, 1, 1, 0], False),
    "equal": ([1.0, 1, 1, 1], True),
    "one scorable": ([1.0, np.nan, np.nan, np.nan], True),
    "none scorable": ([np.nan] * 4, True),
    "equal but for an unscorable one": ([1.0, 1, np.nan, 1], True),
    "differ beside an infinite one": ([1.0, 0, np.inf, 1], False),
    "differ by a rounding": ([1.0, 1 + 1e-6, 1, 1], False),
}


def test_a_group_is_degenerate_by_its_scorable_members_as_a_whole():
    scores, batch = inputs([rewards for rewards, _ in DEGENERATE.values()])
    gradient, metrics = evaluate(build("rloo", "k1 to go", RULES["mask all"]), scores, batch)
    expected = np.array([dead for _, dead in DEGENERATE.values()])
    np.testing.assert_array_equal(np.all(np.asarray(gradient.log_probs) == 0, axis=(1, 2)), expected)
    np.testing.assert_allclose(metrics["degenerate"].compute(), np.mean(expected))


def test_a_tolerance_widens_what_is_degenerate():
    rewards = [[1.0, 1], [1.0, 0.99], [1, 0]]
    for tolerance, dead in ((0.0, 1), (0.02, 2), (1.0, 3)):
        scores, batch = inputs(rewards)
        gradient, _ = evaluate(build("rloo", "k1 to go", degenerate.mask(tolerance=tolerance)), scores, batch)
        assert np.sum(np.all(np.asarray(gradient.log_probs) == 0, axis=(1, 2))) == dead


def test_raw_task_rewards_decide_not_shaped_ones():
    scores, batch = inputs([[1.0, 0.8], [0.5, 0.5]])
    batch = batch._replace(task_rewards=jnp.array([[1.0, 1], [0, 1]]))
    gradient, _ = evaluate(build("rloo", "k1 to go", RULES["mask all"]), scores, batch)
    np.testing.assert_array_equal(np.any(np.asarray(gradient.log_probs) != 0, axis=(1, 2)), [False, True])


@pytest.mark.parametrize("rule", RULES)
def test_an_unknown_task_reward_of_a_scored_member_leaves_everything_finite(rule):
    scores, batch = inputs([[1.0, 0.8, 0.2], [0.5, 0.5, 0.1]])
    batch = batch._replace(task_rewards=jnp.array([[1.0, np.nan, 0], [np.nan, 1, 1]]))
    gradient, metrics = evaluate(build("rloo", "k1 to go", RULES[rule]), scores, batch)
    assert all(np.all(np.isfinite(slope)) for slope in jax.tree.leaves(gradient))
    assert metrics["degenerate"].compute() == 0.5


def test_several_rewards_are_degenerate_by_the_sum_that_is_trained_on():
    built = objective(
        weighted_sum([0.5, 0.5], leave_one_out()),
        surrogates.clipped(),
        reductions.token_mean(),
        kl=kl.penalty(kl.k1),
        degenerate=degenerate.mask(),
    )
    scores, batch = inputs([[[0.0, 1], [1, 0]], [[0, 1], [1, 1]]])
    gradient, metrics = evaluate(built, scores, batch)
    np.testing.assert_array_equal(gradient.log_probs[0], 0)
    assert metrics["degenerate"].compute() == 0.5


@pytest.mark.parametrize("rule", ["keep", "mask all", "mask live", "smooth"])
def test_the_share_of_degenerate_groups_is_one_of_all_groups_whatever_the_rule(rule):
    scores, batch = inputs([[1.0, 1], [0, 0], [1, 0]])
    batch = batch._replace(valid=jnp.array([[True, True], [True, True], [True, True]]))
    _, metrics = evaluate(build("rloo", "k1 to go", RULES[rule]), scores, batch)
    np.testing.assert_allclose(metrics["degenerate"].compute(), 2 / 3, rtol=1e-6)
    np.testing.assert_allclose(metrics["reward"].mean, 0.5)
    assert metrics["length"].count == 6


def test_the_denominator_is_that_of_all_or_of_the_live_tokens():
    scores, batch = inputs([[1.0, 0], [1, 1]])
    batch = batch._replace(mask=batch.mask.at[0, :, 2].set(False))
    for rule, count in (("keep", 10), ("mask all", 10), ("mask live", 4)):
        assert evaluate(build("rloo", "k1 to go", RULES[rule]), scores, batch)[1]["loss"].count == count


@pytest.mark.parametrize("rule", ["mask all", "mask live", "smooth"])
def test_a_batch_of_nothing_but_degenerate_groups_has_loss_zero_and_gradient_zero(rule):
    scores, batch = inputs([[1.0, 1], [0, 0]])
    gradient, metrics = evaluate(build("rloo", "k1 to go", RULES[rule]), scores, batch)
    assert metrics["loss"].compute() == 0
    for slope in jax.tree.leaves(gradient):
        np.testing.assert_array_equal(slope, 0)


def test_a_rule_of_ones_own_has_to_say_whether_it_reweights_groups_and_is_believed():
    half = ("half", lambda group: jnp.full_like(group.spread, 0.5), True, None, 0.0, "groups count by half")
    with pytest.raises(TypeError, match="reweights"):
        degenerate.Degenerate(*half)  # pyright: ignore[reportCallIssue]
    parts = (leave_one_out(), surrogates.reinforce(), reductions.sequence_mean_of_token_sum(), TERMS["k1 to go"])
    assert objective(*parts, degenerate=degenerate.Degenerate(*half, reweights=True)).target.name == "none"
    assert objective(*parts, degenerate=degenerate.Degenerate(*half, reweights=False)).target.name == "reverse"


def test_every_rule_but_keep_names_its_price():
    for name, rule in RULES.items():
        notes = build("rloo", "k1 to go", rule).notes
        assert any("degenerate groups" in note for note in notes) == (name != "keep")


NAN = float("nan")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: degenerate.keep(-1.0), "degenerate.keep: tolerance is -1.0; it must be >= 0"),
        (lambda: degenerate.mask(tolerance=NAN), "degenerate.mask: tolerance is nan"),
        (
            lambda: inspect.unwrap(degenerate.mask)("dead"),
            "degenerate.mask: denominator is 'dead'; choose 'all' or 'live'",
        ),
        (lambda: degenerate.smooth(0.0), "degenerate.smooth: scale is 0.0; it must be > 0"),
        (lambda: degenerate.smooth(NAN), "scale is nan"),
        (lambda: degenerate.smooth(float("inf")), "scale is inf"),
        (lambda: degenerate.smooth(tolerance=-1.0), "degenerate.smooth: tolerance is -1.0"),
        (lambda: degenerate.entropy_shaped(0.0), "degenerate.entropy_shaped: alpha is 0.0; it must be > 0"),
        (lambda: degenerate.entropy_shaped(tolerance=-1.0), "degenerate.entropy_shaped: tolerance is -1.0"),
    ],
)
def test_rules_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
