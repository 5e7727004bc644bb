"""The command line: every option with help, and one line for whatever is wrong."""

import dataclasses
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import grpo_jax.__main__ as command_line
import grpo_jax.commands.checkpoint
import grpo_jax.commands.training
import grpo_jax.report.facts
import grpo_jax.train
from grpo_jax import checkpoints
from grpo_jax.config import Config, load, to_dict
from grpo_jax.metrics import is_timing, proportion, read_rows, run_folder
from grpo_jax.presets import preset
from tests.runs import TINY, compiled
from tests.test_every_field import FLIPS, changed, field_names

main = command_line.main


@pytest.fixture(autouse=True)
def _shared_programs(monkeypatch):
    for module in (grpo_jax.commands.checkpoint, grpo_jax.train):
        monkeypatch.setattr(module, "compile_program", lambda config, objective=None: compiled(config, objective))
    monkeypatch.setattr(grpo_jax.train, "save_curves", lambda *_: None)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a short run, started from a saved configuration by the command line."""
    folder = tmp_path_factory.mktemp("main")
    (folder / "tiny.json").write_text(json.dumps(to_dict(TINY)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grpo_jax.train, "compile_program", compiled)
        assert main(["train", "--config", str(folder / "tiny.json"), "--out", str(folder / "run"), "--steps", "2"]) == 0
    return folder / "run"


@pytest.fixture
def parsed(monkeypatch):
    """Returns the configuration, folder and mode that ``train`` would be called with."""

    def parse(*words):
        calls = []
        monkeypatch.setattr(
            grpo_jax.commands.training,
            "train",
            lambda config, out, resume, profile: calls.append((config, out, resume)),
        )
        assert main(["train", *words]) == 0
        return calls[0]

    return parse


def refused(capsys, *words):
    """The one line with which the command line refuses its arguments, and nothing besides."""
    status = main(list(words))
    output, error = capsys.readouterr()
    assert status == 2
    assert output == ""
    assert error.startswith("grpo-jax: ")
    assert error.count("\n") == 1
    assert "Traceback" not in error
    return error


def option(name):
    return "--" + name.replace("_", "-")


OPTIONAL = ("objective.allow_biased", "task.drop_long")
"""Fields that are None by default, so that they take True or False as a word."""


def words_for(name):
    """The words that set a field, and those that its flip needs, to the values of the table of flips."""
    words = []
    for field, value in {**FLIPS[name].beside, name: FLIPS[name].value}.items():
        if value is None:
            continue
        if isinstance(value, bool) and field not in OPTIONAL:
            head, _, last = field.rpartition(".")
            words.append(option(field) if value else f"--{head + '.' if head else ''}no-{last}".replace("_", "-"))
        else:
            values = value if isinstance(value, list) else [value]
            words += [option(field), *map(str, values)]
    return words


def test_the_help_has_every_field_and_its_text(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for name in field_names():
        assert re.search(rf"{re.escape(option(name))}\b", text), name
    flat = " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())
    assert "Starting points: .01 to .05 for language models" in flat
    assert "Tune in this order: the learning rate, then beta by decades, then the group size" in flat
    assert "replace groups with equal rewards by new prompts" in flat


@pytest.mark.parametrize("name", FLIPS)
def test_every_field_can_be_set(name, parsed):
    config, _, _ = parsed(*words_for(name))
    assert config == changed(Config(), {**FLIPS[name].beside, name: FLIPS[name].value})


def test_nothing_said_is_the_default_run_in_the_first_free_folder(parsed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config, out, resume = parsed()
    assert (config, str(out), resume) == (Config(), os.path.join("runs", "1"), False)
    (tmp_path / "runs" / "1").mkdir(parents=True)
    assert str(parsed()[1]) == os.path.join("runs", "2")


@pytest.mark.parametrize("words", [("--preset", "smoke"), ("--preset=smoke",)])
def test_a_preset_is_where_the_options_start_from(words, parsed):
    config, _, _ = parsed(*words, "--seed", "3")
    assert config == dataclasses.replace(preset("smoke"), seed=3)


def test_a_saved_configuration_is_where_the_options_start_from(parsed, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(to_dict(TINY)))
    config, _, _ = parsed("--config", str(tmp_path / "config.json"), "--beta.value", "0.1")
    assert config == changed(TINY, {"beta.value": 0.1})


def test_a_resumed_run_goes_on_with_its_own_options(run, parsed):
    config, out, resume = parsed("--out", str(run), "--resume", "--steps", "5")
    assert config == dataclasses.replace(TINY, steps=5)
    assert (out, resume) == (run, True)


WRONG = {
    "a group of one": (["train", "--rollout.group-size", "1"], "rollout.group_size is 1"),
    "beta without KL": (["train", "--objective.kl", "none"], "beta.value=0.02 has no effect with objective.kl=none"),
    "negative beta": (["train", "--beta.value", "-0.1"], "beta=-0.1"),
    "target 0": (["train", "--beta.adaptive", "proportional", "--beta.target", "0"], "target=0"),
    "no target": (["train", "--beta.adaptive", "proportional"], "set --beta.target"),
    "horizon 0": (
        ["train", "--beta.adaptive", "clipped_proportional", "--beta.target", "1", "--beta.horizon", "0"],
        "horizon=0",
    ),
    "empty task": (["train", "--task.digits", "3", "2"], "empty task: no number has 3 to 2 digits"),
    "no operator": (["train", "--task.operators", ""], "empty task: no operators"),
    "unknown preset": (["train", "--preset", "huge"], "unknown preset 'huge'; choose one of default"),
    "preset and config": (["train", "--preset", "smoke", "--config", "x.json"], "--config x.json: give one of them"),
    "no config": (["train", "--config", "nowhere.json"], "no configuration at nowhere.json"),
    "ineffective option": (["train", "--objective.dual-cap", "3"], "objective.dual_cap=3.0 has no effect with"),
    "moving reference, beta 0": (
        ["train", "--reference.kind", "ema", "--beta.value", "0"],
        "reference.kind=ema has no effect with beta.value=0",
    ),
    "mesh that does not fit": (["train", "--mesh", "data=3"], "mesh 'data=3' needs 3 devices"),
    "mesh that is none": (["train", "--mesh", "nonsense"], "unknown axis 'nonsense'"),
    "not finite": (["train", "--update.max-norm", "inf"], "config.update.max_norm: inf is not finite"),
    "resume what": (["train", "--resume"], "--resume: which run? Name its folder with --out"),
    "resume without run": (["train", "--resume", "--out", "nowhere"], "no run to resume in nowhere"),
    "evaluate no run": (["evaluate", "nowhere"], "no configuration at nowhere"),
    "sample no run": (["sample", "nowhere", "1+1="], "no configuration at nowhere"),
    "diagnose no run": (["diagnose", "nowhere"], "there is no folder nowhere; name a run's folder"),
    "diagnose what is no run": (["diagnose", "."], ". is not a run's folder: it has no config.json"),
    "report no run": (["report", "nowhere"], "there is no folder nowhere; name a run's folder"),
    "report nothing": (["report"], "no runs: name at least one"),
    "report nowhere": (["report", ".", "--output", "no/page.html"], "--output no/page.html: there is no folder no"),
    "report into a folder": (["report", ".", "--output", "."], "--output . is a folder; name a file in it"),
    "sample nothing": (["sample", "nowhere"], "no prompts: name at least one"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_one_line_and_leaves_nothing_behind(case, capsys, tmp_path, monkeypatch):
    words, message = WRONG[case]
    monkeypatch.chdir(tmp_path)
    assert message in refused(capsys, *words)
    assert list(tmp_path.iterdir()) == []


def test_a_config_that_is_none_is_refused(capsys, tmp_path):
    path = tmp_path / "config.json"
    for content, message in (
        ("{", "is not JSON"),
        ('{"stepps": 3}', "config: unknown field 'stepps'; the fields are"),
        ('{"steps": "3"}', "config.steps: '3' does not fit; expected int"),
        ("[]", "config: expected fields of Config, got []"),
    ):
        path.write_text(content)
        assert message in refused(capsys, "train", "--config", str(path))


def test_a_run_of_another_configuration_is_not_resumed(run, capsys):
    words = ("train", "--out", str(run), "--resume", "--seed", "1")
    assert f"{run} belongs to another configuration: seed: 0 there, 1 here" in refused(capsys, *words)
    assert "belongs to another configuration" in refused(capsys, *words[:-2], "--preset", "smoke")


def test_a_run_is_not_started_over_another(run, capsys):
    config = str(run / "config.json")
    assert "already holds a run" in refused(capsys, "train", "--out", str(run), "--config", config)


def test_a_folder_in_use_is_refused(capsys, tmp_path):
    with run_folder(tmp_path / "run", to_dict(TINY)):
        words = ("train", "--out", str(tmp_path / "run"), "--resume")
        assert f"in use by process {os.getpid()}" in refused(capsys, *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("evaluate", "--split", "test"), "unknown split 'test' of arithmetic; choose one of train, validation"),
        (("evaluate", "--examples", "0"), "0 examples of 'validation'; give at least 1"),
        (("evaluate", "--step", "7"), "no checkpoint of step 7"),
        (("evaluate", "--mesh", "data=3"), "mesh 'data=3' needs 3 devices"),
        (("sample", "1111111111111="), "prompt 0 has 14 tokens, the limit is 8"),
        (("sample", "1+1=", ""), "prompt 1 is empty"),
        (("sample", "1+1=", "--raw"), "--raw has no effect: the run's model has no chat template"),
        (("export", "nowhere"), "did not start from a pretrained model"),
        (("sample", "x=1"), "character 'x' at position 0 of 'x=1' is not in the alphabet"),
    ],
)
def test_what_is_asked_of_a_run_in_vain_is_one_line(words, message, run, capsys):
    assert message in refused(capsys, words[0], str(run), *words[1:])


def test_a_checkpoint_of_another_configuration_is_refused(run, capsys, tmp_path):
    other = tmp_path / "run"
    other.mkdir()
    (other / "checkpoints").symlink_to(run / "checkpoints")
    (other / "config.json").write_text(json.dumps(to_dict(changed(TINY, {"model.width": 8}))))
    assert main(["evaluate", str(other)]) == 2
    error = capsys.readouterr().err
    assert "is a checkpoint of another configuration" in error
    assert re.search(r"params\.\S+: float32.*\b16\] in the checkpoint, float32.*\b8\] in this run", error)


@pytest.mark.parametrize(
    "words",
    [
        ("train", "--stepps", "3"),
        ("train", "--beta.valeu", "3"),
        ("train", "--steps", "three"),
        ("train", "--steps", "1.5"),
        ("train", "--objective.kl", "k4"),
        ("evaluate",),
        ("evaluate", "x", "--preset", "smoke"),
        ("nonsense",),
        (),
    ],
)
def test_words_that_mean_nothing_end_with_status_2_and_no_traceback(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code == 2
    text = "".join(capsys.readouterr())
    assert "Traceback" not in text
    assert text.strip()
    if len(words) == 3:
        assert words[1].lstrip("-") in text or words[2] in text


def test_a_run_that_had_to_stop_ends_with_status_1(capsys, monkeypatch):
    def stopped(*_, **__):
        raise grpo_jax.train.TrainingStopped("step 3: not finite")

    monkeypatch.setattr(grpo_jax.commands.training, "train", stopped)
    assert main(["train"]) == 1
    assert capsys.readouterr().err == "grpo-jax: step 3: not finite\n"


def test_evaluate_prints_the_accuracy_that_the_run_wrote(run, capsys):
    assert main(["evaluate", str(run), "--examples", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    last = read_rows(run / "metrics.jsonl")[-1]
    for line, split in zip(lines, ("validation", "longer", "operators", "format"), strict=True):
        accuracy = last[f"accuracy_{split}"]
        interval = proportion(np.repeat([1.0, 0.0], [round(8 * accuracy), 8 - round(8 * accuracy)]))
        within = f"(95 %: {interval.low:.4f} to {interval.high:.4f})"
        assert line == f"{split}: accuracy {accuracy:.4f} {within} on 8 problems at step 2"
    assert main(["evaluate", str(run), "--examples", "8", "--split", "longer", "--step", "0"]) == 0
    first = read_rows(run / "metrics.jsonl")[0]
    out = capsys.readouterr().out
    assert out.startswith(f"longer: accuracy {first['accuracy_longer']:.4f} (")
    assert out.endswith("on 8 problems at step 0\n")


def test_evaluate_prints_pass_at_k_from_random_completions(run, capsys):
    words = ["evaluate", str(run), "--split", "validation", "--examples", "6", "--samples", "5", "--k", "1", "5"]
    outputs = []
    for seed in ("0", "0", "1"):
        assert main([*words, "--right-from", "-1", "--seed", seed]) == 0
        outputs.append(capsys.readouterr().out.splitlines())
    assert outputs[0] == outputs[1]
    assert outputs[0][1:] == [f"validation: pass@{k} {proportion(np.ones(6))} from 5 each" for k in (1, 5)]
    assert main([*words, "--right-from", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("validation: pass@1 0.000 (95 %: 0.000 to ")
    assert main(["evaluate", str(run), "--samples", "2", "--k", "3"]) == 2
    assert "--k 3: pass@3 needs at least 3 completions" in capsys.readouterr().err


def test_diagnose_prints_what_is_wrong_or_that_nothing_is(run, capsys, tmp_path):
    assert main(["diagnose", str(run)]) == 0
    assert capsys.readouterr().out == "nothing to report after 2 updates\n"
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1, "kl_mean": 3.0}\n{"step": 2, "kl_mean": 3.0}\n')
    assert main(["diagnose", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("kl large at start (step 1): the KL of the first update, before any step, is 3 nats")
    assert "likely cause: " in printed
    assert "remedy: " in printed


def test_report_writes_a_page_of_several_runs(run, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(grpo_jax.report.facts, "_certified", lambda objective: ("", "certified"))
    shutil.copytree(run, tmp_path / "copy")
    assert main(["report", str(run), str(tmp_path / "copy"), "--output", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}\n"
    assert "<h1>2 runs</h1>" in (tmp_path / "page.html").read_text()


def test_sample_prints_every_completion_after_its_prompt(run, capsys):
    assert main(["sample", str(run), "1+1=", "2+2=", "--greedy"]) == 0
    greedy = capsys.readouterr().out.splitlines()
    assert [line[:4] for line in greedy] == ["1+1=", "2+2="]
    outputs = []
    for seed in ("0", "0", "1"):
        assert main(["sample", str(run), "1+1=", "2+2=", "--seed", seed]) == 0
        outputs.append(capsys.readouterr().out.splitlines())
    assert [line[:4] for line in outputs[0]] == ["1+1="] * 4 + ["2+2="] * 4
    assert outputs[0] == outputs[1] != outputs[2]


def test_more_steps_are_a_resume_away(tmp_path, capsys):
    (tmp_path / "tiny.json").write_text(json.dumps(to_dict(TINY)))
    out = str(tmp_path / "run")
    assert main(["train", "--config", str(tmp_path / "tiny.json"), "--out", out, "--steps", "1"]) == 0
    assert main(["train", "--out", out, "--resume", "--steps", "2"]) == 0
    assert load(tmp_path / "run" / "config.json").steps == 2
    assert [row["step"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")] == [0, 1, 2]
    capsys.readouterr()
    assert f"steps is 1, but {out} is at step 2" in refused(capsys, "train", "--out", out, "--resume", "--steps", "1")


def environment():
    root = str(Path(command_line.__file__).parents[1])
    return {**os.environ, "JAX_PLATFORMS": "cpu", "MPLBACKEND": "Agg", "PYTHONPATH": root}


def test_the_module_runs_as_a_program(tmp_path):
    words = [sys.executable, "-m", "grpo_jax", "train", "--preset", "huge"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("grpo-jax: unknown preset 'huge'")
    assert list(tmp_path.iterdir()) == []


SMOKE = (
    "--preset smoke --task.digits 1 1 --steps 5 --checkpoint-every 1 --update.learning-rate 0.01 --warm-start.steps 6 "
    "--warm-start.check-every 2 --objective.entropy 0.1"
).split()


def program(folder, *more):
    words = [sys.executable, "-m", "grpo_jax", "train", "--out", str(folder), *more]
    return subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finished(process):
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return output


def rows_without_times(folder):
    rows = read_rows(folder / "metrics.jsonl")
    return [{name: value for name, value in row.items() if not is_timing(name)} for row in rows]


def arrays(folder):
    """Everything in the newest checkpoint, bit for bit."""
    step = checkpoints.latest(folder / "checkpoints")
    shapes = compiled_shapes(load(folder / "config.json"))
    state = checkpoints.restore(folder / "checkpoints", shapes, step)
    return step, jax.device_get(state._replace(key=jax.random.key_data(state.key)))


def compiled_shapes(config):
    return compiled(dataclasses.replace(config, mesh="")).shapes


@pytest.mark.slow
def test_a_program_killed_at_random_and_resumed_ends_as_one_that_was_not(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finished(program(whole, *SMOKE))
    assert all(row["gradient_norm"] > 0 for row in rows_without_times(whole)[1:])
    # In the warm start, and at random moments after a line: saving the state comes next, and takes about .1 s.
    draws, kills = random.Random(0), 0
    for line in ("warm start 2/6", "before training", "train ", "train ", "train "):
        process = program(killed, *(["--resume"] if (killed / "config.json").exists() else SMOKE))
        for said in process.stdout:
            if said.startswith(line):
                break
        time.sleep(draws.uniform(0.0, 0.15))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
    assert kills >= 4
    finished(program(killed, "--resume"))
    assert rows_without_times(killed) == rows_without_times(whole)
    (step, state), (expected_step, expected) = arrays(killed), arrays(whole)
    assert step == expected_step == 5
    jax.tree.map(np.testing.assert_array_equal, state, expected)
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (killed, whole)]
    assert summaries[0]["accuracy_before"] == summaries[1]["accuracy_before"]
    assert summaries[0]["accuracy_after"] == summaries[1]["accuracy_after"]
    assert summaries[0]["config_hash"] == summaries[1]["config_hash"]


@pytest.mark.slow
def test_two_programs_with_one_seed_write_the_same_rows(tmp_path):
    for name in ("one", "other"):
        finished(program(tmp_path / name, *SMOKE, "--check-invariants"))
    assert rows_without_times(tmp_path / "one") == rows_without_times(tmp_path / "other")
    jax.tree.map(np.testing.assert_array_equal, arrays(tmp_path / "one"), arrays(tmp_path / "other"))
