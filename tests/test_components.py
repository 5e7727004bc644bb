"""Names become functions in one place, and no option is without effect."""

import dataclasses
import os
import re
import shutil
import typing
from pathlib import Path

import jax
import numpy as np
import pytest

from grpo_jax import components
from grpo_jax.components import build
from grpo_jax.config import BetaConfig, ObjectiveConfig, ReferenceConfig, TaskConfig
from grpo_jax.models import pretrained
from grpo_jax.presets import PRESETS, preset
from grpo_jax.program import compile_program
from grpo_jax.rewards import IsolatedReward
from grpo_jax.rewards.calls import name_of
from tests.runs import TINY, odd
from tests.test_every_field import FILE, FLIPS, GYM, LLAMA, PRETRAINED, PRODUCTS, SHAPE, SUMS, changed

TABLES = {
    "task.kind": components.TASKS,
    "objective.advantage": components.ADVANTAGES,
    "objective.surrogate": components.SURROGATES,
    "objective.degenerate": components.DEGENERATE,
    "objective.reduction": components.REDUCTIONS,
    "objective.mismatch": components.MISMATCH,
    "beta.schedule": components.SCHEDULES,
    "beta.adaptive": components.ADAPTIVE,
    "reference.kind": components.REFERENCES,
}
NEEDS = {
    "file": FILE,
    "reasoning_gym": GYM,
    "gspo": {"objective.placement": "reward"},
    "separately_standardised": {"reward.overlong_cache": 2},
    "copied_every": {"reference.every": 2},
    "proportional": {"beta.target": 0.1},
    "clipped_proportional": {"beta.target": 0.1, "beta.horizon": 50.0},
    "proportional_integral": {"beta.target": 0.1, "beta.horizon": 50.0},
}
NAMES = {
    "task": (TaskConfig, ("kind",)),
    "objective": (ObjectiveConfig, ("advantage", "surrogate", "degenerate", "reduction", "mismatch")),
    "beta": (BetaConfig, ("schedule", "adaptive")),
    "reference": (ReferenceConfig, ("kind",)),
}


def choices():
    """Every named choice with every option that its table knows, read or not."""
    for place, table in TABLES.items():
        options = sorted({option for choice in table.values() for option in choice.reads})
        for name in [*table, *(["none"] if place == "beta.schedule" else [])]:
            for option in options:
                yield place, name, option, name in table and option in table[name].reads


CHOICES = list(choices())


@pytest.mark.parametrize("place", TABLES)
def test_the_configuration_offers_exactly_what_the_tables_have(place):
    section, field = place.split(".")
    hint = typing.get_type_hints(NAMES[section][0])[field]
    offered = set(typing.get_args(hint))
    assert offered - {"none"} == set(TABLES[place]) - {"none"}


@pytest.mark.parametrize(
    ("field", "table"), [("kl", {**components.ESTIMATORS, "full": 0, "none": 0}), ("importance", components.IMPORTANCE)]
)
def test_the_configuration_offers_exactly_the_estimators_and_importances(field, table):
    hint = typing.get_type_hints(ObjectiveConfig)[field]
    literal, _ = typing.get_args(hint)
    assert set(typing.get_args(literal)) == set(table)


@pytest.mark.parametrize(("place", "name"), dict.fromkeys((place, name) for place, name, _, _ in CHOICES))
def test_every_choice_can_be_built(place, name):
    build(changed(TINY, {place: name, **NEEDS.get(name, {})}))


@pytest.mark.parametrize(("place", "name", "option"), [case[:3] for case in CHOICES if not case[3]])
def test_an_option_that_the_choice_does_not_read_is_an_error_that_names_it(place, name, option):
    section = place.split(".")[0]
    option = f"{section}.{option}"
    values = {place: name, **NEEDS.get(name, {}), option: FLIPS[option].value}
    values |= {"task.digits": None} if place == "task.kind" and option != "task.digits" else {}
    message = rf"{re.escape(option)}=.* has no effect with {re.escape(place)}={name}; leave it out, or choose"
    with pytest.raises(ValueError, match=message):
        build(changed(TINY, values))


