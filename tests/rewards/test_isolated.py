"""Rewards in processes of their own: what hangs, dies or raises costs its row and nothing else."""

import math
import time

import numpy as np
import pytest

from grpo_jax.rewards import IsolatedReward, RewardFunction, isolated, score
from tests.rewards.functions import slow, troubled


@pytest.fixture(scope="module")
def function():
    made = isolated(troubled, 0.5, workers=2)
    yield made
    made.close()


def test_rows_that_hang_die_or_raise_have_no_reward_and_the_others_theirs(function):
    assert isinstance(function, RewardFunction)
    completions = ["a", "hang", "bb", "die", "ccc", "raise", "none", "dddd"]
    began = time.monotonic()
    with pytest.warns(
        UserWarning, match="'troubled' failed on row [135]: .*no reward.*unscorable.*completion: '(hang|die|raise)'"
    ):
        rewards = function(["p"] * 8, completions)
    assert time.monotonic() - began < 45, "half a second for the row that hangs, the rest for a slow machine"
    np.testing.assert_array_equal(rewards, [1, math.nan, 2, math.nan, 3, math.nan, math.nan, 4])
    assert function.failed == 3
    assert function(["p"] * 3, ["die", "a", "bb"])[1:] == [1, 2], "only the first failure is a warning"
    assert function.failed == 4


def test_workers_stay_between_calls_and_are_replaced_one_by_one(function):
    function(["p"] * 2, ["a", "b"])
    before = {worker.process.pid for worker in function._workers}
    function(["p"] * 2, ["a", "b"])
    assert {worker.process.pid for worker in function._workers} == before
    function(["p"] * 2, ["die", "b"])
    function(["p"] * 2, ["a", "b"])
    after = {worker.process.pid for worker in function._workers}
    assert len(after) == 2
    assert len(after & before) == 1


def test_columns_and_coroutines_reach_the_workers_and_it_scores_groups_like_any_other():
    made = isolated(slow, 30.0, workers=1)
    found = score([made], None, ["p", "q"], ["a", "bb", "c", "d"], {"bonus": [10, 20]}, 2)
    np.testing.assert_array_equal(found, [[11, 12], [21, 21]])
    assert made.__name__ == "slow"
    process = made._workers[0].process
    del made
    process.join(10)
    assert not process.is_alive()


def test_the_processes_end_with_the_call_that_was_interrupted(function, monkeypatch):
    function(["p"], ["a"])
    processes = [worker.process for worker in function._workers]
    with monkeypatch.context() as patch:
        patch.setattr(IsolatedReward, "_outcomes", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            function(["p"], ["a"])
    assert not any(process.is_alive() for process in processes)
    assert function(["p"], ["abc"]) == [3]


def test_what_cannot_be_sent_is_refused():
    made = isolated(lambda prompts, completions, **columns: [0.0], 1.0)
    with pytest.raises(ValueError, match="cannot be sent to another process.*define it at the top of a module"):
        made(["p"], ["a"])


@pytest.mark.parametrize(
    ("values", "message"),
    [((0.0,), "timeout is 0.0"), ((math.inf,), "timeout is inf"), ((1.0, 0), "workers is 0; give at least 1")],
)
def test_limits_that_are_none_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        isolated(troubled, *values)
