"""The sweep goes from stage to stage with the best, repeats nothing, and survives runs that do not."""

import json
import math
from dataclasses import replace

import pytest

import grpo_jax.__main__ as command_line
import grpo_jax.commands.tuning
import grpo_jax.metrics
import grpo_jax.train
from grpo_jax.config import Config, load, to_dict
from grpo_jax.report import read_runs
from grpo_jax.train import TrainingStopped
from grpo_jax.tuning import (
    Outcome,
    SweepFailed,
    around,
    betas,
    chosen,
    group_sizes,
    judged,
    learning_rates,
    mean_interval,
    sweep,
    usual_group_sizes,
    verdict,
)
from tests.runs import TINY, compiled

STAGES = (learning_rates((1e-4, 3e-4, 1e-3)), betas((0.002, 0.02, 0.2)), group_sizes((4, 8, 16)))


class Trainer:
    """Stands in for training: the reward is known, best at a rate of 3e-4, a beta of .2 and groups of 8."""

    def __init__(self, fails=lambda config: None):
        self.fails, self.trained = fails, []

    def __call__(self, config, folder, *, resume):
        self.trained.append((folder.name, resume))
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(to_dict(config)))
        error = self.fails(config)
        if error is not None:
            raise error
        off = abs(math.log10(config.update.learning_rate / 3e-4)) + abs(math.log10(config.beta.value / 0.2))
        off += abs(math.log2(config.rollout.group_size / 8))
        return {"accuracy_after": 1 - off / 10 + config.seed / 100, "kl": 0.5, "seconds": 2.0}


def lines(folder):
    return [json.loads(line) for line in (folder / "sweep.jsonl").read_text().splitlines()]


def test_each_stage_starts_from_the_best_of_the_one_before_and_no_point_is_trained_twice(tmp_path, capsys):
    run = Trainer()
    found = sweep(Config(), STAGES, tmp_path, seeds=2, run=run)
    assert found.config == replace(Config(), beta=replace(Config().beta, value=0.2))
    rates, strengths, sizes = found.stages
    assert [each.value for each in rates] == [1e-4, 3e-4, 1e-3]
    assert [each.reward.mean for each in strengths] == pytest.approx([0.805, 0.905, 1.005])
    assert [each.reward.mean for each in sizes] == pytest.approx([0.905, 1.005, 0.905])
    # 3 rates; then 2 new betas, since the third is the start's; then 2 new group sizes: 7 points with 2 seeds each.
    assert len(run.trained) == len(set(run.trained)) == 14
    assert ("rollout.prompts=64,rollout.group_size=4,beta.value=0.2,seed=1", False) in run.trained
    first = lines(tmp_path)[0]
    assert first.pop("reward") == pytest.approx(1 - (math.log10(3) + 1) / 10)
    told = {"run": "update.learning_rate=0.0001,seed=0", "seed": 0, "outcome": "finished", "message": ""}
    assert first == told | {"kl": 0.5, "seconds": 2.0}
    assert "warning: 0.2 is the largest beta that was tried" in found.report
    assert "| 0.0003 | 0.905 | 0.841 to 0.969 | 0.500 | 2 of 2 |" in found.report
    command = f"grpo-jax train --config {tmp_path}/start.json --beta.value 0.2"
    assert found.report.endswith(command)
    assert "stage 3 of 3, group size, 2 seeds a value" in capsys.readouterr().out


def test_the_command_of_the_best_trains_the_best(tmp_path, monkeypatch):
    found = sweep(TINY, [learning_rates((1e-3, 3e-4)), group_sizes((4, 8))], tmp_path / "it", seeds=1, run=Trainer())
    calls = []
    monkeypatch.setattr(grpo_jax.commands.training, "train", lambda config, *_, **__: calls.append(config))
    command = found.report.splitlines()[-1].split()
    assert command_line.main([*command[1:], "--out", str(tmp_path / "best")]) == 0
    assert calls == [found.config]
    assert (found.config.update.learning_rate, found.config.rollout.group_size) == (3e-4, 8)


def test_a_sweep_that_is_started_again_trains_what_is_new_and_resumes_what_was_interrupted(tmp_path):
    def stopped(config):
        if (config.update.learning_rate, config.seed) == (1e-3, 1):
            raise KeyboardInterrupt

    first = Trainer(stopped)
    with pytest.raises(KeyboardInterrupt):
        sweep(Config(), STAGES[:1], tmp_path, seeds=2, run=first)
    assert len(lines(tmp_path)) == 5
    with (tmp_path / "sweep.jsonl").open("a") as file:
        file.write('{"run": "half a li')
    second = Trainer()
    sweep(Config(), STAGES[:1], tmp_path, seeds=2, run=second)
    assert second.trained == [("update.learning_rate=0.001,seed=1", True)]
    assert len(lines(tmp_path)) == 6
    wider = Trainer()
    sweep(Config(), [learning_rates((3e-4, 3e-3))], tmp_path, seeds=3, run=wider)
    assert wider.trained == [("seed=2", False)] + [
        (f"update.learning_rate=0.003,seed={seed}", False) for seed in range(3)
    ]


