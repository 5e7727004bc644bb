"""Each rule on rows made for it: found where it is, with its number and its steps, and silent elsewhere."""

from dataclasses import replace

import numpy as np
import pytest

from grpo_jax import diagnosis
from grpo_jax.config import BetaConfig, Config, ObjectiveConfig, ReferenceConfig, UpdateConfig

CONFIG = Config(steps=10_000)
GENERATOR = np.random.default_rng(0)


def rows(count, **columns):
    """Rows of steps 1, 2, ...; a column is a number, or one number a row."""
    full = {name: np.broadcast_to(np.asarray(values, float), count) for name, values in columns.items()}
    return [{"step": i + 1, **{name: float(values[i]) for name, values in full.items()}} for i in range(count)]


def noisy(count, level=1.0, spread=0.3):
    """A positive measure that goes up and down around a level and nowhere else."""
    return level * np.exp(spread * GENERATOR.standard_normal(count))


def reward(count, level=0.5, spread=0.03):
    return level + spread * GENERATOR.standard_normal(count)


def shipped():
    return dict(
        zip(
            (
                "kl_large_at_start kl_rises kl_stuck_at_zero kl_jumps kl_single_samples ratio_large kl_outside_band "
                "reward_drops_at_start kl_falls unstable"
            ).split(),
            diagnosis.shipped_rules(),
            strict=True,
        )
    )


RULES = shipped()
FAULTY = {
    "kl_large_at_start": rows(5, kl_mean=[3.0, 3, 3, 3, 3]),
    "kl_rises": rows(80, kl_mean=np.linspace(0.1, 30, 80) * noisy(80, spread=0.1)),
    "kl_stuck_at_zero": rows(60, kl_mean=noisy(60, 1e-6), reward_mean=reward(60), degenerate=0.2),
    "kl_jumps": rows(70, kl_std=np.concatenate([noisy(60), noisy(10, 20)])),
    "kl_single_samples": rows(30, kl_max=[*noisy(20, 10.0), 1, 2e3, 1, 5e4, 1, 1, 1, 3e3, 1, 1]),
    "ratio_large": rows(20, ratio_max=noisy(20, 4.0)),
    "kl_outside_band": rows(120, kl_mean=noisy(120, 40.0), reward_mean=reward(120)),
    "reward_drops_at_start": rows(
        20, reward_mean=[*reward(5, 0.6), *reward(15, 0.3)], reward_std=0.45, kl_mean=0.5, beta=5.0
    ),
    "kl_falls": rows(80, kl_mean=np.geomspace(8, 0.1, 80), reward_mean=reward(80), beta=np.geomspace(0.1, 10, 80)),
    "unstable": rows(60, reward_mean=[*reward(40, 0.7), *reward(20, 0.1)], reward_std=0.4),
}
"""Rows of each fault."""
EVIDENCE = {
    "kl_large_at_start": (1, 1, "kl_mean", 3.0),
    "kl_rises": (41, 80, "kl_mean", 29.0),
    "kl_stuck_at_zero": (31, 60, "kl_mean", 2e-6),
    "kl_jumps": (61, 70, "kl_std", 20.0),
    "kl_single_samples": (22, 28, "kl_max", 5e4),
    "ratio_large": (11, 20, "ratio_max", 4.0),
    "kl_outside_band": (61, 120, "kl_mean", 40.0),
    "reward_drops_at_start": (1, 20, "reward_mean", -0.3),
    "kl_falls": (41, 80, "kl_mean", 0.1),
    "unstable": (None, 60, "reward_mean", 0.1),
}
"""First step, last step, measure and number of each finding; None: depends on the noise."""


@pytest.mark.parametrize("name", RULES)
def test_a_fault_is_found_with_its_steps_and_its_number(name):
    found = RULES[name](FAULTY[name], CONFIG)
    first, last, measure, value = EVIDENCE[name]
    assert found is not None
    assert (found.name, found.last, found.measure) == (name, last, measure)
    assert first is None or found.first == first
    assert found.value == pytest.approx(value, rel=0.6)
    assert found.cause
    assert found.remedy
    assert isinstance(RULES[name], diagnosis.Rule)


@pytest.mark.parametrize("name", RULES)
def test_nothing_is_said_of_no_rows_of_rows_without_measures_and_of_what_is_not_finite(name):
    rule = RULES[name]
    assert rule([], CONFIG) is None
    assert rule([{"step": step} for step in range(1, 200)], CONFIG) is None
    measures = {key for row in FAULTY[name] for key in row} - {"step"}
    assert rule([{"step": step, **dict.fromkeys(measures)} for step in range(1, 200)], CONFIG) is None


