"""The configuration is data: documented, and the same when it comes back from a file."""

import ast
import dataclasses
import inspect
import json
import re

import pytest

from grpo_jax.config import Config, from_dict, load, to_dict
from grpo_jax.config import sections as module
from grpo_jax.presets import PRESETS, preset
from tests.test_every_field import FLIPS, changed

SECTIONS = [value for value in vars(module).values() if dataclasses.is_dataclass(value)]


def described(section):
    """Field -> help, as the docstring's attributes say."""
    text = inspect.getdoc(section).partition("Attributes:\n")[2]
    entries = re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", text, flags=re.MULTILINE)
    return {name: " ".join(help_text.split()) for name, help_text in entries}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_has_help(section):
    help_texts = described(section)
    assert list(help_texts) == [field.name for field in dataclasses.fields(section)]
    assert all(len(text) > 5 and text.endswith(".") for text in help_texts.values())


def test_there_are_as_many_sections_as_classes():
    names = {node.name for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ClassDef)}
    assert {section.__name__ for section in SECTIONS} == names


def test_a_configuration_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().steps = 3


@pytest.mark.parametrize("name", FLIPS)
def test_every_value_comes_back_from_a_file(name, tmp_path):
    config = changed(Config(), {**FLIPS[name].beside, name: FLIPS[name].value})
    path = tmp_path / "config.json"
    path.write_text(json.dumps(to_dict(config)))
    assert load(path) == config
    assert json.loads(path.read_text()) == to_dict(load(path))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_comes_back_from_plain_values(name):
    assert from_dict(to_dict(preset(name))) == preset(name)


def test_missing_fields_take_their_defaults():
    assert from_dict({}) == Config()
    assert from_dict({"rollout": {"prompts": 3}}) == dataclasses.replace(
        Config(), rollout=dataclasses.replace(Config().rollout, prompts=3)
    )


def test_a_whole_number_serves_where_a_fraction_is_meant():
    value = from_dict({"beta": {"value": 1}}).beta.value
    assert (value, type(value)) == (1.0, float)


@pytest.mark.parametrize("name", FLIPS)
def test_a_value_of_another_type_is_refused_with_its_place(name):
    *section, field = name.split(".")
    for wrong in ([], {"a": 1}, [1, 2, 3]):
        values = {field: wrong}
        with pytest.raises(ValueError, match=re.escape(f"config.{name}")) as refused:
            from_dict({section[0]: values} if section else values)
        assert str(wrong) in str(refused.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"step": 3}, "config: unknown field 'step'; the fields are task, model"),
        ({"beta": {"valeu": 3}}, "config.beta: unknown field 'valeu'; the fields are value, schedule"),
        ({"beta": 3}, "config.beta: expected fields of BetaConfig, got 3"),
        ([], "config: expected fields of Config, got []"),
        ({"steps": "4"}, "config.steps: '4' does not fit; expected int"),
        ({"steps": 4.5}, "config.steps: 4.5 does not fit; expected int"),
        ({"steps": True}, "config.steps: True does not fit; expected int"),
        ({"check_invariants": 1}, "config.check_invariants: 1 does not fit; expected bool"),
        ({"beta": {"value": False}}, "config.beta.value: False does not fit; expected float"),
        ({"task": {"digits": [1]}}, "config.task.digits: [1] does not fit; expected a list of 2: int, int"),
        ({"task": {"digits": [1, "2"]}}, "config.task.digits: '2' does not fit; expected int"),
        ({"objective": {"kl": "K1"}}, "config.objective.kl: 'K1' does not fit; expected one of k1, k2, k3"),
        ({"objective": {"ddof": 0.5}}, "config.objective.ddof: 0.5 does not fit; expected int or null"),
        ({"update": {"max_norm": float("inf")}}, "config.update.max_norm: inf is not finite"),
        ({"beta": {"target": float("nan")}}, "config.beta.target: nan is not finite"),
    ],
)
def test_what_is_wrong_is_said_with_place_and_value(values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        from_dict(values)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b""])
def test_a_file_that_is_not_json_is_refused_by_name(content, tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(f"{path} is not JSON")):
        load(path)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path):
    with pytest.raises(FileNotFoundError, match=re.escape(f"no configuration at {tmp_path}")):
        load(tmp_path)


def test_an_unknown_preset_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown preset 'large'; choose one of default, language-model, smoke"):
        preset("large")