def test_a_run_that_fails_is_recorded_and_the_others_go_on(tmp_path, capsys):
    """The best rate has a run that diverged, so it is not chosen; what ended with another error is tried again."""

    def fails(config):
        if config.update.learning_rate == 3e-4 and config.seed == 1:
            return TrainingStopped("step 3: not finite")
        return MemoryError("no room") if config.update.learning_rate == 1e-4 else None

    found = sweep(Config(), STAGES[:1], tmp_path, seeds=2, run=Trainer(fails))
    assert found.config.update.learning_rate == 1e-3
    assert [(each["outcome"], each["message"]) for each in lines(tmp_path)[:4]] == [
        ("error", "MemoryError: no room"),
        ("error", "MemoryError: no room"),
        ("finished", ""),
        ("diverged", "step 3: not finite"),
    ]
    assert "| 0.0001 |  |  |  | 0 of 2 |" in found.report
    assert "1 of 2 |" in found.report
    assert "error: MemoryError: no room" in capsys.readouterr().out
    again = Trainer()
    sweep(Config(), STAGES[:1], tmp_path, seeds=2, run=again)
    assert again.trained == [(f"update.learning_rate=0.0001,seed={seed}", True) for seed in (0, 1)]


def test_a_stage_without_a_finished_run_ends_the_sweep_and_says_what_happened(tmp_path):
    run = Trainer(lambda config: RuntimeError("out of memory"))
    with pytest.raises(SweepFailed, match=r"no run of the stage learning rate finished.*0.001,seed=0: .*out of memory"):
        sweep(Config(), STAGES, tmp_path, seeds=1, run=run)
    assert len(run.trained) == 3


def test_a_reward_that_is_none_is_an_error_and_a_folder_in_use_ends_the_sweep(tmp_path):
    def run(config, folder, *, resume):
        return {"accuracy_after": math.nan, "kl": None, "seconds": 1.0}

    with pytest.raises(SweepFailed, match="could be scored"):
        sweep(Config(), STAGES[:1], tmp_path / "one", seeds=1, run=run)
    with pytest.raises(BlockingIOError, match="in use"):
        sweep(Config(), STAGES, tmp_path / "other", run=Trainer(lambda config: BlockingIOError("in use")))


def outcomes(*rewards):
    return [Outcome(str(seed), seed, "finished", reward, None, 1.0) for seed, reward in enumerate(rewards)]


def test_the_verdict_pairs_by_seed():
    """Of 0.4, 0.59 every seed says that it is worse by a tenth, though the means' intervals overlap."""
    stage = betas((0.1, 0.2, 0.3))
    found = [judged(0.1, outcomes(0.4, 0.59)), judged(0.2, outcomes(0.5, 0.7)), judged(0.3, outcomes(0.45, 0.73))]
    best = chosen(found, 0.1)
    assert best == found[1]
    assert verdict(stage, found, best).splitlines() == [
        "best beta: 0.2, held-out reward 0.600",
        "  not distinguishable from 0.3: +0.010 better (-0.498 to +0.518)",
    ]
    alone = [judged(0.1, outcomes(0.4)), judged(0.2, outcomes(0.5))]
    assert "from 0.1: +0.100 better (from a single seed)" in verdict(stage, alone, alone[1])
    assert "warning: 0.1 is the smallest beta" in verdict(stage, found, found[0])


def test_of_equal_means_the_present_value_stays():
    found = [judged(value, outcomes(1.0, 1.0)) for value in (0.1, 0.2, 0.3)]
    assert chosen(found, 0.2) is found[1]
    assert chosen([judged(0.1, [])], 0.1) is None


def test_the_interval_is_students():
    found = mean_interval([0.4, 0.5, 0.6])
    assert found.mean == pytest.approx(0.5)
    assert found.high - found.mean == pytest.approx(4.302653 * 0.1 / math.sqrt(3), rel=1e-6)


