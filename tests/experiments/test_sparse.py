"""Strings to be repeated for one reward, a teacher as reference, and that the page says what was recorded."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.small_scale import loop, sums
from experiments.small_scale.setting import SMOKE, policy_of
from experiments.sparse import cases, run
from experiments.sparse.strings import LENGTH, problems
from tests.experiments.pages import check_page


def test_the_answer_is_the_string_and_its_demonstration_has_digits_replaced():
    asked = problems(4000, 0.4, 0)
    np.testing.assert_array_equal(asked.right[:, :-1], asked.prompts.tokens[:, :-1])
    assert asked.right.shape == (4000, LENGTH + 1)
    assert (np.asarray(asked.right)[:, -1] == sums.END).all()
    assert not (np.asarray(asked.prompts.tokens)[:, :-1] > 9).any()
    replaced = np.mean(np.asarray(asked.slip != asked.right)[:, :-1])
    np.testing.assert_allclose(replaced, 0.4 * 0.9, atol=4 * (0.36 * 0.64 / 40_000) ** 0.5)
    assert not np.any(np.asarray(asked.slip)[:, -1] != sums.END)


def test_the_teacher_is_the_reference_and_not_what_training_starts_from():
    taught, params = (policy_of(SMOKE).init(key=jax.random.key(seed)) for seed in (0, 1))
    reference = loop.FROZEN._replace(init=lambda _: jax.tree.map(jnp.copy, taught))
    training = loop.Training(cases.objective_of("to go"), SMOKE, 0, reference)
    state = training._learner().init(params, key=jax.random.key(2))
    jax.tree.map(np.testing.assert_array_equal, state.ref_params, taught)
    jax.tree.map(np.testing.assert_array_equal, state.params, params)
    assert [case.reference is reference for case in cases.cases(reference)] == [
        name[0] == cases.BETTER for name in cases.NAMES
    ]


def test_the_page_has_the_recorded_runs():
    check_page(run, cases.NAMES)
