"""What is due at a step."""

from dataclasses import replace

from grpo_jax.due import Due, due
from tests.runs import TINY

NOTHING = Due(invariants=False, gradient_share=False, certificate=False, evaluation=False, checkpoint=False)
CONFIG = replace(
    TINY,
    steps=35,
    checkpoint_every=4,
    evaluation=replace(TINY.evaluation, every=3),
    gradient_share_every=5,
    certify_every=7,
    check_invariants=False,
)


def test_each_kind_of_work_is_due_where_its_own_number_divides_the_step():
    def at(step):
        return due(CONFIG, step)

    assert at(1) == NOTHING
    assert at(3) == NOTHING._replace(evaluation=True)
    assert at(4) == NOTHING._replace(checkpoint=True)
    assert at(5) == NOTHING._replace(gradient_share=True)
    assert at(7) == NOTHING._replace(certificate=True)
    assert at(12) == NOTHING._replace(evaluation=True, checkpoint=True)


def test_the_last_step_is_evaluated_and_saved_and_invariants_are_looked_at_in_every_one():
    never = replace(CONFIG, steps=11, checkpoint_every=0, evaluation=replace(TINY.evaluation, every=0))
    assert due(never, 11) == NOTHING._replace(evaluation=True, checkpoint=True)
    assert due(replace(never, check_invariants=True), 1) == NOTHING._replace(invariants=True)


def test_nothing_is_due_that_is_not_asked_for():
    never = replace(CONFIG, gradient_share_every=0, certify_every=0, evaluation=replace(TINY.evaluation, every=0))
    assert all(due(never, step) == NOTHING for step in (3, 5, 7))


def test_what_comes_before_and_after_an_update():
    assert [field for field in Due._fields if NOTHING._replace(**{field: True}).before] == list(Due._fields[:3])
    assert [field for field in Due._fields if NOTHING._replace(**{field: True}).after] == list(Due._fields[3:])