@pytest.mark.parametrize("name", sorted(set(RULES) - {"kl_large_at_start", "kl_single_samples"}))
def test_nothing_is_said_of_a_run_too_short_to_know(name):
    assert RULES[name](FAULTY[name][:9], CONFIG) is None


def healthy(count, seed):
    """A run as the default one goes: the KL grows to half a nat with heavy tails, and the reward to .9."""
    draws = np.random.default_rng(seed)
    grown = 1 - np.exp(-np.arange(count) / 15)
    kl = 0.5 * grown**2 * np.exp(0.35 * draws.standard_normal(count))
    spread = kl * np.exp(0.5 + 0.8 * draws.standard_normal(count))
    return rows(
        count,
        kl_mean=kl,
        kl_std=spread,
        kl_max=kl * np.exp(3 + draws.standard_normal(count)),
        reward_mean=np.clip(0.6 + 0.3 * grown + 0.03 * draws.standard_normal(count), 0, 1),
        reward_std=0.35,
        ratio_max=1.0,
        degenerate=0.5,
        gradient_norm=0.3 * np.exp(0.4 * draws.standard_normal(count)),
        rejected=0.0,
        beta=0.02,
    )


@pytest.mark.parametrize("seed", range(10))
def test_a_healthy_run_of_any_length_raises_no_alarm(seed):
    assert diagnosis.diagnose(healthy(600, seed), CONFIG) == []


@pytest.mark.parametrize("seed", range(10))
def test_noise_around_a_large_kl_is_no_rise_no_fall_and_no_jump(seed):
    draws = np.random.default_rng(seed)
    level = 12 * np.exp(0.4 * draws.standard_normal(400))
    run = rows(
        400, kl_mean=level, kl_std=level * np.exp(draws.standard_normal(400)), reward_mean=np.linspace(0, 1, 400)
    )
    rules = [diagnosis.kl_rises(), diagnosis.kl_falls(), diagnosis.kl_jumps()]
    assert diagnosis.diagnose(run, CONFIG, rules) == []


def test_a_rise_that_has_ended_and_one_that_stays_small_are_none():
    ended = np.concatenate([np.linspace(0.1, 30, 40), np.full(60, 30.0)])
    assert diagnosis.kl_rises()(rows(100, kl_mean=ended), CONFIG) is None
    assert diagnosis.kl_rises()(rows(100, kl_mean=np.linspace(0, 9, 100)), CONFIG) is None
    assert diagnosis.kl_rises(limit=5.0)(rows(100, kl_mean=np.linspace(0, 9, 100)), CONFIG) is not None


def test_a_large_kl_at_the_start_tells_a_wrong_reference_from_long_steps():
    rule, long = diagnosis.kl_large_at_start(), replace(CONFIG, update=UpdateConfig(learning_rate=1.0))
    wrong = rule(rows(3, kl_mean=3.0), long)
    steps = rule(rows(10, kl_mean=[0, 5, 11, 12, *[9.0] * 6]), long)
    assert wrong is not None
    assert steps is not None
    assert "reference is not the policy" in wrong.cause
    assert "learning rate 1" in steps.cause
    assert (steps.last, steps.value) == (4, 12.0)
    # One batch may hang on one completion, and later updates are not the start.
    assert rule(rows(10, kl_mean=[0, 5, 11, *[9.0] * 7]), long) is None
    assert rule(rows(30, kl_mean=[0] * 10 + [20] * 20), long) is None
    # Resumed runs whose first rows are lost have no first update.
    assert rule([row for row in rows(9, kl_mean=3.0) if row["step"] > 1], long) is None


def test_no_kl_is_no_fault_while_the_reward_rises_or_the_problems_are_solved():
    rule, still = diagnosis.kl_stuck_at_zero(), {"kl_mean": 0.0, "degenerate": 0.2}
    assert rule(rows(60, reward_mean=np.linspace(0.3, 0.6, 60) + 0.01 * reward(60), **still), CONFIG) is None
    late = rule(rows(60, reward_mean=reward(60), kl_mean=[*[0.0] * 59, 0.1]), CONFIG)
    assert late is None


@pytest.mark.parametrize(
    ("config", "degenerate", "said"),
    [
        (CONFIG, 0.99, "99% of the groups"),
        (replace(CONFIG, reference=ReferenceConfig(kind="ema")), 0.2, "reference.kind=ema"),
        (replace(CONFIG, update=UpdateConfig(learning_rate=1e-9)), 0.2, "learning rate 1e-09"),
    ],
)
def test_why_nothing_moves_is_told_apart(config, degenerate, said):
    found = diagnosis.kl_stuck_at_zero()(rows(60, kl_mean=0.0, reward_mean=reward(60), degenerate=degenerate), config)
    assert found is not None
    assert said in found.cause


