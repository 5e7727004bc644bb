"""The warm start of a run: what it imitates, when it stops, and that it stops when it is broken."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import grpo_jax.warm_start
from grpo_jax.config import WarmStartConfig
from grpo_jax.tasks import decode
from grpo_jax.updates import WarmStart, WarmStartState
from grpo_jax.warm_start import TrainingStopped, warm_started
from tests.runs import TINY, compiled

KEY = jax.random.key(0)


def start(monkeypatch, accuracies, rejected=0, devices=1, **settings):
    """Runs a warm start whose learner only counts; returns what it returned, the rollouts, and where it looked."""
    rollouts, looks, scripted = [], [], iter(accuracies)

    def step(state, rollout):
        rollouts.append(rollout)
        return state._replace(step=state.step + 1), {"loss": jnp.float32(1.0)}

    def init(params):
        return WarmStartState(params, None, jnp.int32(0), jnp.int32(rejected))

    def solved(config, program, params, first):
        looks.append(first)
        return next(scripted)

    monkeypatch.setattr(grpo_jax.warm_start, "warm_start", lambda *_, **__: WarmStart(init, step))
    monkeypatch.setattr(grpo_jax.warm_start, "_solved", solved)
    config = replace(TINY, warm_start=replace(WarmStartConfig(), **settings))
    program = compiled(config)._replace(initial=lambda *, key: {"w": jnp.zeros(2)})
    with monkeypatch.context() as patch:
        patch.setattr(grpo_jax.warm_start.jax, "jit", lambda function, **_: function)
        return warm_started(config, program, key=KEY), rollouts, looks


def test_no_steps_leave_the_initial_values_and_use_up_no_problem(monkeypatch):
    (params, consumed), rollouts, looks = start(monkeypatch, [], steps=0)
    assert (consumed, rollouts, looks) == (0, [], [])
    np.testing.assert_array_equal(params["w"], np.zeros(2))


def test_it_stops_at_the_first_look_that_reaches_the_target(monkeypatch, capsys):
    settings = {"steps": 100, "batch": 4, "check_every": 3, "target": 0.4}
    (_, consumed), rollouts, looks = start(monkeypatch, [0.1, 0.39, 0.4, 0.9], **settings)
    assert len(rollouts) == 9
    examples = TINY.evaluation.examples
    assert looks == [12, 24 + examples, 36 + 2 * examples]
    assert consumed == 36 + 3 * examples
    assert "0.400 of fresh training problems solved after 9 updates; stopping" in capsys.readouterr().out


def test_it_says_so_where_the_target_is_never_reached(monkeypatch, capsys):
    (_, _), rollouts, _ = start(monkeypatch, [0.1, 0.2, 0.3], steps=5, batch=4, check_every=2, target=0.4)
    assert len(rollouts) == 5
    assert (
        "0.300 of fresh training problems solved after 5 updates; short of the target of 0.4" in capsys.readouterr().out
    )


def test_it_imitates_demonstrations_of_problems_that_follow_each_other(monkeypatch):
    settings = {"steps": 2, "batch": 4, "check_every": 2, "slips": 0.0}
    _, rollouts, _ = start(monkeypatch, [0.0], **settings)
    task = compiled(TINY).parts.task
    texts = [text for rollout in rollouts for text in decode(task.tokenizer, jax.device_get(rollout))]
    assert texts == [task.demonstration(example) for example in task.examples("train", 0, 8)]
    assert all(np.all(rollout.finished) for rollout in rollouts)


def test_it_stops_with_an_explanation_when_its_updates_are_rejected_in_a_row(monkeypatch):
    settings = {"steps": 20, "batch": 4, "check_every": 5, "learning_rate": 3.0}
    with pytest.raises(
        TrainingStopped, match=r"warm start, update 5: .* 2 updates in a row.*rate is 3; divide it by 10"
    ):
        start(monkeypatch, [0.0] * 4, rejected=TINY.update.max_rejected, **settings)