@pytest.mark.parametrize(("place", "name", "option"), [case[:3] for case in CHOICES if case[3]])
def test_an_option_that_the_choice_reads_is_accepted(place, name, option):
    section = place.split(".")[0]
    option = f"{section}.{option}"
    other = {"beta.floor": 1e-3, "beta.ceiling": 1.0, "task.max_prompt_tokens": 200}
    value = other.get(option, FLIPS[option].value)
    if name == "tight_then_loose" and option == "beta.schedule_start":
        value = 0.1
    apart = {"update.updates_per_rollout": 2} if place == "objective.surrogate" else {}
    apart |= {"task.max_prompt_tokens": 200} if option == "task.drop_long" else {}
    build(changed(TINY, {place: name, **NEEDS.get(name, {}), **apart, option: value}))


@pytest.mark.parametrize("option", ["clip_low", "clip_high"])
def test_a_bound_on_ratios_that_are_all_one_is_an_error(option):
    with pytest.raises(ValueError, match=f"objective.{option} has no effect with update.updates_per_rollout=1"):
        build(changed(TINY, {f"objective.{option}": 0.1}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"beta.value": 0.0, "objective.kl": "k3"}, r"objective.kl has no effect with beta.value=0; leave it out"),
        ({"beta.value": 0.0, "objective.placement": "reward"}, r"objective.placement has no effect with beta.value=0"),
        ({"beta.value": 0.0, "objective.kl_clamp": 1.0}, r"objective.kl_clamp has no effect with beta.value=0"),
        (
            {"beta.value": 0.0, "objective.allow_biased": False},
            "objective.allow_biased has no effect with beta.value=0",
        ),
        ({"objective.kl": "none"}, "beta.value=0.02 has no effect with objective.kl=none; set beta.value to 0"),
        (
            {"beta.value": 0.0, "objective.kl": "none", "objective.granularity": "token"},
            "objective.granularity has no effect with objective.kl=none",
        ),
        ({"beta.value": 0.0, "reference.kind": "ema"}, "reference.kind=ema has no effect with beta.value=0"),
        (
            {"beta.value": 0.0, "reference.kind": "behaviour"},
            "reference.kind=behaviour has no effect with beta.value=0",
        ),
        (
            {"objective.kl": "full", "objective.kl_clamp": 1.0},
            "objective.kl_clamp has no effect with objective.kl=full",
        ),
        (
            {"objective.kl": "full", "objective.granularity": "sequence"},
            "objective.granularity has no effect with objective.kl=full",
        ),
        ({"reward.overlong_weight": 1.0}, "reward.overlong_weight=1.0 has no effect without reward.overlong_cache"),
        ({**PRETRAINED}, "task.kind=arithmetic has its own characters"),
        ({**FILE, "model.width": 8}, "model.width=8 has no effect with model.path="),
        ({**FILE, "warm_start.steps": 3}, "warm_start.steps=3 needs right completions to imitate, and files has none"),
        (
            {"objective.advantage": "separately_standardised"},
            "objective.advantage=separately_standardised is for several rewards, but the task's is the only one",
        ),
    ],
)
def test_what_has_no_effect_together_is_an_error(values, message):
    with pytest.raises(ValueError, match=message):
        build(changed(TINY, values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"beta.value": -0.1}, "constant: beta=-0.1"),
        (
            {"beta.adaptive": "proportional"},
            "beta.target is missing: proportional has no default for it; set --beta.target",
        ),
        ({"beta.adaptive": "proportional", "beta.target": 0.0}, "proportional: target=0"),
        ({"beta.adaptive": "clipped_proportional", "beta.target": 0.1}, "beta.horizon is missing"),
        (
            {"beta.adaptive": "clipped_proportional", "beta.target": 0.1, "beta.horizon": 0.0},
            "clipped_proportional: horizon=0",
        ),
        ({"beta.value": 0.0, "beta.schedule": "linear_warmup"}, "linear_warmup: target=0"),
        ({"beta.value": 0.0, "beta.adaptive": "proportional", "beta.target": 1.0}, "proportional: beta=0"),
        ({"reference.kind": "copied_every"}, "reference.every is missing: copied_every has no default for it"),
        ({"reference.kind": "ema", "reference.rate": 1.0}, "ema: rate must lie in"),
        ({"task.operators": ""}, "empty task: no operators"),
        ({"task.digits": [2, 1]}, "empty task: no number has 2 to 1 digits"),
        ({"task.held_out": 0.0}, "empty task: held_out 0.0 leaves no problem"),
        ({**FILE, "task.train": None}, "task.train is missing: file has no default for it"),
        ({**GYM, "task.dataset": None}, "task.dataset is missing: reasoning_gym has no default for it"),
        ({**FILE, **SHAPE, "model.path": None}, "model.path is missing: task.kind=file is read with a pretrained"),
        ({**FILE, "reward.functions": None}, "reward.functions is missing: a file has no reward of its own"),
        ({**FILE, "rollout.max_tokens": None}, "rollout.max_tokens is missing: files does not know how long an answer"),
        ({**FILE, "task.evaluation": "products.jsonl"}, "task.evaluation is 'products.jsonl': write name=value"),
        ({**FILE, "task.evaluation": f"a={SUMS},a={SUMS}"}, "with every name once"),
        ({**GYM, "task.options": "min_terms=9"}, "chain_sum with {'seed': 0, 'size': 20000, 'min_terms': 9}"),
        ({**FILE, "task.train": "nowhere.jsonl"}, "nowhere.jsonl: no such file"),
        ({**FILE, "model.path": "nowhere"}, "model.path: there is no folder nowhere; name one that holds config.json"),
        ({**FILE, "model.path": "nowhere.gguf"}, "model.path: there is no file nowhere.gguf"),
        ({"model.lora_rank": 2}, "model.lora_rank=2 adapts a pretrained model; name one with model.path"),
        ({**FILE, "model.lora_alpha": 2.0}, "model.lora_alpha has no effect without model.lora_rank"),
        ({**FILE, "model.lora_rank": 0}, "lora: rank is 0"),
        ({**FILE, "model.lora_rank": 2, "model.lora_targets": "query,head"}, "lora: targets ['query', 'head']"),
        ({"reward.functions": "exact"}, "reward.functions: 'exact' is none of math_answer, symbolic_answer, countdown"),
        ({"reward.functions": "countdown=much"}, "the weight of countdown is 'much'"),
        ({"reward.functions": "tests.runs:even"}, "tests.runs has no function 'even'"),
        ({"reward.timeout": 0.0}, "reward.timeout is 0.0"),
        ({"rollout.temperature": 0.0}, "categorical: temperature is 0.0"),
        ({"rollout.top_k": 0}, "categorical: top_k is 0"),
        ({"rollout.top_p": 1.5}, "categorical: top_p is 1.5"),
        ({"reward.overlong_cache": 9}, "cache 9 of the overlong penalty: give 1 to max_tokens = 3"),
        ({"reward.overlong_cache": 2, "reward.overlong_weight": 0.0}, "reward.overlong_weight is 0.0"),
        ({"reward.overlong_cache": 2, "reward.overlong_weight": -1.0}, "reward.overlong_weight is -1.0"),
        ({"update.learning_rate": 0.0}, "learning_rate must be positive and finite, got 0.0"),
        ({"update.weight_decay": -1.0}, "weight_decay must be 0 or positive, got -1.0"),
        ({"model.heads": 3, "model.kv_heads": 2}, "kv_heads is 2, which does not divide heads 3"),
        ({"objective.placement": "loss"}, "its expected gradient is zero"),
        ({"objective.kl": "k3", "objective.placement": "reward"}, "pull vanishes near the reference"),
        ({"objective.entropy": -0.1}, "entropy_coefficient is -0.1"),
        ({"objective.tolerance": -0.1}, "tolerance is -0.1"),
    ],
)
def test_a_value_out_of_range_is_an_error_with_value_and_place(values, message):
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(message)):
        build(changed(TINY, values))


