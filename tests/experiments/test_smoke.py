"""Every experiment runs, at a size of seconds."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXPERIMENTS = sorted(path.parent.name for path in (ROOT / "experiments").glob("*/run.py"))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_experiment_runs_and_its_readme_says_how(name):
    command = f"-m experiments.{name}.run"
    done = subprocess.run(
        [sys.executable, *command.split(), "--smoke"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    readme = (ROOT / "experiments" / name / "README.md").read_text(encoding="utf-8")
    assert f"python {command}" in readme
    assert f"[{name}]" in (ROOT / "experiments" / "README.md").read_text(encoding="utf-8")
