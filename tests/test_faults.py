"""The table of faults seen elsewhere names tests that exist."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
ROW = re.compile(r"^\| (?P<fault>[^|`]+) \| `(?P<path>[\w/]+\.py)::(?P<name>\w+)` \|$")


def names_in(path):
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def rows_of(text):
    """The rows of the table as (file, test); raises where one is written otherwise."""
    lines = text.split("|---|---|\n")[1].splitlines()
    found = [ROW.match(line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if match is None]
    return [(match["path"], match["name"]) for match in found]


def test_every_fault_names_a_test_that_exists():
    rows = rows_of((HERE / "README.md").read_text())
    assert len(rows) > 20
    assert [f"{path}::{name}" for path, name in rows if name not in names_in(HERE / path)] == []


def test_a_name_that_no_test_has_is_seen():
    ((path, name),) = rows_of("| the fault | the test |\n|---|---|\n| x | `test_faults.py::test_nothing` |\n")
    assert name not in names_in(HERE / path)
