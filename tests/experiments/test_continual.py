"""A second task after a first one: which problems it is asked, and that the page says what was recorded."""

import numpy as np

from experiments.continual import cases, run
from experiments.small_scale import records, sums, tables
from experiments.small_scale.evaluation import world
from experiments.small_scale.setting import SMOKE
from tests.experiments.pages import check_page


def texts(part):
    return ["".join(sums.SYMBOLS[token] for token in row) for row in np.asarray(part.prompts.tokens)]


def test_no_difference_that_is_evaluated_is_trained_on():
    held_out = set(texts(world(SMOKE).held_out[cases.SECOND]))
    assert held_out & set(texts(sums.problems(cases.SECOND, False)))  # the kinds alone do not keep them apart
    assert not held_out & set(texts(cases.asked(SMOKE, 0.3, True)))


def test_replay_is_the_share_of_sums_and_has_a_reward_only_where_it_should():
    plain = cases.asked(SMOKE, 0.3, True)
    answers = sums.as_rollout(plain.prompts, plain.right, plain.right_mask)
    first = np.array(["+" in text for text in texts(plain)])
    assert (len(first), first.sum()) == (cases.PROBLEMS, round(0.3 * cases.PROBLEMS))
    assert np.asarray(sums.is_right(plain, answers)).all()
    given = np.asarray(sums.is_right(cases.asked(SMOKE, 0.3, False), answers))[:, 0]
    np.testing.assert_array_equal(given == 1, ~first)


def test_a_table_has_means_and_half_intervals_and_differences_are_paired():
    rows = {("a",): {"k": "a", "x": [[0.0, 1.0], [0.0, 3.0]]}, ("b",): {"k": "b", "x": [[0.0, 0.0], [0.0, 2.0]]}}
    columns = {"x": lambda row: records.last(row, "x")}
    assert tables.table_of(rows, ("k",), columns).splitlines()[2:] == ["| a | 2 ±13 |", "| b | 1 ±13 |"]
    assert tables.differences(rows, [(("a",), ("b",))], columns).startswith("a against b: x +1.000 (+1.000 to +1.000;")
    assert tables.at_start(rows, columns) == "before training: x 0 (0 to 0)"


def test_the_page_has_the_recorded_runs():
    check_page(run, cases.NAMES)
