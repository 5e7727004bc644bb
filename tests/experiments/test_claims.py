"""The verdicts on the articles' statements, their known numbers, and that what is written is what is computed."""

import io
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from experiments.claims import degenerate_groups, kl_penalty, run
from experiments.claims.claim import cells, markdown, tables, verdict, worded
from grpo_jax import kl

HERE = Path(run.__file__).parent
RECORDED = run.as_claims((HERE / "results.jsonl").read_text(encoding="utf-8"))
HOLD = """
    kl_moves_equal_groups size_of_the_pull fused_before_normalisation leave_one_out
    overflow clipped_controller kl_averaged_first reference_is_the_policy entropy_bonus
    k1_in_reward k3_in_both k2_in_loss unbiased_in_value length_push whole_ratio
"""
DO_NOT = """
    smooth_weight pull_is_a_defect pull_is_noise std_detects resampling
    clamping_k3 beta_stays_positive proportional_alpha integral_winds_up temperature one_learning_rate
    k1_in_loss k3_in_reward_unbiased k3_in_reward_variance k3_in_loss_term half_beta_in_each full_kl_value_variance
    full_kl_in_loss loss_of_zero without_weights k1_sign token_ratio causal_variance
"""
UNDER = {
    "rloo_alike": "where the completions differ",
    "hard_mask": "where the denominator counts all groups",
    "k3_never_negative": "if computed with expm1",
    "controllers_rest": "where the integral is 0",
    "own_reward_in_baseline": "up to a factor (G - 1)/G",
    "divided_by_std": "as G grows",
    "k3_value_variance": "near the reference",
    "k1_gradient_variance": "near the reference",
    "full_kl_with_return": "near the reference",
    "one_penalty_for_several_rewards": "where the advantage is linear",
    "token_ratio_of_one_token": "for completions of one token",
    "seeks_or_covers": "where pi cannot be p itself",
}
EXPECTED = {name: "holds" for name in HOLD.split()} | {name: "does not hold" for name in DO_NOT.split()}
EXPECTED |= {name: f"holds {condition}" for name, condition in UNDER.items()}
KNOWN = {
    ("size_of_the_pull", "k3"): (0.015739, 5e-7),
    ("size_of_the_pull", "with the ratio"): (0.02, 5e-7),
    ("smooth_weight", "its weight at std 0"): (0.49975, 5e-7),
    ("pull_is_a_defect", "masked"): (0.130, 5e-4),
    ("pull_is_a_defect", "masked, live denominator"): (0.144, 5e-4),
    ("fused_before_normalisation", "GRPO, beta 0.1"): (0.760, 5e-4),
    ("fused_before_normalisation", "GRPO, beta 0.01"): (0.701, 5e-4),
    ("fused_before_normalisation", "GRPO, beta 0.001"): (0.398, 5e-4),
    ("fused_before_normalisation", "RLOO, beta 0.1"): (0.0113, 5e-5),
    ("std_detects", "|A| with epsilon 1e-8"): (0.896, 5e-4),
    ("clamping_k3", "no gradient beyond log(p/pi)"): (2.610869, 5e-7),
    ("clipped_controller", "beta"): (0.204, 1e-6),
    ("temperature", "log-prob at temperature .6"): (-0.035052, 5e-7),
    ("half_beta_in_each", "distance to grad KL(pi, p), beta/2 in each"): (0.5, 1e-12),
    ("full_kl_value_variance", "mean, full"): (2.39545, 5e-6),
    ("full_kl_value_variance", "variance, sampled"): (3.316, 5e-4),
    ("full_kl_value_variance", "full"): (5.070, 5e-4),
    ("k1_sign", "mean of k1"): (-0.061844, 5e-7),
    ("k1_sign", "gradient by logit 1"): (0.1507, 5.1e-5),
}


@pytest.fixture(scope="module")
def found():
    return run.computed((0, 1, 2))


def test_every_claim_is_judged_and_each_verdict_is_the_expected_one(found):
    assert {name: claim.verdict for name, claim in found.items()} == EXPECTED


def test_the_numbers_are_the_known_ones(found):
    for (name, what), (number, digits) in KNOWN.items():
        np.testing.assert_allclose(float(found[name].numbers[what]), number, rtol=0, atol=digits, err_msg=name)


def test_what_is_recorded_is_what_is_computed(found):
    assert list(RECORDED) == list(found)
    for name, claim in found.items():
        assert RECORDED[name]._replace(numbers={}) == claim._replace(numbers={})
        assert list(RECORDED[name].numbers) == list(claim.numbers)
        now, then = ([float(x) for x in each.numbers.values()] for each in (claim, RECORDED[name]))
        np.testing.assert_allclose(now, then, rtol=1e-3, atol=1e-12, err_msg=name)


def test_the_readme_has_the_recorded_claims_as_its_table():
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    assert run.with_table(readme, RECORDED) == readme
    shown = markdown(RECORDED).replace("\\|", "|")
    assert all(" | ".join(cells(name, claim)) in shown for name, claim in RECORDED.items())


def test_the_terminal_shows_the_cells_of_the_readme():
    text = io.StringIO()
    for table in tables(RECORDED):
        Console(file=text, width=3000).print(table)
    for name, claim in RECORDED.items():
        assert all(cell in text.getvalue() for cell in cells(name, claim))


def test_verdicts_follow_the_numbers(monkeypatch):
    monkeypatch.setattr(kl, "k3", lambda u: jnp.exp(-u) + u - 1)
    assert kl_penalty.k3_never_negative((0,)).verdict == "does not hold"
    monkeypatch.setattr(degenerate_groups, "article_weight", lambda std: np.tanh(std / 1e-3))
    assert degenerate_groups.smooth_weight((0,)).verdict == "holds"


def test_a_verdict_says_under_which_condition():
    assert verdict(True, False, "near p") == "holds"
    assert verdict(False, True, "near p") == "holds near p"
    assert verdict(False, False, "near p") == "does not hold"


def test_numbers_say_what_is_rounding_and_what_is_zero():
    assert [worded(each) for each in (0, 0.0, -3e-16, 0.0157388, 1e-6, 12345678)] == [
        "0",
        "0",
        "< 1e-12",
        "0.015739",
        "1e-06",
        "1.23e+07",
    ]


def test_an_unknown_claim_is_refused_with_the_known_ones():
    with pytest.raises(SystemExit, match=r"no claim is called k4; choose of .*k1_in_loss"):
        run.main(only=("k4",))