def test_one_wild_batch_is_no_jump_and_the_first_steps_are_none():
    rule = diagnosis.kl_jumps()
    single = noisy(70)
    single[65] = 500.0
    assert rule(rows(70, kl_std=single), CONFIG) is None
    assert rule(rows(45, kl_std=np.concatenate([np.full(15, 1e-3), noisy(30, 5.0)])), CONFIG) is None
    assert rule(rows(70, kl_std=1e-2 * np.array([*[1.0] * 60, *[50.0] * 10])), CONFIG) is None


def test_a_rare_large_sample_is_healthy_and_an_absurd_one_is_not():
    rule, quiet = diagnosis.kl_single_samples(), [5.0] * 19
    assert rule(rows(20, kl_max=[*quiet, 5e3]), CONFIG) is None
    assert rule(rows(20, kl_max=[*quiet, 5e6]), CONFIG) is not None
    assert rule(rows(60, kl_max=[5e3] * 3 + [5.0] * 57), CONFIG) is None


@pytest.mark.parametrize(("steps", "said"), [(1, "older policy"), (8, "8 optimizer steps")])
def test_large_ratios_have_two_causes(steps, said):
    config = replace(CONFIG, update=UpdateConfig(updates_per_rollout=steps))
    found = diagnosis.ratio_large()(FAULTY["ratio_large"], config)
    assert found is not None
    assert said in found.cause
    assert diagnosis.ratio_large()(rows(20, ratio_max=[1.0] * 15 + [9.0] * 5), config) is None


def test_the_band_matters_only_where_the_reward_stands_still():
    rule, still, rising = diagnosis.kl_outside_band(), reward(120), np.linspace(0.2, 0.6, 120) + 0.1 * reward(120)
    below = rule(rows(120, kl_mean=noisy(120, 0.1), reward_mean=still), CONFIG)
    assert below is not None
    assert "below 2" in below.evidence
    for level in (0.1, 40.0):
        assert rule(rows(120, kl_mean=noisy(120, level), reward_mean=rising), CONFIG) is None
    for level in (1.9, 5.0, 10.5):
        assert rule(rows(120, kl_mean=noisy(120, level), reward_mean=still), CONFIG) is None


def test_a_reward_drops_by_beta_or_by_the_learning_rate():
    found = diagnosis.reward_drops_at_start()(FAULTY["reward_drops_at_start"], CONFIG)
    assert found is not None
    assert "beta is too large (5)" in found.cause
    small = [{**row, "beta": 0.01} for row in FAULTY["reward_drops_at_start"]]
    found = diagnosis.reward_drops_at_start()(small, CONFIG)
    assert found is not None
    assert "beta" not in found.cause
    assert diagnosis.reward_drops_at_start()(rows(20, reward_mean=reward(20), reward_std=0.4), CONFIG) is None


def test_a_kl_that_falls_towards_a_moving_reference_or_while_the_reward_rises_is_none():
    moving = replace(CONFIG, reference=ReferenceConfig(kind="copied_every"))
    assert diagnosis.kl_falls()(FAULTY["kl_falls"], moving) is None
    rising = [{**row, "reward_mean": 0.01 * row["step"]} for row in FAULTY["kl_falls"]]
    assert diagnosis.kl_falls()(rising, CONFIG) is None


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            replace(CONFIG, objective=ObjectiveConfig(kl="k3", placement="reward"), beta=BetaConfig(value=1.0)),
            "k3 in the reward",
        ),
        (replace(CONFIG, update=UpdateConfig(max_norm=1e6)), "hardly clipped"),
        (CONFIG, "learning rate 0.0003"),
    ],
)
def test_why_a_run_is_unstable_is_told_apart(config, said):
    found = diagnosis.unstable()(FAULTY["unstable"], config)
    assert found is not None
    assert said in found.cause


def test_rejected_updates_and_growing_gradients_are_unstable():
    rejected = diagnosis.unstable()(rows(9, rejected=[0, 0, 0, 1, 0, 0, 1, 0, 0]), CONFIG)
    assert rejected is not None
    assert (rejected.first, rejected.last, rejected.measure) == (4, 7, "rejected")
    norms = diagnosis.unstable()(rows(60, gradient_norm=[*noisy(40, 0.3), *noisy(20, 60.0)]), CONFIG)
    assert norms is not None
    assert norms.measure == "gradient_norm"
    assert diagnosis.unstable()(rows(60, gradient_norm=[*noisy(40, 0.01), *noisy(20, 1.5)]), CONFIG) is None
