"""The table of what is shipped: its records, its print, its picture, and what it says of a broken promise."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from grpo_jax.oracle import certify_shipped, heatmap, print_records, report, to_json


@pytest.fixture(scope="module")
def records():
    return certify_shipped("k2", seed=7)


def printed(records):
    text = io.StringIO()
    print_records(records, Console(file=text, width=200, color_system=None))
    return text.getvalue()


def test_records_come_on_policy_and_off_policy_in_turn_for_every_reduction(records):
    assert len(records) == 2 * 16 * 4
    assert [record.behaviour for record in records] == ["on", "off"] * 64
    assert all(record.agrees for record in records)
    assert len({record.reduction for record in records}) == 4


def test_the_table_shows_each_term_once_and_counts(records):
    text = printed(records)
    assert text.count("detached_sequence") == 2
    assert "64 configurations, 128 findings" in text
    assert "128 as declared, 0 not" in text


def test_a_broken_promise_is_shown_and_a_cautious_one_is_told_apart(records):
    broken = records[0]._replace(agrees=False, distance=0.3, sentence="WRONG: it is not")
    cautious = records[1]._replace(agrees=False, distance=None, declared="none")
    text = printed([broken, cautious, *records[2:]])
    assert text.count("NOT as declared") == 1
    assert "WRONG: it is not" in text
    assert "126 as declared, 1 not, 1 that declare nothing" in text


def test_the_picture_has_a_row_for_each_term_and_a_column_for_each_target(records, tmp_path):
    path = tmp_path / "table.png"
    figure = heatmap(records, path)
    assert path.stat().st_size > 5000
    on = figure.axes[0].images[0].get_array()
    assert on.shape == (16, 9)
    sequence = [label.get_text() for label in figure.axes[0].get_yticklabels()].index("k2, loss, sequence, none")
    reverse = [label.get_text() for label in figure.axes[0].get_xticklabels()].index("reverse")
    assert on[sequence, reverse] < -12
    assert on[sequence, 0] == on[sequence, reverse]


def test_records_survive_json(records, tmp_path):
    path = tmp_path / "records.json"
    to_json(records, path)
    loaded = json.loads(path.read_text())
    assert loaded == [record._asdict() for record in records]
    assert np.isfinite([record["variance"] for record in loaded]).all()


def test_names_are_found_by_their_beginning_and_unknown_ones_refused():
    assert {each.objective.parts.kl.estimator for each in report.chosen("straight_through")} == {
        "straight_through(k3, k2)"
    }
    assert len(report.chosen("full")) == 6 * 4
    with pytest.raises(ValueError, match=r"'k4'; choose one of k1, k2"):
        report.chosen("k4")
    with pytest.raises(ValueError, match="1,093 completions make 597,871 groups of 2, more than"):
        certify_shipped(vocabulary_size=4, max_tokens=6)
    with pytest.raises(ValueError, match="vocabulary 1 and length 3"):
        certify_shipped("k1", vocabulary_size=1)
