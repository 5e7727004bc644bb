"""A resumed run does what is left, on the problems that are left, whatever became of its files."""

from dataclasses import replace

import orbax.checkpoint.experimental.v1 as orbax
import pytest

from grpo_jax import checkpoints, train
from grpo_jax.experience import Collector
from tests.runs import TINY, assert_same, compiled, final_state, rows_of
from tests.test_every_field import changed
from tests.test_train import Stop, failing

CONFIG = replace(TINY, steps=6)


@pytest.fixture(autouse=True)
def _shared_programs(monkeypatch):
    monkeypatch.setattr(train, "compile_program", compiled)
    monkeypatch.setattr(train, "save_curves", lambda *_: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "compile_program", compiled)
        patch.setattr(train, "save_curves", lambda *_: None)
        train.train(CONFIG, folder)
    return folder


def stopped(config, folder, at):
    """A run that ends where it is about to sample for the time ``at`` (from 0)."""
    with pytest.MonkeyPatch.context() as patch:
        failing(patch, Collector, "collect", at)
        with pytest.raises(Stop):
            train.train(config, folder)


@pytest.fixture
def collected(monkeypatch):
    """What was sampled, in order: the step, the first problem's index, how many there were, and their texts."""
    found, real = [], Collector.collect

    def collect(self, params, position, **kwargs):
        each = real(self, params, position, **kwargs)
        found.append((kwargs["version"], position, each.consumed, each.prompts))
        return each

    monkeypatch.setattr(Collector, "collect", collect)
    return found


@pytest.mark.parametrize("rounds", [0, 2])
def test_every_problem_is_used_once_and_only_the_steps_that_are_left_are_taken(rounds, tmp_path, collected):
    config = changed(CONFIG, {"rollout.resample_rounds": rounds})
    stopped(config, tmp_path / "run", at=3)
    before = list(collected)
    collected.clear()
    train.train(config, tmp_path / "run", resume=True)
    assert [step for step, *_ in before] == [0, 1, 2]
    assert [step for step, *_ in collected] == [2, 3, 4, 5], "the last checkpoint was that of step 2"
    used = before[:2] + collected
    ends = [position + consumed for _, position, consumed, _ in used]
    assert [position for _, position, *_ in used] == [0, *ends[:-1]], "none is left out and none is taken twice"
    assert int(final_state(tmp_path / "run", config).position) == ends[-1]
    assert collected[0] == before[2], "the step that was lost is taken again as it was"


def test_a_run_with_several_updates_on_a_batch_goes_on_between_batches(tmp_path):
    """So nothing of a batch that is learned from in parts has to be kept."""
    config = changed(CONFIG, {"update.updates_per_rollout": 2, "steps": 4})
    train.train(config, tmp_path / "whole")
    stopped(config, tmp_path / "run", at=3)
    train.train(config, tmp_path / "run", resume=True)
    assert rows_of(tmp_path / "run") == rows_of(tmp_path / "whole")
    assert_same(final_state(tmp_path / "run", config), final_state(tmp_path / "whole", config))
    assert int(final_state(tmp_path / "run", config).step) == 8


def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before_and_nothing_else(whole, tmp_path, capsys):
    stopped(CONFIG, tmp_path / "run", at=5)
    places = tmp_path / "run" / "checkpoints"
    assert checkpoints.steps(places) == [0, 2, 4]
    (places / "4" / "arrays" / "state" / "manifest.ocdbt").unlink()
    capsys.readouterr()
    train.train(CONFIG, tmp_path / "run", resume=True)
    said = capsys.readouterr()
    assert f"{places / '4'} is damaged: state/manifest.ocdbt is missing; going on from step 2 instead" in said.err
    assert f"resuming {tmp_path / 'run'} at step 2" in said.out
    assert rows_of(tmp_path / "run") == rows_of(whole)
    assert_same(final_state(tmp_path / "run"), final_state(whole))
    assert sorted(path.name for path in places.iterdir()) == ["2", "4", "4.damaged", "6"]


def test_a_full_disk_ends_the_run_with_the_step_before_it_intact(whole, tmp_path, monkeypatch):
    class Full:
        def result(self):
            raise ValueError("Failed to write: No space left on device [os_error_code='28']")

    real = orbax.save_async
    with monkeypatch.context() as patch:
        patch.setattr(orbax, "save_async", lambda path, *args: Full() if "/4." in path else real(path, *args))
        with pytest.raises(OSError, match=r"step 4 could not be written to .*: no space .*steps \[0, 2\] are intact"):
            train.train(CONFIG, tmp_path / "run")
    assert [row["step"] for row in rows_of(tmp_path / "run")][:5] == [0, 1, 2, 3, 4]
    train.train(CONFIG, tmp_path / "run", resume=True)
    assert rows_of(tmp_path / "run") == rows_of(whole)
    assert_same(final_state(tmp_path / "run"), final_state(whole))


def test_a_run_whose_checkpoints_are_all_damaged_says_so_and_touches_nothing(tmp_path):
    stopped(CONFIG, tmp_path / "run", at=3)
    places = tmp_path / "run" / "checkpoints"
    for step in (0, 2):
        (places / str(step) / "arrays" / "state" / "manifest.ocdbt").unlink()
    rows = rows_of(tmp_path / "run")
    with pytest.raises(ValueError, match="No checkpoint in .* is whole: restore one from a copy, or start the run in"):
        train.train(CONFIG, tmp_path / "run", resume=True)
    assert rows_of(tmp_path / "run") == rows
    assert sorted(path.name for path in places.iterdir()) == ["0", "2"]
