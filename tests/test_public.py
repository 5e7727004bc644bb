"""What the package exports exists, is documented, and nothing public is forgotten."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "grpo_jax"
STAGES = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
EXPORTING = ["grpo_jax", *(f"grpo_jax.{stage}" for stage in STAGES)]


def exported(module_name):
    module = importlib.import_module(module_name)
    assert isinstance(getattr(module, "__all__", None), list), f"{module_name} has no __all__"
    return module, module.__all__


def documented_values(source):
    """Names that are assigned at the top of a module and have a docstring on the line after."""
    body = ast.parse(source).body
    names = set()
    for node, after in zip(body, body[1:], strict=False):
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


VALUES = {name for path in PACKAGE.rglob("*.py") for name in documented_values(path.read_text())}


def has_docstring(name, value):
    """Whether a person wrote a docstring; a NamedTuple's signature, "Mean(total, count)", is not one."""
    if inspect.isclass(value) or inspect.isfunction(value) or inspect.ismodule(value):
        documentation = value.__doc__ or ""
        return bool(documentation.strip()) and not documentation.startswith(f"{value.__name__}(")
    return name in VALUES


def test_every_stage_is_looked_at():
    assert {"kl", "losses", "metrics"} <= set(STAGES)
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders == set(STAGES), "a stage's folder needs an __init__.py that exports its public names"


@pytest.mark.parametrize("module_name", EXPORTING)
def test_every_exported_name_exists_and_is_listed_once(module_name):
    module, names = exported(module_name)
    assert [name for name in names if not hasattr(module, name)] == []
    assert len(names) == len(set(names))


@pytest.mark.parametrize("module_name", EXPORTING)
def test_every_exported_name_has_a_docstring(module_name):
    module, names = exported(module_name)
    assert [name for name in names if not has_docstring(name, getattr(module, name))] == []


@pytest.mark.parametrize("module_name", EXPORTING)
def test_what_a_package_imports_from_its_own_files_it_also_exports(module_name):
    module, names = exported(module_name)
    tree = ast.parse(Path(module.__file__).read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module != "__future__"]
    imported = {alias.asname or alias.name for node in imports for alias in node.names}
    assert {name for name in imported if not name.startswith("_")} == set(names) - {"__version__"}


def test_a_missing_docstring_would_be_seen():
    from typing import NamedTuple

    class Bare(NamedTuple):
        total: float

    class Written(NamedTuple):
        """A mean."""

        total: float

    assert not has_docstring("Bare", Bare)
    assert has_docstring("Written", Written)
    assert not has_docstring("helper", lambda: None)
    assert documented_values('A = 1\n"""Documented."""\nB = 2\nC: int = 3\n"""Too."""\n') == {"A", "C"}
    assert not has_docstring("NEVER_DEFINED", 3)
