"""Rollouts ahead of the updates: from the policy of exactly n updates ago, and resumable at every moment."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from grpo_jax import ahead, hosts, inspection, lag, train, waiting
from grpo_jax.experience import Collector
from grpo_jax.interruption import Interrupted
from grpo_jax.presets import preset
from grpo_jax.program import compile_program
from tests.runs import TINY, assert_same, compiled, final_state, odd, rows_of, with_reward
from tests.test_every_field import LLAMA, changed
from tests.test_interruption import sending
from tests.test_train import Stop, failing, failing_saver, failing_writer

STEPS = 6
LAGGING = changed(TINY, {"rollout.lag": 2, "steps": STEPS, "gradient_share_every": 0, "evaluation.every": 0})


@pytest.fixture(autouse=True)
def _shared_programs(monkeypatch):
    monkeypatch.setattr(train, "compile_program", compiled)
    monkeypatch.setattr(train, "save_curves", lambda *_: None)
    yield
    assert not rollout_threads()


def rollout_threads():
    return [thread for thread in threading.enumerate() if thread.name == "rollouts"]


def plainly(config):
    """A run as a loop that samples, when a step needs it, from parameters that it has kept; states and batches."""
    program, rollout, behind = compiled(config), config.rollout, config.rollout.lag
    sizes = (rollout.prompts, program.rows, rollout.group_size, rollout.resample_rounds)
    collector = Collector(program.parts, program.generate, *sizes)
    init_key, run_key = jax.random.split(jax.random.key(config.seed))
    state = program.state(program.initial(key=init_key), key=run_key)
    kept, batches, position = [jax.device_get(state.params)], [], 0
    for step in range(1, config.steps + 1):
        params = jax.device_put(kept[max(0, step - 1 - behind)])
        found = collector.collect(params, position, key=jax.random.fold_in(run_key, step - 1))
        batch = found.batch
        if behind:
            old = jax.device_get(program.old_log_probs(params, found.rollout))
            batch = batch._replace(old_log_probs=np.where(batch.mask, old, 0))
        state, metrics = program.update(state, *program.place((found.rollout, batch)))
        kept.append(jax.device_get(state.params))
        batches.append((found.rollout, batch, jax.device_get(metrics)))
        position += found.consumed
    return kept, batches, position


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a lagging run from beginning to end, and what it gave its updates."""
    folder, placed = tmp_path_factory.mktemp("whole") / "run", []

    def watched(*args):
        program = compiled(*args)
        return program._replace(place=lambda tree: placed.append(tree) or program.place(tree))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "compile_program", watched)
        patch.setattr(train, "save_curves", lambda *_: None)
        train.train(LAGGING, folder)
    return folder, placed


@pytest.mark.parametrize("values", [{"rollout.lag": 0}, {"rollout.lag": 1, "rollout.resample_rounds": 2}, {}])
def test_a_run_is_a_plain_loop_over_the_parameters_of_n_updates_ago_bit_for_bit(values, tmp_path):
    config = changed(LAGGING, values)
    train.train(config, tmp_path / "run")
    kept, batches, position = plainly(config)
    state = final_state(tmp_path / "run", config)
    assert_same(state.params, kept[-1])
    assert int(state.position) == position
    for row, (_, _, metrics) in zip(rows_of(tmp_path / "run")[1:], batches, strict=True):
        for name in ("loss", "ratio", "ratio_max", "reward_mean", "kl_mean", "gradient_norm"):
            assert row[name] == float(metrics[name])


def test_every_sample_has_its_version_and_the_log_probs_of_the_policy_that_wrote_it(whole):
    folder, placed = whole
    _, batches, _ = plainly(LAGGING)
    for (rollout, batch), (expected, _, _) in zip(placed, batches, strict=True):
        assert_same(jax.tree.map(np.asarray, rollout), expected)
        # What the sampler noted when it chose each token, and what the parameters that are recorded say of it.
        np.testing.assert_allclose(batch.old_log_probs, batch.behaviour_log_probs, atol=1e-5)
    rows = rows_of(folder)[1:]
    assert [row["lag_mean"] for row in rows] == [row["lag_max"] for row in rows] == [0, 1, 2, 2, 2, 2]
    assert rows[0]["ratio_max"] == pytest.approx(1, abs=1e-5)
    assert min(row["ratio_max"] or 0 for row in rows[1:]) > 1.001


def test_what_two_threads_are_told_of_a_sample_is_in_its_experience(monkeypatch, tmp_path):
    real, seen = Collector.collect, []

    def collect(self, params, position, **kwargs):
        found = real(self, params, position, **kwargs)
        seen.append((position, found.versions.tolist(), threading.current_thread().name))
        return found

    monkeypatch.setattr(Collector, "collect", collect)
    train.train(LAGGING, tmp_path / "run")
    # Two more than there are steps, since the last checkpoint too has what the next two steps need.
    assert [position for position, _, _ in seen] == list(range(0, 8 * (STEPS + 2), 8))
    assert [versions for _, versions, _ in seen] == [[max(0, step - 2)] * 8 for step in range(STEPS + 2)]
    assert {name for _, _, name in seen} == {"rollouts"}


