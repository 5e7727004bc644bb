"""The page: everything about some runs in one file of HTML that needs no other."""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined

from grpo_jax.components import build_controller
from grpo_jax.config import Config, to_dict
from grpo_jax.metrics import write_text
from grpo_jax.report.charts import HEIGHT, WIDTH, charts
from grpo_jax.report.facts import Facts, facts, own_target
from grpo_jax.report.recorded import RecordedRun


class Differences(NamedTuple):
    """Fields of configurations that are not the same.

    Attributes:
        between: field and each run's value, where runs differ.
        elsewhere: field and value, where all runs have the same but the default is another.
    """

    between: list[tuple[str, list[str]]]
    elsewhere: list[tuple[str, str]]


def write_report(runs: Sequence[RecordedRun], path: Path) -> None:
    """Writes the report of some runs, complete or not at all."""
    write_text(path, render(runs))


def render(runs: Sequence[RecordedRun]) -> str:
    """Returns the report of some runs as HTML; whatever comes from data is escaped."""
    source = (resources.files("grpo_jax.report") / "page.html.jinja").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["number"] = _number
    environment.filters["share"] = _share
    return environment.from_string(source).render(
        runs=runs,
        charts=charts([(run.name, run.rows) for run in runs]),
        width=WIDTH,
        height=HEIGHT,
        differences=differences([run.config for run in runs]),
        objectives=_objectives(runs),
        outcomes=[_outcome(run) for run in runs],
        splits=_splits(runs),
    )


def differences(configs: Sequence[Config]) -> Differences:
    """Returns where configurations differ from each other, and from the default."""
    flat = [_flat(to_dict(config)) for config in configs]
    default = _flat(to_dict(Config()))
    between, elsewhere = [], []
    for name in default:
        values = [_text(each[name]) for each in flat]
        if len(set(values)) > 1:
            between.append((name, values))
        elif values[0] != _text(default[name]):
            elsewhere.append((name, values[0]))
    return Differences(between, elsewhere)


def _flat(values: dict[str, Any], place: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _flat(value, f"{place}{name}.") if isinstance(value, dict) else {f"{place}{name}": value}
    return found


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else "" if value is None else str(value)


def _objectives(runs: Sequence[RecordedRun]) -> list[tuple[list[int], Facts]]:
    """Returns each objective once, with the numbers of the runs that have it."""
    found: list[tuple[list[int], Facts]] = []
    seen: dict[Any, int] = {}
    for number, run in enumerate(runs):
        key = (run.config.objective, build_controller(run.config.beta).always_zero, own_target(run))
        if key in seen:
            found[seen[key]][0].append(number)
        else:
            seen[key] = len(found)
            found.append(([number], facts(run)))
    return found


def _splits(runs: Sequence[RecordedRun]) -> list[str]:
    """Returns the problems that any run was evaluated on before training and after it."""
    names = [name for run in runs for row in run.rows[:1] for name in row]
    return list(dict.fromkeys(name for name in names if name.startswith("accuracy_")))


def _outcome(run: RecordedRun) -> dict[str, Any]:
    """Returns first and last values of a run's measures."""
    first, last = (run.rows[0], run.rows[-1]) if run.rows else ({}, {})
    return {"first": first, "last": last, "seconds": run.summary.get("seconds")}


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
