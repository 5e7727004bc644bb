"""The page of some runs: what it must show, that nothing in it is taken for HTML, and that it needs nothing else."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from grpo_jax.config import BetaConfig, Config, ObjectiveConfig, to_dict
from grpo_jax.report import facts as facts_module
from grpo_jax.report import read_runs, render, write_report
from grpo_jax.report.charts import PANELS, charts
from grpo_jax.report.page import differences

VOID = {"meta", "br", "hr", "img", "input", "link"}
EVIL = "<script>alert(1)</script><img src=x onerror='a&b'>"


class Page(HTMLParser):
    """Reads a page; fails where tags are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.words = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def rows(count, **more):
    first = {"step": 0, "accuracy_validation": 0.25, "accuracy_longer": 0.125}
    each = {"reward_mean": 0.5, "kl_mean": 0.5, "kl_max": 3.0, "beta": 0.02, "gradient_norm": 0.3, **more}
    return [first, *({"step": step, **each} for step in range(1, count + 1))]


def run(folder, config=None, measures=(), before="", after="", summary=None):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(to_dict(config or Config())))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in measures))
    if before:
        (folder / "samples_before.txt").write_text(before)
        (folder / "samples_after.txt").write_text(after)
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture(autouse=True)
def quick_certificates(monkeypatch):
    """A certificate takes seconds to compute; one test asks for the real one."""
    original = facts_module._certified
    monkeypatch.setattr(facts_module, "_certified", lambda objective: ("the table", "It follows what it says."))
    return original


@pytest.fixture
def two(tmp_path):
    """A finished healthy run, and one with another beta and a fault that has not ended."""
    summary = {"seconds": 61.0, "kl_follows": "reverse"}
    one = run(tmp_path / "one", replace(Config(), steps=30), rows(30), "prompt: 1+1=", "prompt: 2+2=", summary)
    other = replace(Config(), beta=BetaConfig(value=0.5), seed=3)
    return [one, run(tmp_path / "other", other, rows(60, ratio_max=7.0))]


def page_of(folders):
    return Page(render(read_runs(folders)))


def test_the_page_has_the_outcome_the_diagnosis_the_curves_the_differences_and_the_samples(two):
    page = page_of(two)
    for words in (
        "2 runs",
        "30 of 30",
        "60 of 120",
        "0.250 → –",  # the last row has no accuracy
        "other has not ended: it is at update 60 of 120",
        "Nothing to report.",
        "ratio large",
        "the largest ratio is beyond 2 in 10 of 10 updates",
        "Likely cause:",
        "Remedy:",
        "beta.value 0.02 0.5",
        "seed 0 3",
        "follows reverse where the policy itself samples",
        "It follows what it says.",
        "the table",
        "prompt: 1+1=",
        "prompt: 2+2=",
        "None written yet.",
    ):
        assert words in page.text, words
    assert page.text.count("Norm of the gradient") == 1
    assert "Entropy" not in page.text  # no run has it


def test_every_curve_of_every_run_is_drawn_inside_the_drawing(two):
    page = page_of(two)
    drawn = [value for name, value in page.attributes if name == "d"]
    assert page.tags.count("svg") == 7
    for path in drawn:
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", path)]
        assert all(0 <= x <= 360 for x in numbers[::2])
        assert all(0 <= y <= 216 for y in numbers[1::2])
    labels = [value for name, value in page.attributes if name == "aria-label"]
    assert "Strength of the KL term, last values: one 0.02, other 0.02" in labels


def test_the_page_needs_no_other_file_and_no_network(two):
    page = page_of(two)
    assert not {"script", "img", "link", "iframe", "object", "base"} & set(page.tags)
    assert not {"src", "href", "action", "xlink:href"} & {name for name, _ in page.attributes}
    text = render(read_runs(two))
    assert "http" not in text
    assert "@import" not in text
    assert "url(" not in text


def test_whatever_comes_from_data_is_escaped(tmp_path):
    evil = replace(Config(), mesh=EVIL)
    folders = [run(tmp_path / "a<b>&'c", evil, rows(3), EVIL, EVIL), run(tmp_path / "plain", None, rows(3))]
    page = page_of(folders)
    assert not {"script", "img", "b"} & set(page.tags)
    assert "onerror" not in {name for name, _ in page.attributes}
    assert page.text.count(EVIL) == 3  # both samples and the field
    assert "a<b>&'c" in page.text


