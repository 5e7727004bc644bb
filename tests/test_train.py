"""The training run: reproducible, resumable at every moment, stopped where it is broken, and honest about itself."""

import json
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import grpo_jax.train
import grpo_jax.warm_start
from grpo_jax import checkpoints, train
from grpo_jax.config import WarmStartConfig, to_dict
from grpo_jax.experience import Collector
from grpo_jax.metrics import config_hash, read_rows, run_folder
from grpo_jax.metrics.curves import PANELS
from tests.runs import TINY, assert_same, compiled, final_state, odd, rows_of, with_reward
from tests.test_every_field import changed, noting

WARM = replace(TINY, warm_start=WarmStartConfig(steps=2, batch=4, check_every=1, target=1.0))


class Stop(Exception):
    """A run is stopped here, as by a kill."""


@pytest.fixture(autouse=True)
def _shared_programs(monkeypatch):
    monkeypatch.setattr(train, "compile_program", compiled)
    monkeypatch.setattr(train, "save_curves", lambda *_: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder and summary of one run of six steps from beginning to end, curves included."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "compile_program", compiled)
        return folder, train.train(replace(TINY, steps=6), folder)


def failing(monkeypatch, owner, name, at):
    """Lets the call number ``at`` (from 0) of a function stop the run."""
    real, calls = getattr(owner, name), []

    def called(*args, **kwargs):
        calls.append(1)
        if len(calls) == at + 1:
            raise Stop
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, called)


def rewarding(monkeypatch, reward):
    """Lets every run have another reward."""
    monkeypatch.setattr(train, "compile_program", lambda *args: with_reward(compiled(*args), reward))


def test_two_runs_with_one_seed_are_the_same(whole, tmp_path):
    folder, summary = whole
    again = train.train(replace(TINY, steps=6), tmp_path / "run")
    assert rows_of(tmp_path / "run") == rows_of(folder)
    assert_same(final_state(tmp_path / "run"), final_state(folder))
    assert {**again, "seconds": 0} == {**summary, "seconds": 0}


def test_a_run_learns_and_another_seed_gives_another_run(whole, tmp_path):
    folder, _ = whole
    train.train(replace(TINY, steps=6, seed=1), tmp_path / "run")
    assert rows_of(tmp_path / "run") != rows_of(folder)
    first, last = final_state(folder, step=2), final_state(folder)
    assert np.abs(first.params["embedding"] - last.params["embedding"]).max() > 1e-3


@pytest.mark.parametrize(
    ("place", "at"),
    [
        ("collect", 0),
        ("collect", 1),
        ("collect", 3),
        ("collect", 5),
        ("save", 0),
        ("save", 1),
        ("write", 0),
        ("write", 3),
    ],
)
def test_a_run_that_is_stopped_anywhere_and_resumed_is_the_run_that_was_not(place, at, whole, tmp_path, monkeypatch):
    folder, summary = whole
    config = replace(TINY, steps=6)
    with monkeypatch.context() as patch:
        if place == "collect":
            failing(patch, Collector, "collect", at)
        elif place == "save":
            failing_saver(patch, at)
        else:
            failing_writer(patch, at)
        with pytest.raises(Stop):
            train.train(config, tmp_path / "run")
    resumed = train.train(config, tmp_path / "run", resume=True)
    assert rows_of(tmp_path / "run") == rows_of(folder)
    assert_same(final_state(tmp_path / "run"), final_state(folder))
    assert {**resumed, "seconds": 0} == {**summary, "seconds": 0}


