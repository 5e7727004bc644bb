"""Configurations to and from JSON, with errors that name the field."""

import dataclasses
import json
import math
import types
import typing
from pathlib import Path
from typing import Any, Literal

from grpo_jax.config.sections import Config


def to_dict(config: Config) -> dict[str, Any]:
    """Returns a configuration as nested plain values, ready for JSON."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def from_dict(values: Any) -> Config:
    """Returns the configuration that nested plain values describe; fields that are missing take their defaults.

    Raises:
        ValueError: not a dict, an unknown field, or a value of another type than the field's.
    """
    return _section(Config, values, "config")


def load(path: str | Path) -> Config:
    """Returns the configuration that a config.json holds.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not JSON, or not a configuration.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no configuration at {path}: name a config.json, as a run folder has one")
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:  # not JSON, or not even text
        raise ValueError(f"{path} is not JSON ({error}); name a config.json, as a run folder has one") from None
    return from_dict(values)


def _section(kind: Any, values: Any, place: str) -> Any:
    if not isinstance(values, dict):
        raise ValueError(f"{place}: expected fields of {kind.__name__}, got {values!r}")
    hints = typing.get_type_hints(kind)
    unknown = [name for name in values if name not in hints]
    if unknown:
        raise ValueError(f"{place}: unknown field {unknown[0]!r}; the fields are {', '.join(hints)}")
    return kind(**{name: _value(hints[name], value, f"{place}.{name}") for name, value in values.items()})


def _value(hint: Any, value: Any, place: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _section(hint, value, place)
    options = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    for option in options:
        parts = typing.get_args(option) if typing.get_origin(option) is tuple else ()
        if parts and isinstance(value, list) and len(value) == len(parts):
            return tuple(_value(each, item, place) for each, item in zip(parts, value, strict=True))
        if typing.get_origin(option) is Literal and value in typing.get_args(option):
            return value
        if option is float and isinstance(value, int | float) and not isinstance(value, bool):
            return _finite(float(value), place)
        if option is type(value) or (option is type(None) and value is None):
            return value
    raise ValueError(f"{place}: {value!r} does not fit; expected {_expected(hint)}")


def _finite(value: float, place: str) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{place}: {value} is not finite, which JSON cannot hold; give a number, 1e9 for no limit")
    return value


def _expected(hint: Any) -> str:
    """Returns what a type hint asks for, in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(arguments)}"
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_expected(each) for each in arguments)
    if origin is tuple:
        return f"a list of {len(arguments)}: {', '.join(_expected(each) for each in arguments)}"
    return "null" if hint is type(None) else hint.__name__