@pytest.mark.parametrize(
    ("place", "at"), [("collect", 0), ("collect", 3), ("collect", 5), ("collect", 7), ("write", 3), ("save", 2)]
)
def test_a_lagging_run_that_is_stopped_anywhere_and_resumed_is_the_run_that_was_not(
    place, at, whole, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        if place == "collect":
            failing(patch, Collector, "collect", at)
        elif place == "save":
            failing_saver(patch, at)
        else:
            failing_writer(patch, at)
        with pytest.raises(Stop):
            train.train(LAGGING, tmp_path / "run")
    train.train(LAGGING, tmp_path / "run", resume=True)
    assert rows_of(tmp_path / "run") == rows_of(whole[0])
    assert_same(final_state(tmp_path / "run", LAGGING), final_state(whole[0], LAGGING))


def test_a_lagging_run_that_is_told_to_end_saves_what_waits_and_goes_on_bit_for_bit(whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        sending(patch, train, "_stop_if_broken", 2)
        with pytest.raises(Interrupted, match="step 3 is saved"):
            train.train(LAGGING, tmp_path / "run")
    assert not rollout_threads()
    train.train(LAGGING, tmp_path / "run", resume=True)
    assert rows_of(tmp_path / "run") == rows_of(whole[0])
    assert_same(final_state(tmp_path / "run", LAGGING), final_state(whole[0], LAGGING))


def test_a_lagging_run_that_is_given_more_steps_is_the_longer_one(whole, tmp_path):
    train.train(replace(LAGGING, steps=3), tmp_path / "run")
    train.train(LAGGING, tmp_path / "run", resume=True)
    assert_same(final_state(tmp_path / "run", LAGGING), final_state(whole[0], LAGGING))


@pytest.mark.parametrize(
    ("values", "devices", "exact"),
    [
        ({"rollout.mesh": "data=1"}, 2, True),
        pytest.param({"rollout.mesh": "tensor=2", "mesh": "data=2,fsdp=2"}, 6, False, marks=pytest.mark.slow),
        pytest.param({"mesh": "data=4,fsdp=2"}, 8, False, marks=pytest.mark.slow),
    ],
)
def test_sampling_elsewhere_gives_the_same_tokens_and_the_same_metrics(
    values, devices, exact, whole, tmp_path, monkeypatch, capsys
):
    placed = []

    def watched(*args):
        program = compiled(*args, devices=devices)
        return program._replace(place=lambda tree: placed.append(tree) or program.place(tree))

    monkeypatch.setattr(train, "compile_program", watched)
    train.train(changed(LAGGING, values), tmp_path / "run")
    assert ("rollouts on" in capsys.readouterr().out) == ("rollout.mesh" in values)
    for (rollout, _), (expected, _) in zip(placed, whole[1], strict=True):
        np.testing.assert_array_equal(rollout.tokens, expected.tokens)
    rows, expected = rows_of(tmp_path / "run"), rows_of(whole[0])
    if exact:
        assert rows == expected
    for row, other in zip(rows, expected, strict=True):
        assert row == pytest.approx(other, rel=1e-4, abs=1e-5)


def test_a_reward_that_fails_in_the_thread_ends_the_run_with_its_own_message(tmp_path, monkeypatch):
    calls = []

    def reward(prompts, completions, **columns):
        calls.append(len(completions))
        if calls.count(32) == 4:
            raise OSError("the judge is out")
        return odd(prompts, completions)

    monkeypatch.setattr(train, "compile_program", lambda *args: with_reward(compiled(*args), reward))
    with pytest.raises(RuntimeError, match="reward function 'reward' raised OSError .* the judge is out"):
        train.train(LAGGING, tmp_path / "run")
    # Every step before the one whose rollout failed has been taken.
    assert [row["step"] for row in rows_of(tmp_path / "run")] == [0, 1, 2, 3][: len(rows_of(tmp_path / "run"))]
    assert calls.count(32) == 4


def test_rewards_are_computed_while_an_update_runs(tmp_path, monkeypatch):
    """Each waits for the other to have begun, which takes for ever where they take turns."""
    updating, rewarding, calls = threading.Event(), threading.Event(), []

    def reward(prompts, completions, **columns):
        calls.append(len(completions))
        if calls.count(32) == 2:
            rewarding.set()
            assert updating.wait(60)
        return odd(prompts, completions)

    def watched(*args):
        program = with_reward(compiled(*args), reward)

        def update(*arguments):
            updating.set()
            assert rewarding.wait(60)
            return program.update(*arguments)

        return program._replace(update=update)

    monkeypatch.setattr(train, "compile_program", watched)
    train.train(changed(LAGGING, {"rollout.lag": 1, "steps": 2}), tmp_path / "run")


def test_the_queue_never_holds_more_than_the_lag(tmp_path, monkeypatch):
    real, sizes = ahead.Beside._one, []

    def one(self):
        real(self)
        sizes.append((len(self._ready), len(self._policies)))

    monkeypatch.setattr(ahead.Beside, "_one", one)
    train.train(LAGGING, tmp_path / "run")
    assert max(size for size, _ in sizes) == 2
    assert max(policies for _, policies in sizes) <= 3


def test_experience_comes_back_from_arrays_as_it_was():
    program = compiled(LAGGING)
    params = program.initial(key=jax.random.key(0))
    collector = Collector(program.parts, program.generate, 8, program.rows, 4, 0, 2)
    found = [collector.collect(params, at, key=jax.random.key(at), version=at) for at in (0, 8)]
    assert found[0].rollout.packing is not None
    for before, after in zip(found, waiting.from_arrays(waiting.as_arrays(found)), strict=True):
        assert_same(jax.tree.map(np.asarray, after), jax.tree.map(np.asarray, before))
    assert waiting.from_arrays(waiting.as_arrays([])) == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rollout.lag": -1}, "rollout.lag is -1; give at least 0"),
        (
            {"objective.surrogate": "reinforce"},
            "rollout.lag=2 with objective.surrogate=reinforce: reinforce has no ratio",
        ),
        ({"rollout.mesh": "data=-1"}, "rollout.mesh 'data=-1' does not say how many devices"),
        ({"rollout.mesh": ""}, "rollout.mesh '' does not say how many devices"),
        ({"rollout.mesh": "data=8"}, "rollout.mesh 'data=8' takes 8 devices for sampling, but there are 8 in all"),
    ],
)
def test_what_cannot_lag_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        compile_program(changed(LAGGING, values))