def test_the_seconds_of_a_resumed_run_are_those_of_all_its_processes(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        failing(patch, Collector, "collect", 3)
        with pytest.raises(Stop):
            train.train(TINY, tmp_path / "run")
    spent = [row["seconds_total"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")]
    assert spent == sorted(spent)
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    # As if the last step, which the newest checkpoint does not have, had ended a thousand seconds after the start.
    (tmp_path / "run" / "metrics.jsonl").write_text(text.replace(json.dumps(spent[-1]), "1000.0"))
    resumed = train.train(TINY, tmp_path / "run", resume=True)
    after = [row["seconds_total"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")]
    assert after[:3] == spent[:3]
    assert after == sorted(after)
    assert 1000 < after[3] < resumed["seconds"] + 0.1 < 2000


def failing_saver(patch, at):
    """Stops the run where it is about to save for the time ``at`` (from 0)."""
    asked = []

    def note(step):
        asked.append(step)
        if len(asked) == at + 1:
            raise Stop

    patch.setattr(checkpoints, "saver", noting(checkpoints.saver, note))


def failing_writer(patch, at):
    """Stops the run after a row is written to metrics.jsonl and before the next thing happens."""
    real = train.json_lines

    def opened(path, resume_at=None):
        writer, rows = real(path, resume_at), []

        def write(step, row):
            writer.write(step, row)
            rows.append(step)
            if len(rows) == at + 1:
                raise Stop

        return writer._replace(write=write)

    patch.setattr(train, "json_lines", opened)


def test_a_run_that_is_stopped_in_its_warm_start_begins_again(tmp_path, monkeypatch):
    asked = []

    def watched(*args):
        program = compiled(*args)
        task = program.parts.task

        def examples(split, first, count):
            asked.append(split)
            return task.examples(split, first, count)

        return program._replace(parts=program.parts._replace(task=task._replace(examples=examples)))

    monkeypatch.setattr(train, "compile_program", watched)
    evaluated = train._evaluated
    monkeypatch.setattr(
        train, "_evaluated", lambda *args, **kwargs: asked.append("before") or evaluated(*args, **kwargs)
    )
    train.train(WARM, tmp_path / "whole")
    assert set(asked[: asked.index("before")]) == {"train"}
    with monkeypatch.context() as patch:
        failing(patch, grpo_jax.warm_start, "_solved", 1)
        with pytest.raises(Stop):
            train.train(WARM, tmp_path / "run")
    train.train(WARM, tmp_path / "run", resume=True)
    assert rows_of(tmp_path / "run") == rows_of(tmp_path / "whole")
    assert_same(final_state(tmp_path / "run"), final_state(tmp_path / "whole"))


def test_a_finished_run_that_is_resumed_stays_as_it_is(whole, tmp_path):
    config = replace(TINY, steps=2)
    summary = train.train(config, tmp_path / "run")
    rows, state = rows_of(tmp_path / "run"), final_state(tmp_path / "run")
    assert {**train.train(config, tmp_path / "run", resume=True), "seconds": 0} == {**summary, "seconds": 0}
    assert rows_of(tmp_path / "run") == rows
    assert_same(final_state(tmp_path / "run"), state)


def test_a_finished_run_can_be_given_more_steps(whole, tmp_path):
    folder, summary = whole
    short = replace(TINY, steps=3)
    train.train(short, tmp_path / "run")
    extended = replace(short, steps=6, checkpoint_every=1, keep_checkpoints=2)
    longer = train.train(extended, tmp_path / "run", resume=True)
    assert json.loads((tmp_path / "run" / "config.json").read_text()) == to_dict(extended)
    assert longer["config_hash"] == config_hash(to_dict(extended))
    assert longer["accuracy_before"] == summary["accuracy_before"]
    assert longer["accuracy_after"] == summary["accuracy_after"]
    assert checkpoints.steps(tmp_path / "run" / "checkpoints") == [5, 6]
    assert_same(final_state(tmp_path / "run"), final_state(folder))
    # The step that was the last one has the accuracies of a last step; nothing else differs.
    rows, expected = rows_of(tmp_path / "run"), rows_of(folder)
    assert {name for name in rows[3].keys() - expected[3].keys()} == {
        f"accuracy_{split}" for split in ("validation", "longer", "operators", "format")
    }
    rows[3] = {name: value for name, value in rows[3].items() if name in expected[3]}
    assert rows == expected


@pytest.mark.parametrize("steps", [1, 2])
def test_a_run_cannot_be_given_fewer_steps_than_it_has_taken(steps, tmp_path):
    train.train(replace(TINY, steps=3), tmp_path / "run")
    with pytest.raises(
        ValueError, match=f"steps is {steps}, but {re.escape(str(tmp_path / 'run'))} is at step 3 already"
    ):
        train.train(replace(TINY, steps=steps), tmp_path / "run", resume=True)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["steps"] == 3
    assert len(rows_of(tmp_path / "run")) == 4


def test_a_run_can_be_resumed_on_another_mesh(whole, tmp_path, monkeypatch):
    folder, _ = whole
    train.train(replace(TINY, steps=4), tmp_path / "run")
    monkeypatch.setattr(train, "compile_program", lambda *args: compiled(*args, devices=8))
    train.train(replace(TINY, steps=6, mesh="data=4,fsdp=2"), tmp_path / "run", resume=True)
    for row, expected in zip(rows_of(tmp_path / "run"), rows_of(folder), strict=True):
        assert row.keys() >= expected.keys()
        for name in {"reward_mean", "entropy", "kl_per_sequence", "gradient_norm"} & expected.keys():
            assert row[name] == pytest.approx(expected[name], rel=0.02, abs=1e-3)


def test_a_warm_start_works_on_a_mesh_that_splits_the_parameters(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "compile_program", lambda *args: compiled(*args, devices=8))
    summary = train.train(replace(WARM, steps=1, mesh="data=4,fsdp=2"), tmp_path / "run")
    assert summary["steps"] == 1


@pytest.mark.parametrize(
    "values", [{"seed": 1}, {"beta.value": 0.5}, {"evaluation.examples": 4}, {"update.learning_rate": 0.02}]
)
def test_a_run_is_not_resumed_with_other_options(values, whole):
    folder, _ = whole
    name, value = next(iter(values.items()))
    with pytest.raises(
        ValueError, match=rf"belongs to another configuration: {re.escape(name)}: .* there, {value} here"
    ):
        train.train(changed(replace(TINY, steps=6), values), folder, resume=True)


def test_a_run_is_not_started_where_there_is_one_nor_resumed_where_there_is_none(whole, tmp_path):
    folder, _ = whole
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(FileExistsError, match="already holds a run of this configuration: resume it"):
        train.train(replace(TINY, steps=6), folder)
    with pytest.raises(FileNotFoundError, match="no run to resume"):
        train.train(TINY, tmp_path / "none", resume=True)
    assert sorted(path.name for path in folder.iterdir()) == before
    assert not (tmp_path / "none").exists()


def test_a_folder_in_use_is_refused(tmp_path):
    with (
        run_folder(tmp_path / "run", to_dict(TINY)),
        pytest.raises(BlockingIOError, match="in use by process"),
    ):
        train.train(TINY, tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("reward", "error"),
    [
        (lambda prompts, completions, **_: [None] * len(completions), ValueError),
        (lambda prompts, completions, **_: [1.0], ValueError),
        (lambda prompts, completions, **_: 1 / 0, RuntimeError),
    ],
)
def test_a_reward_that_fails_ends_the_run_before_anything_is_learned(reward, error, tmp_path, monkeypatch):
    rewarding(monkeypatch, reward)
    with pytest.raises(error, match="reward"):
        train.train(TINY, tmp_path / "run")
    assert checkpoints.steps(tmp_path / "run" / "checkpoints") == []


def huge_between(first, last):
    """A reward whose differences overflow float32 in some of a run's updates."""
    calls = []

    def reward(prompts, completions, **columns):
        if len(completions) < 32:  # an evaluation: one completion each
            return odd(prompts, completions)
        calls.append(1)
        if first <= len(calls) <= last:
            return [(-1.0) ** number * 3e38 for number in range(len(completions))]
        return odd(prompts, completions)

    return reward


def test_a_step_that_is_not_finite_is_skipped_and_counted(tmp_path, monkeypatch):
    rewarding(monkeypatch, huge_between(2, 2))
    config = replace(TINY, checkpoint_every=1, keep_checkpoints=9, gradient_share_every=0)
    summary = train.train(config, tmp_path / "run")
    states = [final_state(tmp_path / "run", step=step) for step in range(5)]
    for name in ("params", "opt_state", "ref_params", "controller"):
        assert_same(getattr(states[2], name), getattr(states[1], name))
    assert np.abs(states[3].params["embedding"] - states[2].params["embedding"]).max() > 0
    assert [int(state.rejected) for state in states] == [0, 0, 1, 0, 0]
    assert [int(state.step) for state in states] == [0, 1, 2, 3, 4]
    assert [row.get("rejected") for row in rows_of(tmp_path / "run")] == [None, 0, 1, 0, 0]
    assert summary["rejected"] == 1
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rejected"] == 1


def test_a_run_stops_with_an_explanation_when_steps_are_rejected_in_a_row(tmp_path, monkeypatch):
    rewarding(monkeypatch, huge_between(3, 99))
    config = replace(TINY, steps=9, checkpoint_every=2, gradient_share_every=0)
    with pytest.raises(
        train.TrainingStopped, match="step 4: .* not finite for 2 updates in a row.*Likely causes"
    ) as stopped:
        train.train(config, tmp_path / "run")
    assert str(tmp_path / "run" / "checkpoints") in str(stopped.value)
    assert checkpoints.steps(tmp_path / "run" / "checkpoints") == [0, 2]
    assert int(final_state(tmp_path / "run").step) == 2
    assert [row["step"] for row in rows_of(tmp_path / "run")] == [0, 1, 2, 3]
    # The run that was not broken goes on from there.
    rewarding(monkeypatch, odd)
    assert train.train(config, tmp_path / "run", resume=True)["steps"] == 9


def test_a_run_checks_its_invariants_before_every_update_where_asked_to(tmp_path, monkeypatch):
    checked = []

    def program(config, objective):
        return compiled(replace(config, check_invariants=False))._replace(check=lambda *_: checked.append(1))

    monkeypatch.setattr(train, "compile_program", program)
    train.train(replace(TINY, check_invariants=True), tmp_path / "run")
    assert len(checked) == TINY.steps
    train.train(TINY, tmp_path / "other")
    assert len(checked) == TINY.steps


def test_an_objective_of_ones_own_is_used(tmp_path, monkeypatch):
    from tests.test_program import masking

    own, seen = masking(), []

    def program(config, objective):
        seen.append(objective)
        return compiled(config)

    monkeypatch.setattr(train, "compile_program", program)
    train.train(TINY, tmp_path / "run", objective=own)
    assert len(seen) == 1
    assert seen[0] is own


def test_certificates_are_written_every_so_often_and_change_nothing_else(whole, tmp_path):
    train.train(replace(TINY, steps=6, certify_every=3), tmp_path / "run")
    rows = rows_of(tmp_path / "run")
    named = [{name for name in row if name.startswith("certificate_")} for row in rows]
    assert [row["step"] for row, names in zip(rows, named, strict=True) if names] == [3, 6]
    assert "certificate_variance" in named[3]
    assert all(row[name] is not None for row, names in zip(rows, named, strict=True) for name in names)
    without = [{name: row[name] for name in row.keys() - names} for row, names in zip(rows, named, strict=True)]
    assert without == rows_of(whole[0])
    assert_same(final_state(tmp_path / "run"), final_state(whole[0]))


def test_replaced_groups_move_the_position_on(tmp_path):
    config = changed(TINY, {"rollout.resample_rounds": 2})
    train.train(config, tmp_path / "run")
    rows = rows_of(tmp_path / "run")[1:]
    assert {1.0, 2.0} <= {row["rounds"] for row in rows}
    assert all(row["degenerate"] == 0 for row in rows if row["rounds"] < 3)
    state = final_state(tmp_path / "run", config)
    assert int(state.position) == sum(row["rounds"] for row in rows) * config.rollout.prompts


def test_several_updates_on_one_batch_count_as_one_step(tmp_path, monkeypatch, capsys):
    def program(*_):
        def update(state, rollout, batch):
            state, metrics = compiled(TINY).update(state, rollout, batch)
            return state._replace(step=state.step + 1), metrics

        return compiled(TINY)._replace(update=update)

    monkeypatch.setattr(train, "compile_program", program)
    config = changed(TINY, {"update.updates_per_rollout": 2, "steps": 3})
    with monkeypatch.context() as patch:
        failing(patch, Collector, "collect", 2)
        with pytest.raises(Stop):
            train.train(config, tmp_path / "run")
    train.train(config, tmp_path / "run", resume=True)
    assert [row["step"] for row in rows_of(tmp_path / "run")] == [0, 1, 2, 3]
    assert checkpoints.steps(tmp_path / "run" / "checkpoints") == [0, 2, 3]
    assert int(final_state(tmp_path / "run").step) == 6
    assert re.findall("train (.)/3", capsys.readouterr().out) == ["1", "2", "3"]


def test_values_are_read_as_config_json_will_say_them(tmp_path):
    config = replace(TINY, beta=replace(TINY.beta))
    object.__setattr__(config.beta, "value", "0.02")
    with pytest.raises(ValueError, match=r"config\.beta\.value: '0.02' does not fit; expected float"):
        train.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_folder_says_what_metrics_jsonl_says(whole, capsys):
    folder, summary = whole
    rows = read_rows(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(7))
    assert json.loads((folder / "config.json").read_text()) == to_dict(replace(TINY, steps=6))
    written = json.loads((folder / "summary.json").read_text())
    assert written == summary
    assert written["accuracy_before"] == rows[0]["accuracy_validation"]
    assert written["accuracy_after"] == rows[-1]["accuracy_validation"]
    assert written["out_of_domain_after"] == {s: rows[-1][f"accuracy_{s}"] for s in ("longer", "operators", "format")}
    assert (written["steps"], written["kl"], written["beta"]) == (6, rows[-1]["kl_per_sequence"], rows[-1]["beta"])
    assert written["config_hash"] == config_hash(to_dict(replace(TINY, steps=6)))
    assert written["kl_follows"] == "reverse"
    assert written["seconds"] > 0
    assert rows[1]["kl_max"] == 0, "the first update finds the policy where its reference is"
    assert [row["step"] for row in rows if "accuracy_validation" in row] == [0, 2, 4, 6]
    assert [row["step"] for row in rows if "degenerate_gradient_share" in row] == [2, 4, 6]
    assert checkpoints.steps(folder / "checkpoints") == [2, 4, 6]
    assert not list(folder.glob("*.tmp"))


def test_every_measure_that_the_article_asks_for_is_written_every_step(whole):
    folder, _ = whole
    wanted = {"loss", "kl_mean", "kl_max", "kl_std", "beta", "reward_mean", "reward_std", "advantage_mean"}
    wanted |= {"advantage_std", "ratio", "ratio_max", "entropy", "degenerate", "length", "mismatch", "rejected"}
    for row in read_rows(folder / "metrics.jsonl")[1:]:
        assert wanted - row.keys() == set()
        assert all(value is not None for value in row.values())


def test_the_sampler_and_the_trainer_agree(whole):
    folder, _ = whole
    assert all(row["mismatch_max"] < 1e-5 for row in read_rows(folder / "metrics.jsonl")[1:])


def test_every_panel_of_the_curves_has_something_to_draw(whole):
    from fnmatch import fnmatch

    folder, _ = whole
    names = {name for row in read_rows(folder / "metrics.jsonl") for name in row}
    for panel in PANELS:
        assert any(fnmatch(name, pattern) for name in names for pattern in panel.names), panel.title
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_samples_before_and_after_are_to_be_read(whole):
    folder, _ = whole
    for name in ("samples_before.txt", "samples_after.txt"):
        blocks = (folder / name).read_text().split("\n\n")
        task = compiled(TINY).parts.task
        assert [block.splitlines()[0] for block in blocks] == [
            f"prompt:     {example.prompt}" for example in task.examples("validation", 0, len(blocks))
        ]
        assert len(blocks) >= 8
    assert (folder / "samples_before.txt").read_text() != (folder / "samples_after.txt").read_text()


def test_tensorboard_has_the_same_numbers(whole):
    from tensorboardX.proto.event_pb2 import Event

    folder, _ = whole
    (path,) = (folder / "tensorboard").iterdir()
    data, found = path.read_bytes(), {}
    while data:  # a record: 8 bytes of length, 4 of checksum, the event, 4 of checksum
        length = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + length])
        data = data[12 + length + 4 :]
        found.setdefault(event.step, {}).update({value.tag: value.simple_value for value in event.summary.value})
    for row in read_rows(folder / "metrics.jsonl"):
        step = row.pop("step")
        assert found[step] == pytest.approx(row, rel=1e-6)


def test_the_run_says_what_it_does_and_what_came_of_it(tmp_path, capsys):
    summary = train.train(TINY, tmp_path / "run")
    said = capsys.readouterr().out
    assert "KL term: k1 in to_go, token, importance none; follows reverse; beta 0.02 throughout" in said
    assert f"{summary['accuracy_before']:.3f} to {summary['accuracy_after']:.3f}" in said
    for name in ("curves.png", "samples_after.txt", "summary.json", "tensorboard"):
        assert str(tmp_path / "run" / name) in said


def test_a_state_on_the_devices_is_where_the_program_wants_it():
    program = compiled(TINY)
    state = program.state(program.initial(key=jax.random.key(0)), key=jax.random.key(1))
    moved = train._at_position(state, program, 5)
    assert int(moved.position) == 5
    assert moved.position.dtype == jnp.int32
    assert moved.position.sharding == program.shapes.position.sharding
