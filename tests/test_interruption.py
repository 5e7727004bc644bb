"""A run that is told to end loses nothing, says so with its exit status, and goes on bit for bit."""

import os
import signal
import threading
from dataclasses import replace

import pytest

import grpo_jax.warm_start
from grpo_jax import checkpoints, train
from grpo_jax.__main__ import main
from grpo_jax.config import WarmStartConfig
from grpo_jax.experience import Collector
from grpo_jax.interruption import Interrupted, interruption
from tests.runs import TINY, assert_same, compiled, final_state, rows_of

CONFIG = replace(TINY, steps=5, checkpoint_every=3)


@pytest.fixture(autouse=True)
def _shared_programs(monkeypatch):
    monkeypatch.setattr(train, "compile_program", compiled)
    monkeypatch.setattr(train, "save_curves", lambda *_: None)


@pytest.fixture(autouse=True)
def _handlers_of_a_program_in_the_foreground():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "compile_program", compiled)
        patch.setattr(train, "save_curves", lambda *_: None)
        train.train(CONFIG, folder)
    return folder


def sending(patch, owner, name, at, number=signal.SIGTERM):
    """Sends this process a signal just before the call ``at`` (from 0) of a function."""
    real, calls = getattr(owner, name), []

    def called(*args, **kwargs):
        calls.append(1)
        if len(calls) == at + 1:
            os.kill(os.getpid(), number)
        return real(*args, **kwargs)

    patch.setattr(owner, name, called)


@pytest.mark.parametrize(
    ("owner", "name", "at", "step"),
    [
        (train, "introduction", 0, 0),  # before anything is computed: the state before the first step is saved still
        (train, "_evaluated", 0, 0),
        (Collector, "collect", 0, 1),
        (Collector, "collect", 1, 2),
        (Collector, "collect", 2, 3),  # a step that is saved anyway
        (train, "_evaluated", 2, 4),
        (train, "_stop_if_broken", 3, 4),
    ],
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_step_under_way_is_finished_and_saved_and_no_step_is_lost(
    number, owner, name, at, step, whole, tmp_path, monkeypatch, capfd
):
    handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    with monkeypatch.context() as patch:
        sending(patch, owner, name, at, number)
        with pytest.raises(Interrupted, match=f"step {step} is saved; resuming .* goes on from there") as caught:
            train.train(CONFIG, tmp_path / "run")
    assert caught.value.code == 128 + number
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert "finishing the step under way, then saving" in capfd.readouterr().err
    assert checkpoints.latest(tmp_path / "run" / "checkpoints") == step
    assert rows_of(tmp_path / "run") == rows_of(whole)[: step + 1]
    train.train(CONFIG, tmp_path / "run", resume=True)
    assert rows_of(tmp_path / "run") == rows_of(whole)
    assert_same(final_state(tmp_path / "run"), final_state(whole))


def test_a_signal_that_comes_when_all_is_done_changes_nothing(whole, tmp_path, monkeypatch):
    sending(monkeypatch, Collector, "collect", 4)
    assert train.train(CONFIG, tmp_path / "run")["steps"] == 5
    assert rows_of(tmp_path / "run") == rows_of(whole)


def test_nothing_of_a_warm_start_is_kept_and_resuming_begins_it_again(tmp_path, monkeypatch):
    config = replace(CONFIG, steps=1, warm_start=WarmStartConfig(steps=3, batch=4, check_every=3, target=1.0))
    train.train(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        sending(patch, grpo_jax.warm_start, "_demonstrations", 1)
        with pytest.raises(Interrupted, match="nothing of a warm start is kept; resuming begins it again"):
            train.train(config, tmp_path / "run")
    assert checkpoints.steps(tmp_path / "run" / "checkpoints") == []
    train.train(config, tmp_path / "run", resume=True)
    assert rows_of(tmp_path / "run") == rows_of(tmp_path / "whole")
    assert_same(final_state(tmp_path / "run"), final_state(tmp_path / "whole"))


def test_the_program_ends_with_the_status_that_schedulers_know(tmp_path, monkeypatch, capsys):
    sending(monkeypatch, Collector, "collect", 1)
    words = ["train", "--out", str(tmp_path / "run"), "--preset", "smoke", "--mesh", "data=1"]
    monkeypatch.setattr(train, "compile_program", lambda *_: compiled(TINY))
    assert main([*words, "--warm-start.steps", "0", "--steps", "5"]) == 143
    assert "grpo-jax: SIGTERM: step 2 is saved; resuming" in capsys.readouterr().err


def test_what_no_one_expects_ends_a_script_with_the_same_status():
    assert issubclass(Interrupted, SystemExit)
    assert Interrupted(signal.SIGTERM, "x").code == 143
    assert Interrupted(signal.SIGINT, "x").code == 130
    assert str(Interrupted(signal.SIGTERM, "x")) == "SIGTERM: x"


def test_the_second_signal_is_met_by_whoever_met_it_before():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with interruption() as asked:
            assert asked() == 0
            os.kill(os.getpid(), signal.SIGTERM)
            assert (asked(), seen) == (signal.SIGTERM, [])
            os.kill(os.getpid(), signal.SIGTERM)
            assert seen == [signal.SIGTERM]
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            assert asked() == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_is_ignored_stays_ignored_as_for_a_program_in_the_background():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruption() as asked:
            os.kill(os.getpid(), signal.SIGINT)
            assert asked() == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_nothing_is_watched():
    before, inside = signal.getsignal(signal.SIGTERM), []

    def run():
        with interruption() as asked:
            inside.append((signal.getsignal(signal.SIGTERM), asked()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert inside == [(before, 0)]
