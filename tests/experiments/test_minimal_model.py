"""The article's figure 1 is reproduced by the library's objectives, and what is unbiased is so to the last digit."""

import numpy as np

from experiments.minimal_model.configurations import ARTICLE, OFF_POLICY, OURS
from experiments.minimal_model.exact import LENGTHS, POLICY, A, B, Instance, kl_gradients, moments, parameters
from experiments.minimal_model.run import differences, off_policy, on_policy, rms
from grpo_jax import oracle

UNBIASED = 1e-12


def test_the_published_points_are_met_at_every_length():
    rows = on_policy(ARTICLE, LENGTHS, samples=1000)
    off = differences(rows)
    print(f"rms {rms(off.values()):.3f} in log10 over {len(off)} published points")
    assert len(off) == 61
    assert rms(off.values()) <= 0.08
    bias = {(row["configuration"], row["length"]): row["relative_bias"] for row in rows}
    for length in LENGTHS:
        assert bias["k1 reward", length] < UNBIASED
        np.testing.assert_allclose(bias["k1 loss", length], 1, rtol=UNBIASED)
        assert bias["k3 loss", length] > 0.02
        assert bias["k3 reward", length] > 0.98


def test_ours_are_unbiased_but_for_frozen_prefixes():
    lengths = (2, 6, 12)
    for row in on_policy(OURS, lengths, samples=1000):
        exact = row["follows"] == "reverse"
        assert exact == (row["configuration"] != "full loss")
        assert row["relative_bias"] < UNBIASED if exact else row["relative_bias"] > 0.03


def test_samples_of_another_policy_need_weights_of_what_came_before():
    for row in off_policy(OFF_POLICY, (2, 6, 12, 15), (0.25, 1.0), samples=1000):
        exact = row["follows"] == "reverse"
        assert exact == (row["configuration"] not in [each.name for each in OFF_POLICY[-3:]])
        assert row["relative_bias"] < UNBIASED if exact else row["relative_bias"] > 0.03


def test_the_oracle_finds_the_same_mean_and_variance():
    length = 4
    sampler = parameters(-0.03, 0.23)
    found = moments(ARTICLE, Instance(A, B, sampler), length)
    listed = oracle.enumerated(POLICY, length, ())
    instance = oracle.Instance(listed, A, B, sampler, np.zeros(2**length))
    evaluated = oracle.tables(instance, off_policy=True)
    groups = oracle.ordered(2**length, 1)
    expected = oracle.expectation(ARTICLE[1].objective, evaluated, groups)
    np.testing.assert_allclose(found.mean[1], expected.kl, rtol=1e-12)
    np.testing.assert_allclose(found.variance[1], expected.kl_variance, rtol=1e-10)
    np.testing.assert_allclose(kl_gradients(A, B)[1][length - 1], evaluated.targets["reverse"], rtol=1e-12)
