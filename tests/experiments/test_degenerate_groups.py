"""Rules for groups of equal rewards: what they follow, at what price, and that the page says what was recorded."""

import numpy as np
import pytest

from experiments.degenerate_groups import cases, exact, run
from experiments.small_scale import records, verdict

README = (run.HERE / "README.md").read_text(encoding="utf-8")


def recorded():
    rows = records.recorded(run.HERE / "results.jsonl", run.LABELS)
    return {case.name: rows[case.name] for case in cases.cases()}


def test_keeping_them_follows_the_reverse_kl_and_the_rules_that_do_not_declare_nothing():
    for advantage in cases.ADVANTAGES:
        targets = {rule: cases.objective_of(advantage, rule).target for rule in (*cases.RULES, cases.FUSED)}
        assert targets["keep"].name == targets["entropy shaped"].name == "reverse"
        assert targets["mask"].none
        assert targets["smooth"].none
    assert cases.objective_of("RLOO", cases.FUSED).target.name == "reverse"
    assert cases.objective_of("GRPO", cases.FUSED).target.none


@pytest.mark.parametrize("easier", exact.EASIER)
def test_the_price_of_a_mask_is_the_share_of_the_gradient_that_lies_in_such_groups(easier):
    """By a loop over all 5^4 groups in order, with the leave-one-out gradient of k1 written out."""
    policy, reference = (np.array(each) + easier * exact.REWARDS for each in (exact.POLICY, exact.REFERENCE))
    log_pi, log_p = (each - np.log(np.sum(np.exp(each))) for each in (policy, reference))
    score = np.eye(5) - np.exp(log_pi)
    whole, dropped = np.zeros(5), np.zeros(5)
    for group in np.ndindex(*(5,) * exact.GROUP):
        chosen = list(group)
        u = (log_pi - log_p)[chosen]
        gradient = np.exp(log_pi[chosen].sum()) * np.mean((u * score[chosen].T).T, axis=0)
        whole += gradient
        dropped += gradient * (np.ptp(exact.REWARDS[chosen]) == 0)
    expected = np.linalg.norm(dropped) / np.linalg.norm(whole)
    np.testing.assert_allclose(exact.error(cases.objective_of("RLOO", "mask"), easier), expected, rtol=1e-9)


def test_equal_rewards_moved_the_parameters_where_a_kl_term_or_the_entropy_let_them_and_nowhere_else():
    rows = recorded()
    for (_, rule, beta), row in rows.items():
        if rule == cases.FUSED:  # 0 where every group of equal rewards repeats one completion
            continue
        found, groups = records.curve(row, "gradient_share"), records.curve(row, "degenerate_groups")
        still = rule in ("mask", "smooth") or (rule == "keep" and beta == 0)
        # Before training the policy is its reference, and the KL term without gradient.
        found, groups = (found, groups) if still or rule == cases.SHAPED else (found[:, 1:], groups[:, 1:])
        assert np.mean(groups > 0) > 0.9
        assert not found.any() if still else np.all(found[groups > 0] > 0)
    fused, kept = (records.curve(rows["GRPO", rule, cases.SMALL], "gradient_share") for rule in (cases.FUSED, "keep"))
    assert fused.max() > 10 * kept.max()


def test_the_page_has_the_recorded_runs():
    rows = recorded()
    assert len(rows) == len((run.HERE / "results.jsonl").read_text(encoding="utf-8").splitlines())
    assert all(row["seeds"] >= 5 for row in rows.values())
    said = [verdict.table(rows, run.LABELS, run.COLUMNS), run.moved(rows), run.differences(rows)]
    for each in (*said, run.same_samples(rows), exact.price()):
        assert each in README
    assert (run.HERE / "figure.png").exists()
