"""Real runs that look at themselves: a fault made on purpose is told, once, and a healthy run says nothing."""

import json
from dataclasses import replace

import jax
import pytest

import grpo_jax.train
from grpo_jax.diagnosis import diagnose
from grpo_jax.metrics import read_rows
from tests.runs import TINY, compiled


def trained(folder, monkeypatch, change=lambda program: program, config=TINY, **options):
    """Trains with the program that all tests share; returns what was found while it trained."""
    monkeypatch.setattr(grpo_jax.train, "compile_program", lambda config, objective: change(compiled(config)))
    monkeypatch.setattr(grpo_jax.train, "save_curves", lambda *_: None)
    grpo_jax.train.train(config, folder, **options)
    return [json.loads(line) for line in (folder / "diagnosis.jsonl").read_text().splitlines()]


def with_another_reference(program):
    """The same program, whose runs start beside a reference that is not their policy."""

    def state(params, *, key):
        made = program.state(params, key=key)
        return made._replace(ref_params=jax.tree.map(lambda leaf: 4 * leaf, made.ref_params))

    return program._replace(state=state)


def test_a_wrong_reference_is_told_once_while_training_and_found_again_afterwards(tmp_path, monkeypatch, capsys):
    config = replace(TINY, diagnose_every=1)
    found = trained(tmp_path / "run", monkeypatch, with_another_reference, config)
    assert [finding["name"] for finding in found] == ["kl_large_at_start"]
    assert found[0]["last"] == 1
    assert "reference is not the policy" in found[0]["cause"]
    assert capsys.readouterr().out.count("diagnosis: kl large at start (step 1)") == 1
    again = diagnose(read_rows(tmp_path / "run" / "metrics.jsonl"), config)
    assert [finding._asdict() for finding in again] == found


def test_a_resumed_run_does_not_say_again_what_it_said(tmp_path, monkeypatch, capsys):
    config = replace(TINY, diagnose_every=1, steps=2)
    first = trained(tmp_path / "run", monkeypatch, with_another_reference, config)
    capsys.readouterr()
    again = trained(tmp_path / "run", monkeypatch, config=replace(config, steps=4, diagnose_every=2), resume=True)
    assert again == first
    assert "diagnosis:" not in capsys.readouterr().out


def test_a_healthy_run_says_nothing_and_one_that_is_told_not_to_look_leaves_no_file(tmp_path, monkeypatch, capsys):
    assert trained(tmp_path / "run", monkeypatch, config=replace(TINY, diagnose_every=1)) == []
    assert "diagnosis:" not in capsys.readouterr().out
    with pytest.raises(FileNotFoundError):
        trained(tmp_path / "silent", monkeypatch, config=replace(TINY, diagnose_every=0))
