"""References that move and rewards with noise in the small loop, and that the page says what was recorded."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.reference_refresh import cases, run
from experiments.small_scale import loop, records, sums, verdict
from experiments.small_scale.setting import SMOKE, policy_of
from grpo_jax.updates import copied_every

README = (run.HERE / "README.md").read_text(encoding="utf-8")
LABELS = ("reference", "noise")


def test_noise_changes_the_rewards_that_are_trained_on_alone_and_the_reference_is_the_one_given():
    """A policy that knows nothing is never right: without noise all groups are degenerate, with it none is."""
    trained, params = sums.problems("sums", False, 50), policy_of(SMOKE).init(key=jax.random.key(0))
    training = loop.Training(cases.objective(), SMOKE, 0, copied_every(1), 1.0)
    learner = training._learner()
    state = learner.init(params, key=jax.random.key(1))
    step = jax.jit(lambda state, key: training.seen(learner, state, None, jnp.int32(0), trained, key=key))
    (state, _), seen = step(state, jax.random.key(2))
    assert seen["reward"] == seen["degenerate"] == 0
    jax.tree.map(np.testing.assert_array_equal, state.ref_params, state.params)
    assert not all(np.array_equal(*pair) for pair in zip(*map(jax.tree.leaves, (state.params, params)), strict=True))


def test_the_page_has_the_recorded_runs():
    rows = records.recorded(run.HERE / "results.jsonl", LABELS)
    named = [case.name for case in cases.cases()]
    assert sorted(rows) == sorted(named)
    assert all(row["seeds"] >= 5 for row in rows.values())
    ordered = {name: rows[name] for name in named}
    assert verdict.table(ordered, LABELS) in README
    assert run.differences(ordered) in README
    assert (run.HERE / "figure.png").exists()