@pytest.mark.parametrize("field", ["advantage", "surrogate", "degenerate", "reduction", "mismatch", "kl", "importance"])
def test_an_unknown_name_is_an_error_with_the_known_ones(field):
    objective = dataclasses.replace(TINY.objective, kl="k3", placement="loss")
    object.__setattr__(objective, field, "best")  # as a program may: under test a dataclass refuses it by itself
    with pytest.raises(ValueError, match=f"objective.{field} is 'best'; choose one of "):
        build(dataclasses.replace(TINY, objective=objective))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_built(name):
    """Those of pretrained models with a small one, and with files, in place of what they name."""
    config = preset(name)
    if config.task.kind == "arithmetic":
        assert build(config).task.name == "arithmetic"
        return
    assert config.warm_start.steps == 0
    values = {"model.path": LLAMA}
    if config.task.kind == "file":
        values |= {"task.train": SUMS, "reward.functions": config.reward.functions or "math_answer"}
        values |= {"rollout.max_tokens": config.rollout.max_tokens or 9}
    if config.task.evaluation is not None:
        names = [entry.partition("=")[0] for entry in config.task.evaluation.split(",")]
        values["task.evaluation"] = ",".join(f"{name}={PRODUCTS}" for name in names)
    parts = build(changed(config, values))
    assert parts.load is not None
    assert parts.task.splits["train"] is None
    assert "validation" in parts.task.splits


