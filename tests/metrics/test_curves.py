"""The picture shows what was recorded and says what was not."""

import pytest
from matplotlib.figure import Figure

from grpo_jax.metrics import PANELS, Panel, save_curves

ROWS = [
    {
        "step": step,
        "reward_mean": step / 9,
        "kl_mean": 0.1,
        "kl_max": 0.5,
        "accuracy": 0.4,
        "beta": None if step == 2 else 1,
    }
    for step in range(1, 10)
]


@pytest.fixture
def drawn(monkeypatch):
    """The axes of the figures that were saved."""
    figures = []
    save = Figure.savefig

    def keep(figure, *arguments, **options):
        figures.append(figure)
        return save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def lines(figure):
    """Title -> {label: (xs, ys)} of every plot."""
    return {
        axis.get_title(): {line.get_label(): tuple(map(list, line.get_data())) for line in axis.lines}
        for axis in figure.axes
        if axis.get_title()
    }


def test_every_panel_is_there_with_title_units_and_its_lines(tmp_path, drawn):
    save_curves(ROWS, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    (figure,) = drawn
    found = lines(figure)
    assert list(found) == [panel.title for panel in PANELS]
    assert found["Reward"] == {"reward_mean": (list(range(1, 10)), [step / 9 for step in range(1, 10)])}
    assert found["KL to the reference, mean"].keys() == {"kl_mean"}
    assert found["KL to the reference, largest"].keys() == {"kl_max"}
    assert all(axis.get_xlabel() == "update" and axis.get_ylabel() for axis in figure.axes)
    assert figure.axes[0].get_legend().get_texts()[0].get_text() == "reward_mean"


def test_points_without_a_value_are_left_out_of_their_line(tmp_path, drawn):
    save_curves(ROWS, tmp_path / "curves.png")
    assert lines(drawn[0])["Strength of the KL term"]["beta"][0] == [1, 3, 4, 5, 6, 7, 8, 9]


def test_a_measure_that_was_not_recorded_is_said_to_be_missing(tmp_path, drawn):
    save_curves(ROWS, tmp_path / "curves.png")
    entropy = next(axis for axis in drawn[0].axes if axis.get_title() == "Entropy")
    assert [text.get_text() for text in entropy.texts] == ["not recorded"]


@pytest.mark.parametrize("rows", [[], ROWS[:1], [{"step": 1, "reward_mean": float("nan")}]])
def test_few_points_or_none_still_make_a_picture(tmp_path, rows):
    save_curves(rows, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 1000


def test_panels_can_be_chosen(tmp_path, drawn):
    save_curves(ROWS, tmp_path / "curves.png", [Panel("Both", "nats", ("kl_*",))])
    assert lines(drawn[0]) == {"Both": {"kl_mean": drawn_line(0.1), "kl_max": drawn_line(0.5)}}


def drawn_line(value):
    return list(range(1, 10)), [value] * 9
