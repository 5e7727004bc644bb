"""The notebooks run, from top to bottom, and what is rendered beside each is its own output."""

import base64
import re
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.py"))
each = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)


def render(*arguments):
    """Runs the renderer as `make notebooks` does, in a process of its own: a kernel's threads are none of pytest's."""
    command = [sys.executable, "-m", "notebooks.render", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def rendered(source):
    return nbformat.read(source.with_suffix(".ipynb"), as_version=4)


def outputs(notebook):
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def test_there_are_notebooks():
    assert len(SOURCES) >= 5
    assert [path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb"))] == [path.stem for path in SOURCES]


@each
def test_a_notebook_runs_and_what_its_text_states_holds(source):
    done = render("--check", source)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{source.name} ran" in done.stderr


@each
def test_the_rendered_notebook_is_that_of_the_source(source):
    written = [(cell.cell_type, cell.source) for cell in jupytext.read(source, fmt="py:percent").cells]
    shown = [(cell.cell_type, cell.source) for cell in rendered(source).cells]
    assert shown == written, f"{source.name} has changed since it was rendered: make notebooks"
    assert any("assert" in text for kind, text in written if kind == "code")


@each
def test_the_rendered_notebook_shows_pictures_and_nothing_of_the_machine(source):
    notebook = rendered(source)
    nbformat.validate(notebook)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert not {output.output_type for output in outputs(notebook)} - {"stream", "display_data", "execute_result"}
    assert {output.name for output in outputs(notebook) if output.output_type == "stream"} == {"stdout"}
    pictures = [output.data["image/png"] for output in outputs(notebook) if "image/png" in output.get("data", {})]
    assert pictures
    assert all(base64.b64decode(picture).startswith(b"\x89PNG") for picture in pictures)
    text = nbformat.writes(
        nbformat.from_dict({**notebook, "cells": [_without_pictures(cell) for cell in notebook.cells]})
    )
    assert not re.findall(r"(?:/(?:home|root|tmp|work|usr|Users|opt)/|[A-Z]:\\\\)", text)
    assert not re.findall(r"0x[0-9a-f]{6,}", text)
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert all(not cell.metadata for cell in notebook.cells)


def _without_pictures(cell):
    kept = [output for output in cell.get("outputs", []) if "image/png" not in output.get("data", {})]
    return {**cell, "outputs": kept} if cell.cell_type == "code" else cell


def test_a_notebook_whose_statement_is_false_fails_and_writes_nothing(tmp_path):
    source = tmp_path / "99_wrong.py"
    source.write_text("# %%\nprint('before')\n\n# %%\nassert 1 + 1 == 3\n")
    done = render(source)
    assert done.returncode != 0
    assert "AssertionError" in done.stderr
    assert not source.with_suffix(".ipynb").exists()