def test_the_language_model_preset_is_the_usual_one():
    config = preset("language-model")
    beta, update = config.beta, config.update
    assert (beta.value, beta.adaptive, beta.target, update.learning_rate) == (0.01, "proportional", 0.05, 1e-6)
    assert (config.objective.entropy, config.rollout.group_size, config.reference.kind) == (0.001, 8, "frozen")


def test_several_rewards_have_weights_and_make_the_tasks_own():
    parts = build(changed(TINY, {"reward.functions": "tests.runs:odd, countdown=0.5", "reward.overlong_cache": 2}))
    assert [name_of(function) for function in parts.rewards] == ["odd", "countdown", "overlong"]
    assert parts.reward_weights == (1.0, 0.5, 1.0)
    assert parts.task_rewards == 2
    assert parts.task.reward(["p"], ["1+1"], target=[2], nums=[[1, 1]]) == [odd(["p"], ["1+1"])[0] + 0.5]


def test_a_time_limit_holds_in_evaluations_too():
    parts = build(changed(TINY, {"reward.timeout": 5.0}))
    assert isinstance(parts.rewards[0], IsolatedReward)
    assert parts.task.reward is parts.rewards[0]


def test_a_gguf_file_is_turned_into_a_checkpoint_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = []

    def convert(file, folder):
        made.append(folder)
        return Path(LLAMA)

    monkeypatch.setattr(pretrained, "convert_gguf", convert)
    file = tmp_path / "tiny.gguf"
    for content in ("one", "one", "another"):
        file.write_text(content)
        os.utime(file, (1, 1))
        assert build(changed(TINY, {**FILE, "model.path": str(file)})).load is not None
    assert made[0] == made[1] != made[2]
    assert all(folder.parent == tmp_path / "cache" / "grpo-jax" and folder.name.startswith("tiny-") for folder in made)


def test_weights_are_placed_as_the_mesh_says():
    program = compile_program(changed(TINY, {**FILE, "mesh": "data=4,fsdp=2"}))
    params = program.initial(key=jax.random.key(0))
    where = jax.tree.map(lambda leaf: leaf.sharding, params)
    assert where == jax.tree.map(lambda leaf: leaf.sharding, program.shapes.params)
    assert any(not place.is_fully_replicated for place in jax.tree.leaves(where))
    plain = pretrained.load(LLAMA, pretrained.read_config(LLAMA))
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(params), jax.device_get(plain))


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    shutil.copytree(LLAMA, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(path.read_text().replace('"vocab_size": 61', '"vocab_size": 40'))
    with pytest.raises(ValueError, match="the tokenizer has 49 tokens, but config.json says vocab_size 40"):
        build(changed(TINY, {**FILE, "model.path": str(tmp_path / "model")}))


def test_the_budget_is_what_the_task_needs_unless_given():
    free = build(changed(TINY, {"rollout.max_tokens": None}))
    assert free.max_tokens == free.task.max_completion_tokens
    assert build(TINY).max_tokens == 3
