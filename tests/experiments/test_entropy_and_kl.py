"""The entropy bonus beside a KL term: where it leads exactly, and that the page says what was recorded."""

import json

import numpy as np

from experiments.entropy_and_kl import exact, run
from experiments.entropy_and_kl.cases import cases
from experiments.fixed_points.training import divergence
from experiments.small_scale import records, verdict

README = (run.HERE / "README.md").read_text(encoding="utf-8")
LABELS = ("bonus", "beta")
EXACT = [json.loads(line) for line in (run.HERE / "exact.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_optimum_with_entropy_is_the_tilted_reference():
    """Adding any other distribution's share to the optimum lowers reward - beta KL + bonus entropy."""
    drawn, bonus = exact.instance(0), 0.2
    reference = np.log(np.full(len(drawn.rewards), 1 / len(drawn.rewards)))
    best = exact.optimum(reference, drawn.rewards, bonus)

    def worth(log_probs):
        entropy = -np.exp(log_probs) @ log_probs
        return np.exp(log_probs) @ drawn.rewards - exact.BETA * divergence(log_probs, reference) + bonus * entropy

    np.testing.assert_allclose(np.exp(best).sum(), 1, rtol=1e-12)
    for seed in range(5):
        other = np.random.default_rng(seed).dirichlet(np.ones(len(best)))
        assert worth(best) > worth(np.log(0.9 * np.exp(best) + 0.1 * other))


def test_without_a_bonus_training_ends_at_the_optimum_and_with_one_beside_it():
    ends = {bonus: [row["to_optimum"] for row in EXACT if row["bonus"] == bonus] for bonus in exact.BONUSES}
    assert all(len(each) == run.PROBLEMS for each in ends.values())
    assert max(ends[0.0]) < 1e-3
    assert min(ends[0.3]) > 1e-2


def test_the_page_has_the_recorded_runs():
    rows = records.recorded(run.HERE / "results.jsonl", LABELS)
    named = [case.name for case in cases()]
    assert sorted(rows) == sorted(named)
    assert all(row["seeds"] >= 5 for row in rows.values())
    ordered = {name: rows[name] for name in named}
    for said in (
        verdict.table(ordered, LABELS),
        run.changes(ordered),
        run.exact_table(EXACT),
        run.exact_changes(EXACT),
    ):
        assert said in README
    assert (run.HERE / "figure.png").exists()
