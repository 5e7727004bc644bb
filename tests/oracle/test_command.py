"""``grpo-jax certify``: records, picture, other policies, bad input in one line, a broken promise."""

import json

import pytest

import grpo_jax.__main__ as command_line
import grpo_jax.commands.certificates as certificates

FIELDS = {
    "estimator",
    "placement",
    "granularity",
    "importance",
    "reduction",
    "advantage",
    "degenerate",
    "behaviour",
    "declared",
    "distances",
    "variance",
}


def follows(records, target, **made_of):
    """Distances to a target of the records under the plainest reduction that are made of the given parts."""
    made_of = {"reduction": "sequence_mean_of_token_sum", **made_of}
    chosen = [record for record in records if made_of.items() <= record.items()]
    assert chosen
    return [record["distances"][target] for record in chosen]


def test_one_estimator_leaves_records_and_a_picture(tmp_path, capsys):
    words = ["certify", "--estimator", "k1", "--json", str(tmp_path / "k1.json"), "--plot", str(tmp_path / "k1.png")]
    assert command_line.main(words) == 0
    assert "128 as declared, 0 not" in capsys.readouterr().out
    assert (tmp_path / "k1.png").stat().st_size > 5000
    records = json.loads((tmp_path / "k1.json").read_text())
    assert all(set(record) >= FIELDS for record in records)
    for placement in ("reward", "to_go"):
        assert max(follows(records, "reverse", placement=placement)) < 1e-12
    for importance in ("sequence", "causal"):
        assert max(follows(records, "reverse", placement="loss", importance=importance)) < 1e-12
    assert max(follows(records, "zero", placement="loss", importance="none", behaviour="on")) < 1e-12


@pytest.mark.parametrize("words", [["--seed", "11"], ["--vocabulary", "4", "--length", "2"]])
def test_another_policy_gives_the_same_zeros_and_other_numbers(words, tmp_path):
    path = tmp_path / "records.json"
    assert command_line.main(["certify", "--estimator", "k2", "--json", str(path), *words]) == 0
    records = json.loads(path.read_text())
    in_loss = {"placement": "loss", "granularity": "sequence", "importance": "none", "behaviour": "on"}
    assert max(follows(records, "reverse", **in_loss)) < 1e-12
    assert 1e-3 < follows(records, "forward", **in_loss)[0] < 1e3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--estimator", "k9"], "estimator is 'k9'; choose one of k1"),
        (["--vocabulary", "1"], "vocabulary 1"),
        (["--json", "no/such/folder/out.json"], "no folder no/such/folder"),
        (["--json", "."], "--json . is a folder"),
        (["--plot", "distances.picture"], "no picture is written with this ending; give one of"),
        (["--vocabulary", "5", "--length", "6"], "5,461 completions make"),
        (["--vocabulary", "9", "--length", "9"], "153,391,689 completions make"),
    ],
)
def test_bad_input_is_one_line(words, said, capsys):
    assert command_line.main(["certify", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_broken_promise_is_status_one(monkeypatch, capsys):
    honest = certificates.certify_shipped("absolute")
    broken = [honest[0]._replace(distance=0.5, agrees=False), *honest[1:]]
    monkeypatch.setattr(certificates, "certify_shipped", lambda *_: broken)
    assert command_line.main(["certify"]) == 1
    assert "1 not" in capsys.readouterr().out
