"""The shared small-scale loop: its task, its statistics, its lag, and the placement grid."""

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tyro

from experiments.kl_placement import grid, run
from experiments.small_scale import imitation, loop, records, seeds, setting, sums, verdict
from grpo_jax.components import build_objective
from grpo_jax.config import Config
from grpo_jax.presets import preset
from grpo_jax.updates import Learner

HERE = Path(run.__file__).parent


def written(tokens, mask):
    return "".join(sums.SYMBOLS[token] for token in np.asarray(tokens)[np.asarray(mask)])


def digit_by_digit(a, b, sign):
    length = max(len(a), len(b))
    pairs = zip(a.zfill(length), b.zfill(length), strict=True)
    return str(int("".join(str((int(x) + sign * int(y)) % 10) for x, y in pairs)))


@pytest.mark.parametrize("kind", sums.KINDS)
def test_problems_are_answered_backwards_and_slips_forget_the_carry(kind):
    found = sums.problems(kind, True, 40)
    for row in range(40):
        prompt = written(found.prompts.tokens[row], found.prompts.mask[row])
        a, b = re.findall(r"\d+", prompt)
        sign = -1 if "-" in prompt else 1
        right = written(found.right[row], found.right_mask[row])
        assert int(right[-2::-1]) == int(a) + sign * int(b) >= 0
        assert str(int(a) + sign * int(b))[::-1] + "." == right
        assert written(found.slip[row], found.slip_mask[row]) == digit_by_digit(a, b, sign)[::-1] + "."


def test_held_out_sums_are_never_trained_on():
    def texts(held_out):
        part = sums.problems("sums", held_out)
        return {written(*row) for row in zip(*map(np.asarray, part.prompts), strict=True)}

    trained, held_out = texts(False), texts(True)
    assert (len(trained), len(held_out)) == (9000, 1000)
    assert not trained & held_out


def test_the_reward_is_for_the_right_completion_to_its_end_alone():
    asked = sums.problems("sums", True, 8)
    right = sums.as_rollout(asked.prompts, asked.right, asked.right_mask)
    np.testing.assert_array_equal(sums.is_right(asked, right), np.ones((8, 1)))
    cut = right._replace(mask=right.mask & (right.tokens != sums.END))
    longer = right._replace(mask=jnp.ones_like(right.mask))
    slip = sums.as_rollout(asked.prompts, asked.slip, asked.slip_mask)
    carries = np.any(np.asarray(asked.slip != asked.right), axis=1)
    assert not np.any(sums.is_right(asked, cut))
    assert not np.any(sums.is_right(asked, longer))
    np.testing.assert_array_equal(sums.is_right(asked, slip)[:, 0] == 0, carries)
    assert 0 < carries.sum() < 8


def test_intervals_are_the_tabulated_ones():
    values = np.array([1.0, 2.0, 4.0, 5.0, 6.0, 6.0])
    interval = seeds.mean_interval(values)
    half = 2.570582 * values.std(ddof=1) / 6**0.5
    np.testing.assert_allclose(interval, (4, 4 - half, 4 + half), rtol=1e-6)
    np.testing.assert_allclose(seeds.share_interval(0, 6), (0, 0, 0.459258), atol=1e-6)
    np.testing.assert_allclose(seeds.share_interval(6, 6), (1, 0.540742, 1), atol=1e-6)
    np.testing.assert_allclose(seeds.share_interval(3, 6), (0.5, 0.118117, 0.881883), atol=1e-6)
    np.testing.assert_allclose(seeds.detectable(values), (2.570582 + 0.919544) * values.std(ddof=1) / 6**0.5, rtol=1e-6)
    assert seeds.share_interval(0, 6).apart_from(seeds.share_interval(6, 6))
    assert not seeds.share_interval(0, 5).apart_from(seeds.share_interval(5, 5))


@pytest.mark.parametrize("lag", [0, 2])
def test_completions_come_from_the_policy_of_so_many_updates_ago(lag):
    """A learner that only halves the parameters, and hands the rollout and the batch out as its optimizer's state."""

    def update(state, rollout, batch):
        names = ("gradient_norm", "rejected", "degenerate", "length", "reward_mean")
        halved = jax.tree.map(lambda leaf: leaf / 2, state.params)
        return state._replace(params=halved, opt_state=(rollout, batch)), {name: jnp.zeros(()) for name in names}

    training = loop.Training(grid.objective_of(grid.NONE), setting.SMOKE, 3 if lag else 0)
    real = training._learner()
    params = setting.policy_of(setting.SMOKE).init(key=jax.random.key(0))
    state = start = real.init(params, key=jax.random.key(1))
    past = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), params) if lag else None
    learner = Learner(real.init, update)
    step = jax.jit(lambda state, past, key: training.seen(learner, state, past, lag, trained, key=key)[0])
    trained, history = sums.problems("sums", False, 50), [params] * lag
    score = jax.jit(setting.score_of(setting.SMOKE))
    for number in range(4):
        history.append(state.params)
        state, past = step(state, past, jax.random.key(number))
        rollout, batch = state.opt_state
        state = state._replace(opt_state=start.opt_state)
        sampled_by = score(history[number], rollout).log_probs
        np.testing.assert_allclose(rollout.log_probs, sampled_by, atol=1e-5)
        assert (batch.old_log_probs is None) == (lag == 0)
        if lag and number:
            assert not np.allclose(rollout.log_probs, score(history[number + lag], rollout).log_probs, atol=1e-3)


