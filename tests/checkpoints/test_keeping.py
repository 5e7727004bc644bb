"""The newest, the best and every so many stay; no checkpoint gives way to one that is no better."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax import checkpoints
from grpo_jax.checkpoints import Keep, kept
from tests.checkpoints.states import make_state


def test_each_rule_keeps_its_own():
    scores = {0: 0.1, 2: 0.5, 4: None, 6: 0.5, 8: 0.3, 10: math.nan}
    assert kept(scores, Keep(1)) == {10}
    assert kept(scores, Keep(2)) == {8, 10}
    assert kept(scores, Keep(1, best=1)) == {2, 10}
    assert kept(scores, Keep(1, best=3)) == {2, 6, 8, 10}
    assert kept(scores, Keep(1, best=9)) == {0, 2, 6, 8, 10}
    assert kept(scores, Keep(1, every=4)) == {4, 8, 10}
    assert kept(scores, Keep(1, best=1, every=6)) == {2, 6, 10}
    assert kept({}, Keep(3, 2, 1)) == set()


@given(st.lists(st.one_of(st.none(), st.integers(0, 5).map(float)), max_size=12), st.integers(1, 3), st.integers(0, 3))
def test_a_run_that_removes_as_it_goes_keeps_what_one_look_at_the_end_would(scores, last, best):
    """So no score that was once among the best is lost to a worse one."""
    present, keep = {}, Keep(last, best, every=4)
    for step, score in enumerate(scores):
        present[step] = score
        present = {old: present[old] for old in kept(present, keep)}
    assert present.keys() == kept(dict(enumerate(scores)), keep)
    known = sorted((score for score in scores if score is not None), reverse=True)[:best]
    assert sorted((score for score in present.values() if score is not None), reverse=True)[: len(known)] == known


@pytest.mark.parametrize(
    ("keep", "message"),
    [(Keep(0), "keep=0"), (Keep(1, best=-1), "best=-1"), (Keep(1, every=-1), "every=-1")],
)
def test_a_rule_that_cannot_be_is_refused_before_anything_is_written(keep, message, tmp_path):
    with pytest.raises(ValueError, match=message), checkpoints.saver(tmp_path / "run", keep):
        pytest.fail("opened")
    assert not (tmp_path / "run").exists()


def test_the_best_of_the_process_before_is_still_the_best(tmp_path):
    """Scores are in the checkpoints, not in the process."""
    state, keep = make_state(), Keep(1, best=1)
    with checkpoints.saver(tmp_path, keep) as saver:
        for step, score in ((0, 0.25), (2, 0.75), (4, 0.5)):
            saver.save(state, step, score=score)
    assert checkpoints.steps(tmp_path) == [2, 4]
    with checkpoints.saver(tmp_path, keep, start=4) as saver:
        saver.save(state, 6, score=0.75)
        saver.save(state, 8)
    assert checkpoints.steps(tmp_path) == [2, 8]
    with checkpoints.saver(tmp_path, keep, start=8) as saver:
        saver.save(state, 10, score=0.8)
    assert checkpoints.steps(tmp_path) == [10]
    assert checkpoints.load(tmp_path, state).score == 0.8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["10"]
