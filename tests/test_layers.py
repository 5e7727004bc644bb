"""Stages import what lies before them, never a later stage: the order below is the architecture."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "grpo_jax"
ORDER = (
    "statistics",
    "types",
    "memory",
    "ratios",
    "arguments",
    "hosts",
    "interruption",
    "tasks",
    "models",
    "rollouts",
    "rewards",
    "advantages",
    "kl",
    "losses",
    "compat",
    "oracle",
    "updates",
    "sharding",
    "metrics",
    "checkpoints",
    "config",
    "diagnosis",
    "presets",
    "components",
    "compiled",
    "placement",
    "inspection",
    "program",
    "shares",
    "experience",
    "waiting",
    "ahead",
    "lag",
    "evaluation",
    "announcements",
    "warm_start",
    "testing",
    "plan",
    "due",
    "train",
    "tuning",
    "report",
    "commands",
    "__main__",
)
ALSO_SEES: dict[str, set[str]] = {"oracle": set(ORDER) - {"train", "commands", "__main__"}}


def stage_of(path: Path) -> str:
    """The top-level module a file belongs to; "" for the package's own __init__."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return "" if parts == ("__init__",) else parts[0]


def imported_stages(source: str, path: Path) -> set[str]:
    """Every stage of grpo_jax that a file imports, wherever and however spelt; "" is the package itself."""
    package = ("grpo_jax", *path.relative_to(PACKAGE).parts[:-1])
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*above, *((node.module,) if node.module else ())))
            names |= {f"{module}.{alias.name}" for alias in node.names}
    inside = [name.split(".") for name in names if name.split(".")[0] == "grpo_jax"]
    return {parts[1] if len(parts) > 1 and parts[1] in ORDER else "" for parts in inside}


def forbidden(stage: str) -> set[str]:
    """What a stage may not import; the package itself ("") counts, since it imports every stage."""
    allowed = set(ORDER[: ORDER.index(stage) + 1]) - {"testing"} | {stage} | ALSO_SEES.get(stage, set())
    if stage == "testing":
        allowed = set(ORDER) - {"train", "commands", "__main__"}
    return (set(ORDER) | {""}) - allowed


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_file_belongs_to_a_stage_and_imports_no_later_one(path):
    stage = stage_of(path)
    if stage == "":
        return
    assert stage in ORDER, f"{path.name}: add {stage!r} to ORDER, at the place its imports allow"
    found = imported_stages(path.read_text(), path) & forbidden(stage)
    assert not found, f"grpo_jax/{path.relative_to(PACKAGE)} is part of {stage!r} and must not import {sorted(found)}"


@pytest.mark.parametrize(
    ("place", "source", "expected"),
    [
        ("losses/x.py", "from grpo_jax.kl import k1", {"kl"}),
        ("losses/x.py", "import grpo_jax.updates.learner as learner", {"updates"}),
        ("losses/x.py", "from ..updates import learner", {"updates"}),
        ("losses/x.py", "from .. import train", {"train"}),
        ("losses/x.py", "from . import surrogates", {"losses"}),
        ("losses/__init__.py", "from .surrogates import clipped", {"losses"}),
        ("losses/x.py", "def f():\n    from grpo_jax import oracle", {"oracle"}),
        ("losses/x.py", "import jax, grpo_jax", {""}),
        ("losses/x.py", "from grpo_jax import objective", {""}),
        ("train.py", "from .config import Config", {"config"}),
        ("losses/x.py", "import jax.numpy as jnp", set()),
    ],
)
def test_imports_are_seen_however_they_are_spelt(place, source, expected):
    assert imported_stages(source, PACKAGE / place) == expected


def test_a_stage_may_import_earlier_ones_and_no_later_one():
    assert "kl" not in forbidden("losses")
    assert {"updates", "train", "testing", ""} <= forbidden("losses")
    assert forbidden("statistics") == set(ORDER) - {"statistics"} | {""}
    assert not forbidden("oracle") & {"updates", "sharding"}
    assert {"train", "commands", "__main__", ""} <= forbidden("config")
    assert forbidden("testing") == {"train", "commands", "__main__", ""}