def test_an_uncorrected_lag_can_be_studied_and_bounds_on_ratios_mean_something():
    compile_program(changed(LAGGING, {"objective.surrogate": "reinforce", "objective.allow_biased": True}))
    compile_program(changed(LAGGING, {"objective.clip_high": 0.3}))


@pytest.mark.parametrize("behind", [0, 2])
def test_devices_of_their_own_in_several_processes_are_refused(behind, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="in 2 processes: a thread of each would launch rollouts beside updates"):
        compile_program(changed(LAGGING, {"rollout.lag": behind, "rollout.mesh": "data=2"}))


@pytest.mark.parametrize("stopped_at", [None, 0, 3])
def test_in_turn_with_the_updates_the_same_is_collected(stopped_at, whole, tmp_path, monkeypatch):
    """As several processes do it; also where a run that a thread served is resumed so."""
    started = {} if stopped_at is None else {"resume": True}
    if started:
        with pytest.MonkeyPatch.context() as patch:
            failing_writer(patch, stopped_at)
            with pytest.raises(Stop):
                train.train(LAGGING, tmp_path / "run")
    monkeypatch.setattr(lag, "hosts", SimpleNamespace(count=lambda: 2, whole=hosts.whole))
    monkeypatch.setattr(ahead, "Beside", None)
    train.train(LAGGING, tmp_path / "run", **started)
    folder, _ = whole
    assert_same(final_state(tmp_path / "run", LAGGING), final_state(folder, LAGGING))
    learnt = [{name: row[name] for name in row if name != "queued"} for row in rows_of(tmp_path / "run")]
    assert learnt == [{name: row[name] for name in row if name != "queued"} for row in rows_of(folder)]


@pytest.mark.parametrize("values", [{"rollout.lag": 0}, {"rollout.lag": 1}])
def test_certificates_know_that_another_policy_sampled(values, monkeypatch):
    asked, config = [], changed(LAGGING, {"certify_every": 1, **values})
    monkeypatch.setattr(inspection, "sampled_findings", lambda *_, off_policy, **__: asked.append(off_policy))
    program = compiled(LAGGING)
    assert program.score is not None
    inspection.certificate_step(program.score, program.parts, config, 4)
    assert asked == [config.rollout.lag > 0]


@pytest.mark.slow
@pytest.mark.parametrize("values", [{}, {"model.lora_rank": 1, "rollout.lag": 0}])
def test_the_preset_with_a_small_model_trains_on_eight_devices(values, tmp_path, monkeypatch):
    """Packed, in slots, in bfloat16, sampling on four devices of their own; also adapters, without lag."""
    monkeypatch.setattr(train, "compile_program", compile_program)
    small = {"model.path": LLAMA, "rollout.prompts": 8, "rollout.group_size": 2, "rollout.max_tokens": 4}
    small |= {
        "rollout.slots": 8,
        "update.micro_batches": 2,
        "evaluation.examples": 8,
        "steps": 3,
        "checkpoint_every": 2,
    }
    config = changed(preset("qwen3-4b-countdown-async"), small | values)
    if not config.rollout.lag:  # then every ratio is 1
        config = changed(
            config, {"objective.clip_low": None, "objective.clip_high": None, "objective.importance": None}
        )
    with monkeypatch.context() as patch:
        failing_writer(patch, 3)
        with pytest.raises(Stop):
            train.train(config, tmp_path / "run")
    train.train(config, tmp_path / "run", resume=True)
    rows = rows_of(tmp_path / "run")
    assert [row.get("lag_max") for row in rows[1:]] == ([0, 1, 1] if config.rollout.lag else [None] * 3)
    assert max(row["mismatch_max"] or 0 for row in rows[1:]) < 0.5