def test_informative_groups_are_trained_on_first_in_the_order_of_sampling():
    """Of eight sampled groups the odd ones get rewards that differ, and the learner sees those alone."""

    def update(state, rollout, batch):
        names = ("gradient_norm", "rejected", "degenerate", "length")
        return state._replace(opt_state=(rollout, batch)), {name: jnp.zeros(()) for name in names}

    rewards = jnp.outer(jnp.arange(8) % 2, jnp.arange(4) % 2).astype(jnp.float32)
    trained, key = sums.problems("sums", False, 50), jax.random.key(2)
    given = lambda asked, rollout: rewards  # noqa: E731
    training = loop.Training(grid.objective_of(grid.NONE), setting.SMOKE, 0, reward=given, rounds=2)
    real = training._learner()
    state = real.init(setting.policy_of(setting.SMOKE).init(key=jax.random.key(0)), key=jax.random.key(1))
    learner = Learner(real.init, update)
    step = jax.jit(lambda state: training.seen(learner, state, None, jnp.int32(0), trained, key=key))
    (state, _), _ = step(state)
    rollout, batch = state.opt_state
    drawn = sums.draw(trained, 8, key=jax.random.split(key, 3)[0])
    np.testing.assert_array_equal(batch.rewards, rewards[1::2])
    np.testing.assert_array_equal(rollout.prompts.tokens, drawn.prompts.tokens[1::2])


@pytest.mark.slow
def test_seeds_side_by_side_are_the_seeds_one_after_the_other():
    small = setting.SMOKE._replace(evaluated=4)
    params = imitation.warm_started(small, 2)
    one, two = (loop.trainer(grid.objective_of("k1 loss"), small._replace(at_once=n))(params, 0.3) for n in (1, 2))
    assert one.keys() == two.keys()
    for name, curve in one.items():
        assert curve.shape == (2, 3)
        np.testing.assert_allclose(curve, two[name], rtol=1e-3, atol=1e-5, err_msg=name)
    assert not np.allclose(one["entropy"][0], one["entropy"][1])


def test_a_lag_out_of_range_and_evaluations_that_do_not_fit_are_refused():
    for lag in (-1, 3):
        with pytest.raises(ValueError, match=f"lag is {lag}; .* longest_lag=2"):
            loop.trainer(grid.objective_of("k1 reward"), setting.SMOKE, 2)({}, 0.1, lag)
    with pytest.raises(ValueError, match="every=3 does not divide updates=4"):
        loop.trainer(grid.objective_of("k1 reward"), setting.SMOKE._replace(every=3))


def row(accuracy, reverse_kl=1.0, rejected=0.0):
    curves = {"accuracy_sums": accuracy, "reverse_kl": [0.0, reverse_kl], "rejected": [None, rejected]}
    return {name: [curve] for name, curve in curves.items()}


def test_a_collapse_is_half_the_accuracy_lost_ten_nats_or_something_not_finite():
    assert not verdict.collapsed(row([0.4, 0.21]))[0]
    assert verdict.collapsed(row([0.4, 0.19]))[0]
    assert verdict.collapsed(row([0.4, 0.5], reverse_kl=10.1))[0]
    assert verdict.collapsed(row([0.4, 0.5], rejected=0.1))[0]


@pytest.mark.parametrize(("name", "beta"), grid.runs())
def test_a_preset_gets_the_same_kl_term_as_the_small_runs(name, beta):
    config = grid.config_of(name, beta, "qwen2.5-7b-math")
    built = build_objective(config.objective, 1024, with_kl=beta > 0)
    ours = grid.objective_of(name)
    assert config.beta.value == beta
    assert config.model.path == "models/Qwen2.5-7B"
    assert built.target == ours.target
    assert built.parts.advantage.name == ours.parts.advantage.name
    assert built.parts.surrogate.name == ours.parts.surrogate.name
    assert getattr(built.parts.kl, "name", None) == getattr(ours.parts.kl, "name", None)


def test_the_grid_of_a_preset_is_printed_as_commands(capsys):
    commands = run.main(preset="qwen2.5-7b-math")
    assert len(commands) == len(set(commands)) == 29
    assert commands == capsys.readouterr().out.splitlines()
    for line, (name, beta) in zip(commands, grid.runs(), strict=True):
        options = line.split()[6:]
        parsed = tyro.cli(Config, default=preset("qwen2.5-7b-math"), args=options)
        assert parsed == grid.config_of(name, beta, "qwen2.5-7b-math"), line


def test_a_finished_run_is_read_back_and_not_repeated(tmp_path):
    file = tmp_path / "results.jsonl"
    made = records.row_of({"configuration": "x", "beta": 0.1}, {"entropy": np.array([[np.nan, 1.234567]])})
    records.append(file, made)
    assert records.recorded(file, ("configuration", "beta")) == {("x", 0.1): made}
    np.testing.assert_array_equal(records.curve(made, "entropy"), [[np.nan, 1.2346]])
    assert json.loads(file.read_text())["entropy"] == [[None, 1.2346]]


def test_the_readme_has_the_recorded_runs_as_its_table():
    rows = records.recorded(HERE / "results.jsonl", ("configuration", "beta"))
    assert sorted(rows) == sorted(grid.runs())
    assert all(len(each["reverse_kl"]) >= 5 for each in rows.values())
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    ordered = {name: rows[name] for name in grid.runs()}
    assert verdict.table(ordered, run.LABELS) in readme
    assert verdict.compared(ordered, run.pairs()) in readme
