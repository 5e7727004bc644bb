"""The migration page says what its command found, what is declared today, and nothing of it is wrong."""

import inspect
import json
import re

import pytest

from experiments.migration.rows import ROWS, built
from experiments.migration.run import HERE, described, distance, main, table
from grpo_jax import compat
from grpo_jax.losses import Objective

README = (HERE / "README.md").read_text(encoding="utf-8")
STORED = [json.loads(line) for line in (HERE / "results.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_table_of_the_page_is_that_of_the_results():
    assert table(STORED) in README
    assert (HERE / "figure.png").exists()


def test_nothing_that_was_found_is_wrong():
    assert not any(line["wrong"] for line in STORED)
    for line in STORED:
        assert line["agree_on"] == line["agree_off"] == len(line["distances_on"]) == len(line["distances_off"])


def test_what_to_move_to_follows_the_reverse_kl():
    ours = {line["move_to"]: line for line in STORED if "replaces" in line}
    assert set(ours) == {row.move_to for row in ROWS}
    assert all(line["distances_on"][-1] < 1e-12 for line in ours.values())
    assert [letter for letter, line in ours.items() if line["distances_off"][-1] > 1e-12] == ["B"]


def test_every_constructor_is_certified():
    names = {name for name in compat.__all__ if inspect.signature(getattr(compat, name)).return_annotation is Objective}
    assert names == {re.match(r"gj\.compat\.(\w+)\(", row.code)[1] for row in ROWS}


@pytest.mark.parametrize(("row", "stored"), list(zip(ROWS, STORED, strict=False)), ids=[row.code for row in ROWS])
def test_what_is_declared_is_what_was_written_down(row, stored):
    assert described(row).items() <= stored.items()
    assert built(row.code).target.name in (stored["whole_on"], "reverse")


def test_a_distance_is_at_the_best_scale_and_never_above_one():
    import numpy as np

    target = np.array([3.0, 4.0])
    assert distance(0.01 * target, target) < 1e-12
    assert distance(-target, target) == 1
    assert distance(np.zeros(2), target) == 1
    assert abs(distance(np.array([1.0, 0.0]), target) - 0.8) < 1e-12


def test_the_python_of_the_page_runs_and_prints_what_it_says(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) == 2
    names: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert [printed[0], printed[1], printed[-1]] == re.findall(r"print\(.*\)  # (.*)", README)


@pytest.mark.slow
def test_the_command_finds_the_same_again(tmp_path):
    assert main(results=tmp_path / "results.jsonl", figure=tmp_path / "figure.png") == table(STORED)
    assert (tmp_path / "results.jsonl").exists()