def test_the_usual_grids_are_around_the_run():
    assert around(3e-4, 3) == (1e-4, 3e-4, 9e-4)
    assert around(0.02, 10) == (0.002, 0.02, 0.2)
    assert usual_group_sizes(Config()) == (4, 8, 16)
    odd = replace(Config(), rollout=replace(Config().rollout, prompts=6, group_size=6))
    assert usual_group_sizes(odd) == (4, 6)


def test_a_larger_group_has_fewer_prompts():
    put = group_sizes((16,)).put(Config(), 16)
    assert (put.rollout.prompts, put.rollout.group_size) == (16, 16)


WRONG = {
    "unknown stage": (
        ["--stages", "rate"],
        "--stages rate: unknown stage; choose from learning-rate, beta, group-size",
    ),
    "no stage": (["--stages"], "no stages: name at least one"),
    "a stage twice": (["--stages", "beta", "beta"], "stages beta, beta: name each once"),
    "empty grid": (["--betas"], "--betas: the grid is empty; give at least one value"),
    "empty rates": (["--learning-rates"], "--learning-rates: the grid is empty"),
    "no seed": (["--seeds", "0"], "seeds is 0; give at least 1"),
    "twice": (["--betas", "0.1", "0.1"], "--betas 0.1 is given twice"),
    "rate 0": (["--learning-rates", "0"], "--learning-rates 0: give a positive number"),
    "negative beta": (["--betas", "-1"], "--betas -1: give a number of at least 0"),
    "group of one": (["--group-sizes", "1"], "--group-sizes 1: give a whole number from 2"),
    "group that does not divide": (["--group-sizes", "7"], "--group-sizes 7 does not divide the 256 completions"),
    "no decades": (["--beta.value", "0"], "--stages beta: the run's beta is 0"),
    "no effect": (
        ["--stages", "beta", "--group-sizes", "8"],
        "--group-sizes has no effect without group-size in --stages",
    ),
    "out of range": (["--steps", "0"], "steps is 0; give at least 1"),
    "preset without files": (["--preset", "qwen2.5-7b-math"], "preset qwen2.5-7b-math needs files that are not there"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_one_line_and_leaves_nothing_behind(case, capsys, tmp_path, monkeypatch):
    words, message = WRONG[case]
    monkeypatch.chdir(tmp_path)
    assert command_line.main(["sweep", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("grpo-jax: ")
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_something_else_is_refused(tmp_path):
    sweep(Config(), STAGES[:1], tmp_path / "it", seeds=1, run=Trainer())
    with pytest.raises(
        ValueError, match=r"starts from another run, which differs in steps\. Go on with it by --config"
    ):
        sweep(replace(Config(), steps=7), STAGES[:1], tmp_path / "it", run=Trainer())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="not empty and not the folder of a sweep"):
        sweep(Config(), STAGES[:1], tmp_path / "full", run=Trainer())


def test_the_help_has_the_starting_points(capsys):
    with pytest.raises(SystemExit) as ended:
        command_line.main(["sweep", "--help"])
    assert ended.value.code == 0
    flat = " ".join("".join(c for c in capsys.readouterr().out if c not in "│╭╮╰╯─").split())
    assert "the learning rate, then beta by decades, then the group size" in flat
    assert ".005 to .02 for path planning, .1 to .5 offline" in flat
    assert "rollout.prompts x rollout.group_size is held fixed" in flat


def test_a_real_sweep_leaves_runs_that_report_reads(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(grpo_jax.train, "compile_program", lambda config, objective=None: compiled(config, objective))
    monkeypatch.setattr(grpo_jax.train, "save_curves", lambda *_: None)
    (tmp_path / "tiny.json").write_text(json.dumps(to_dict(TINY)))
    words = ["sweep", "--config", str(tmp_path / "tiny.json"), "--out", str(tmp_path / "it"), "--steps", "1"]
    words += ["--stages", "group-size", "beta", "--group-sizes", "4", "--betas", "0.02", "--seeds", "2"]
    assert command_line.main(words) == 0
    runs = sorted(path for path in (tmp_path / "it").iterdir() if path.is_dir())
    assert [path.name for path in runs] == ["seed=0", "seed=1"]
    assert [run.config for run in read_runs(runs)] == [replace(TINY, steps=1, seed=seed) for seed in (0, 1)]
    summaries = [grpo_jax.metrics.read_json(path / "summary.json") for path in runs]
    assert [line["reward"] for line in lines(tmp_path / "it")] == [each["accuracy_after"] for each in summaries]
    assert all(line["kl"] is not None for line in lines(tmp_path / "it"))
    assert load(tmp_path / "it" / "start.json") == replace(TINY, steps=1)
    assert "the best is trained by:" in capsys.readouterr().out
