"""What the configurations of the lag experiment follow, and that what is recorded is what its README says."""

from pathlib import Path

from experiments.policy_lag import cases, run
from experiments.small_scale import records, verdict

HERE = Path(run.__file__).parent
FOLLOWED = {
    "k1 to go, no ratio": ("reverse", "none"),
    "k1 to go, token ratio": ("reverse", "none"),
    "k1 to go, sequence ratio": ("reverse", "reverse"),
    "k3 loss, no ratio": ("local_forward", "none"),
    "k3 loss, token ratio": ("local_reverse", "sampler_local_reverse"),
    "k3 loss, prefix ratio": ("local_reverse", "local_reverse"),
    "k3 loss, causal ratio": ("reverse", "reverse"),
}


def test_each_configuration_follows_on_and_off_policy_what_the_readme_says():
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    for name in cases.CONFIGURATIONS:
        built = cases.objective_of(name)
        on, off = FOLLOWED[name]
        assert (built.target.name, built.off_policy_target.name) == (on, off)
        assert f"| {name} | `{on}` | `{off}` |" in readme
    assert set(FOLLOWED) == set(cases.CONFIGURATIONS)


def test_the_readme_has_the_recorded_runs_as_its_table():
    rows = records.recorded(HERE / "results.jsonl", run.LABELS)
    named = [case.name for case in cases.cases()]
    assert sorted(rows) == sorted(named)
    assert all(row["seeds"] >= 5 for row in rows.values())
    ordered = {name: rows[name] for name in named}
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    assert verdict.table(ordered, run.LABELS) in readme
    assert verdict.compared(ordered, run.pairs()) in readme
