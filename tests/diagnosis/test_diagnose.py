"""The rules together: over recorded runs, row by row, and beside a run that trains."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_jax.config import Config, from_dict
from grpo_jax.diagnosis import Finding, diagnose, follow, kl_large_at_start, shipped_rules, watch
from grpo_jax.metrics import read_rows

FIXTURES = Path(__file__).parent / "fixtures"
LARGE = [{"step": step, "kl_mean": 3.0} for step in range(1, 41)]


def always(name, at=1):
    def rule(rows, config):
        return Finding(name, 1, at, "kl_mean", 1.0, "evidence", "cause", "remedy") if len(rows) >= at else None

    return rule


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.jsonl")), ids=lambda path: path.stem)
def test_no_alarm_on_recorded_healthy_runs(path):
    found = read_rows(path)
    assert len(found) > 80
    for measure in ("kl_mean", "kl_std", "kl_max", "ratio_max", "reward_mean", "reward_std", "gradient_norm", "beta"):
        assert all(measure in row for row in found[1:])
    for length in [*range(5, len(found), 15), len(found)]:  # whenever one looks, and however long the run is
        assert [f for rule in shipped_rules() if (f := rule(found[1:length], Config()))] == [], length


def test_the_default_run_was_recorded_for_several_seeds():
    assert {f"default_seed{seed}" for seed in (0, 1, 2, 3, 4)} <= {path.stem for path in FIXTURES.glob("*.jsonl")}


def test_a_finding_is_told_once_at_the_first_look_that_shows_it():
    look = watch(replace(Config(), diagnose_every=5, steps=12), [always("early"), always("late", 7), always("early")])
    told = {step: [found.name for found in look({"step": step})] for step in range(13)}
    assert {step: names for step, names in told.items() if names} == {5: ["early"], 10: ["late"]}


def test_the_last_step_is_looked_at_whatever_the_interval():
    look = watch(replace(Config(), diagnose_every=5, steps=7), [always("late", 6)])
    assert [step for step in range(8) if look({"step": step})] == [7]


def test_rows_that_are_not_finite_are_no_numbers():
    seen = []
    look = watch(replace(Config(), diagnose_every=1), [lambda rows, config: seen.append(rows[-1])])
    look({"step": 1, "kl_mean": float("nan"), "beta": 0.5})
    assert seen == [{"step": 1, "kl_mean": None, "beta": 0.5}]


def test_a_run_read_back_shows_what_it_showed_while_it_trained(tmp_path):
    config, said = replace(Config(), diagnose_every=5, steps=40), []
    take = follow(config, shipped_rules(), [], tmp_path / "diagnosis.jsonl", said.append)
    assert (tmp_path / "diagnosis.jsonl").read_text() == ""
    for row in LARGE:
        take(row)
    found = diagnose(LARGE, config)
    assert [finding.name for finding in found] == ["kl_large_at_start"]
    assert said == [f"diagnosis: {found[0]}"]
    assert [json.loads(line) for line in (tmp_path / "diagnosis.jsonl").read_text().splitlines()] == [
        found[0]._asdict()
    ]


def test_a_resumed_run_keeps_what_was_found_and_does_not_say_it_again(tmp_path):
    config, said, path = replace(Config(), diagnose_every=5, steps=40), [], tmp_path / "diagnosis.jsonl"
    take = follow(config, [kl_large_at_start(), always("late", 33)], LARGE[:20], path, said.append)
    assert [json.loads(line)["name"] for line in path.read_text().splitlines()] == ["kl_large_at_start"]
    for row in LARGE[20:]:
        take(row)
    assert [text.partition(" (")[0] for text in said] == ["diagnosis: late"]
    assert [json.loads(line)["name"] for line in path.read_text().splitlines()] == ["kl_large_at_start", "late"]


def test_a_run_that_does_not_diagnose_itself_can_be_diagnosed():
    assert [finding.name for finding in diagnose(LARGE, from_dict({"diagnose_every": 0}))] == ["kl_large_at_start"]


def test_a_rule_of_one_s_own_joins_the_others():
    found = diagnose(LARGE, Config(), [*shipped_rules(), always("mine")])
    assert [finding.name for finding in found] == ["kl_large_at_start", "mine"]


def test_a_look_at_a_long_run_costs_no_more_than_at_one_of_some_hundred_updates():
    seen = []
    look = watch(
        replace(Config(), diagnose_every=1000, steps=20_000),
        [lambda rows, config: seen.append([r["step"] for r in rows])],
    )
    for step in range(1, 20_001):
        look({"step": step})
    assert max(map(len, seen)) <= 530
    assert all(steps == sorted(set(steps)) for steps in seen)
    assert seen[-1][:30] == list(range(1, 31))
    assert seen[-1][-100:] == list(range(19_901, 20_001))
    assert seen[0][30:-100][:3] == [31, 34, 37]


def test_a_finding_reads_as_sentences():
    text = str(Finding("kl_rises", 3, 9, "kl_mean", 1.0, "it rose", "too little", "More"))
    assert text == "kl rises (steps 3 to 9): it rose.\n  likely cause: too little\n  remedy: More"
    assert "(step 9)" in str(Finding("kl_rises", 9, 9, "kl_mean", 1.0, "it rose", "too little", "More"))