def test_a_run_without_rows_is_said_to_have_none(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text(json.dumps(to_dict(Config())))
    page = page_of([tmp_path / "empty"])
    assert "empty has no rows yet" in page.text
    assert "No measures yet." in page.text
    assert "svg" not in page.tags
    assert "1 run" in page.text


def test_runs_of_the_same_name_are_told_apart_by_their_parents(tmp_path):
    folders = [run(tmp_path / place, None, rows(3)) for place in ("a/run", "b/run", "c/last")]
    assert [found.name for found in read_runs(folders)] == ["a/run", "b/run", "last"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: [folder / "nowhere"], "there is no folder"),
        (lambda folder: [folder], "is not a run's folder: it has no config.json"),
        (lambda folder: [run(folder / "r"), folder / "x" / ".." / "r"], "is given twice"),
        (lambda folder: [], "no runs: name at least one"),
    ],
)
def test_what_is_no_run_is_refused(make, said, tmp_path):
    (tmp_path / "x").mkdir()
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        read_runs(make(tmp_path))


def test_a_broken_file_is_named(tmp_path):
    folder = run(tmp_path / "run", None, rows(3))
    (folder / "summary.json").write_text("{")
    with pytest.raises(ValueError, match=r"summary\.json is not JSON"):
        read_runs([folder])
    (folder / "metrics.jsonl").write_text("nonsense\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 1"):
        read_runs([folder])


def test_long_samples_are_cut_and_the_page_says_so(tmp_path):
    folder = run(tmp_path / "run", None, rows(3), "x" * 30_000, "short")
    (found,) = read_runs([folder])
    assert found.samples_before.endswith(f"... (10,000 more characters in {folder / 'samples_before.txt'})")


def test_differences_are_between_runs_or_from_the_default():
    changed = [replace(Config(), steps=7, seed=seed) for seed in (0, 1)]
    found = differences(changed)
    assert found.between == [("seed", ["0", "1"])]
    assert found.elsewhere == [("steps", "7")]
    assert differences([Config()]) == ([], [])


def test_an_objective_of_one_s_own_has_no_certificate(tmp_path):
    folder = run(tmp_path / "run", None, rows(3), summary={"kl_follows": "0.5 reverse"})
    assert "follows 0.5 reverse" in page_of([folder]).text
    assert "No certificate: the run had an objective of its own" in page_of([folder]).text


def test_no_kl_term_has_nothing_to_certify(tmp_path):
    folder = run(tmp_path / "run", replace(Config(), beta=BetaConfig(value=0.0)), rows(3))
    assert "No KL term, so nothing to certify." in page_of([folder]).text


def test_runs_that_share_an_objective_share_its_certificate(two, tmp_path):
    k3 = replace(Config(), objective=ObjectiveConfig(kl="k3", placement="loss"))
    page = page_of([*two, run(tmp_path / "k3", k3, rows(3))])
    assert page.tags.count("details") == 2
    assert "k3 in loss" in page.text
    assert "follows local_forward" in page.text


def test_the_certificate_is_the_oracle_s(two, quick_certificates):
    table, verdict = quick_certificates(facts_module._objective(Config()))
    assert "follows reverse, as declared" in verdict
    assert "reverse" in table


def test_a_long_line_keeps_its_peaks_with_few_points():
    values = [1.0] * 20_000
    values[12_345] = 50.0
    measures = [{"step": step, "kl_mean": value} for step, value in enumerate(values, start=1)]
    (chart,) = charts([("run", measures)], [PANELS[2]])
    points = re.findall(r"([\d.]+) ([\d.]+)", chart.lines[0].path)
    assert len(points) <= 600
    assert min(float(y) for _, y in points) < 20
    assert chart.lines[0].smooth
    assert len(chart.lines[0].smooth) < 10_000


def test_a_logarithmic_axis_leaves_out_what_is_not_positive_and_labels_decades():
    measures = [{"step": step, "kl_max": value} for step, value in enumerate([0.0, 0.01, 1.0, 100.0, 1e4], start=1)]
    (chart,) = charts([("run", measures)], [PANELS[3]])
    assert len(chart.lines[0].dots) == 4
    assert [tick.label for tick in chart.y_ticks] == ["0.01", "0.1", "1", "10", "100", "1000", "1e+04"]


def test_one_row_and_equal_values_are_drawn():
    (chart,) = charts([("run", [{"step": 1, "beta": 0.02}])], [PANELS[4]])
    assert chart.lines[0].dots
    assert chart.lines[0].path == ""
    assert 2 <= len(chart.y_ticks) <= 6


def test_a_page_is_written_whole(two, tmp_path):
    write_report(read_runs(two), tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8").endswith("</html>\n")
