"""Every fault of the article's table was provoked in real runs and recognised, and its healthy twins were silent."""

import json

import pytest

from experiments.diagnosis.faults import FAULTS
from experiments.diagnosis.run import HERE, provoked, table

STORED = [json.loads(line) for line in (HERE / "results.jsonl").read_text(encoding="utf-8").splitlines()]
TABLE = {"kl_large_at_start", "kl_rises", "kl_stuck_at_zero", "kl_jumps", "kl_single_samples", "ratio_large"}


def test_the_six_faults_of_the_table_are_provoked():
    assert {fault.name for fault in FAULTS if fault.of_the_six} == TABLE


def test_every_recorded_fault_was_recognised_and_the_twins_of_the_six_were_silent():
    for fault in FAULTS:
        for twin in (False, True):
            runs = [row for row in STORED if (row["fault"], row["twin"]) == (fault.title, twin)]
            assert sorted(row["seed"] for row in runs) == [0, 1, 2, 3, 4]
            assert twin or all(fault.name in row["found"] for row in runs)
            assert not twin or not fault.of_the_six or all(row["found"] == [] for row in runs)
    alarmed = [(row["fault"], row["found"]) for row in STORED if row["twin"] and row["found"]]
    assert alarmed == [("too conservative", ["kl_outside_band"])]


def test_the_readme_has_the_recorded_runs_as_its_table():
    assert table(STORED) in (HERE / "README.md").read_text(encoding="utf-8")
    assert (HERE / "figure.png").exists()


def test_a_twin_differs_from_the_fault_and_nothing_else_does():
    for fault in FAULTS:
        faulty, twin = fault.config(3), fault.config(3, twin=True)
        assert faulty.seed == twin.seed == 3
        assert (faulty != twin) == bool(fault.wrong or fault.right)


@pytest.mark.slow
@pytest.mark.parametrize("twin", [False, True])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.title)
def test_every_fault_is_recognised_while_the_run_trains_and_its_twin_is_silent(fault, twin):
    row = provoked(fault, seed=0, twin=twin)
    assert row["right"], row["found"]
