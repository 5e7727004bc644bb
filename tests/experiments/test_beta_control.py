"""The article's formulas beside the library's, the exact model, the measures, and that the page says what was found."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.beta_control import article, exact, measures, rules, run, tables
from experiments.beta_control.cases import cases, objective
from experiments.fixed_points import training
from experiments.small_scale import loop, records, sums
from experiments.small_scale.setting import SMOKE, policy_of
from grpo_jax.kl import controllers

README = (run.HERE / "README.md").read_text(encoding="utf-8")


def walked(rule, kls):
    """Returns beta after each KL, one batch after the other."""
    state, betas = rule.init(), []
    for kl in kls:
        state = rule.update(state, jnp.float32(kl), jnp.float32(rules.COMPLETIONS))
        betas.append(float(rule.beta(state)))
    return np.array(betas)


def test_within_its_bounds_the_library_s_proportional_rule_is_the_article_s():
    kls = (0.0, 0.4, 1.3, 0.5, 2.0)
    ours, written = rules.proportional(0.2), article.proportional(0.2, rules.TARGET, rules.GAIN / rules.TARGET)
    by_hand = 0.2 * np.cumprod([1 + 0.2 * (kl - 0.5) for kl in kls])
    np.testing.assert_allclose(walked(written, kls), by_hand, rtol=1e-6)
    np.testing.assert_allclose(walked(ours, kls), by_hand, rtol=1e-6)


def test_the_article_s_integral_is_the_sum_of_all_errors_and_the_library_limits_it():
    kls, target, horizon = [2.5] * 20, 0.5, 1
    integral, beta, by_hand = 0.0, 1e-4, []
    for kl in kls:
        integral += kl - target
        beta = min(10.0, beta * (1 + 0.1 * (kl - target) / target + 0.01 * integral / (horizon * target)))
        by_hand.append(beta)
    np.testing.assert_allclose(walked(article.proportional_integral(1e-4, target, horizon), kls), by_hand, rtol=1e-5)
    np.testing.assert_allclose(walked(rules.integral(1e-4, horizon), kls)[-1], 1e-4 * 1.44 * 1.45**19, rtol=1e-5)


def test_a_gain_above_one_turns_the_written_beta_s_sign_and_not_the_library_s():
    assert walked(rules.WRONG["gain 2, as written"], [0.0])[0] == pytest.approx(-rules.LOOSE)
    assert walked(rules.WRONG["gain 2, library"], [0.0])[0] == pytest.approx(1e-6)


def test_a_kl_of_zero_for_long_leaves_the_written_beta_at_nothing_for_ever():
    kls = [0.0] * 1000 + [5.0] * 10
    assert walked(rules.proportional(rules.LOOSE), kls)[-1] > 1e-6
    assert walked(article.proportional(rules.LOOSE, rules.TARGET, rules.GAIN / rules.TARGET), kls)[-1] == 0


def test_backwards_is_the_rule_with_the_error_s_other_sign():
    rule = rules.proportional(0.2)
    np.testing.assert_array_equal(walked(article.backwards(rule, 0.5), [0.1, 0.9]), walked(rule, [0.9, 0.1]))


def test_one_of_several_rules_is_that_rule():
    several = (controllers.linear_warmup(0.4, 0.1, 3), rules.proportional(0.2), rules.integral(0.3))
    shared, kls = rules.one_of(several), (0.2, 1.5, 0.7)
    for number, rule in enumerate(several):
        start = shared.init()._replace(number=jnp.int32(number))
        np.testing.assert_array_equal(walked(shared._replace(init=lambda start=start: start), kls), walked(rule, kls))


def test_settling_and_overshoot_are_those_of_the_page():
    kl = np.array([[0, 1.0, 0.3, 0.45, 0.55, 0.5, 0.5, 0.5, 0.5, 0.5], [0.5] * 9 + [0.7], [0.0] * 7 + [0.5] * 3])
    np.testing.assert_array_equal(measures.settling(kl, 0.5), [3, np.inf, 7])
    np.testing.assert_array_equal(measures.settling(kl[:, ::-1], 0.5)[:2], [np.inf, 1])
    np.testing.assert_allclose(measures.overshoot(kl, 0.5), [1, 0.4, 0])
    np.testing.assert_allclose(measures.off_target(kl, 0.5), [0, 0.2, 0], atol=1e-12)


def test_where_the_exact_model_stays_the_trained_objective_s_expected_gradient_is_zero():
    drawn, beta = training.instance(0), 0.3
    reference = training.train(objective(), drawn, beta, 1).log_probs[0]

    def gradient(tilt):
        chance = np.exp(np.asarray(exact.tilted(jnp.asarray(reference), jnp.asarray(drawn.rewards), tilt), float))
        point = dict(zip(training.COMPLETIONS, chance.tolist(), strict=True))
        return training.train(objective(), drawn, beta, 1, point).gradient_at_point

    assert gradient(1 / beta) < 1e-4 * gradient(0.5 / beta)
    tilt = jnp.float32(1.0)
    for _ in range(2000):
        tilt = exact.moved(tilt, jnp.float32(beta), jnp.float32(0.1), jnp.float32(1))
    assert float(tilt) == pytest.approx(1 / beta, rel=1e-4)


@pytest.mark.parametrize("beta", [-0.5, 0.0, 0.3, 10.0])
def test_an_update_of_the_exact_model_is_its_flow(beta):
    tilt, parts = 0.7, 10_000
    for _ in range(parts):
        tilt += 0.1 / parts * (1 - beta * tilt)
    found = exact.moved(jnp.float32(0.7), jnp.float32(beta), jnp.float32(0.1), jnp.float32(1))
    assert float(found) == pytest.approx(tilt, rel=1e-4)


def test_in_the_loop_the_rule_that_is_chosen_steers_by_the_kl_that_is_measured():
    shared = rules.one_of((controllers.constant(0.7), rules.proportional(0.2)))
    training_of = loop.Training(objective(), SMOKE, 0, controller=shared)
    trained, learner = sums.problems("sums", False, 50), training_of._learner()
    state = learner.init(policy_of(SMOKE).init(key=jax.random.key(0)), key=jax.random.key(1))
    step = jax.jit(lambda state, key: training_of.seen(learner, state, None, jnp.int32(0), trained, key=key))
    for number, (first, second) in enumerate(((0.7, 0.7), (0.2, 0.18))):
        chosen = state._replace(controller=shared.init()._replace(number=jnp.int32(number)))
        (after, _), seen = step(chosen, jax.random.key(2))
        assert float(seen["beta"]) == pytest.approx(first)
        assert float(seen["kl_per_sequence"]) == pytest.approx(0, abs=1e-5)
        assert float(shared.beta(after.controller)) == pytest.approx(second, rel=1e-4)


def test_the_page_has_the_recorded_runs():
    rows = records.recorded(run.HERE / "results.jsonl", ("rule",))
    named = [case.name for case in cases()]
    assert sorted(rows) == sorted(named)
    assert all(row["seeds"] >= 5 for row in rows.values())
    ordered = {name: rows[name] for name in named}
    tried, swept = (run.read(run.HERE / name) for name in run.FILES)
    for said in (tables.trained(ordered), tables.differences(ordered), tables.exactly(tried), tables.swept(swept)):
        assert said in README
    assert (run.HERE / "figure.png").exists()
    assert (run.HERE / "exact.png").exists()
