"""The README's code runs, in order, and prints what its comments say."""

import re
from pathlib import Path

import pytest

from grpo_jax import kl

README = Path(__file__).parents[1] / "README.md"


def test_the_python_of_the_readme_runs_and_prints_what_it_says(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) >= 2
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "reverse"
    assert printed[1].startswith("none - ")
    assert printed[2] == "0.5 reverse"
    assert "expected gradient is zero" in printed[3]


def test_every_command_of_the_readme_exists():
    text = README.read_text(encoding="utf-8")
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"\bmake ([a-z-]+)", text):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


ESTIMATORS = {
    "k1": kl.k1,
    "k2": kl.k2,
    "k3": kl.k3,
    "k3 value, k2 gradient": kl.straight_through(kl.k3, kl.k2),
    "full vocabulary": None,
}
RATIOS = {"token's": kl.importance.token, "sequence's": kl.importance.sequence, "causal": kl.importance.causal}


def table_rows():
    section = README.read_text(encoding="utf-8").split("## Which gradient a KL term follows")[1].split("\n\n")[2]
    for line in section.splitlines()[2:]:
        estimators, placements, granularities, follows = (cell.strip() for cell in line.strip("|").split("|"))
        names, _, ratio = estimators.partition(" with the ")
        ratios = [RATIOS[name] for name in RATIOS if name in ratio] or [kl.importance.none]
        whole = names if names in ESTIMATORS else None
        for estimator in [whole] if whole else names.split(", "):
            for placement in placements.split(", "):
                for granularity in (
                    ["token", "sequence"] if granularities in ("any", "token or sequence") else [granularities]
                ):
                    for importance in ratios:
                        yield estimator, placement, granularity, importance, follows


@pytest.mark.parametrize(("estimator", "placement", "granularity", "importance", "follows"), list(table_rows()))
def test_the_table_says_what_the_library_declares(estimator, placement, granularity, importance, follows):
    def build(allow_biased):
        if estimator == "full vocabulary":
            return kl.full_vocabulary(placement, allow_biased=allow_biased)
        return kl.penalty(ESTIMATORS[estimator], placement, granularity, importance(), allow_biased)

    assert build(True).target.name == re.split(r" \(|;", follows)[0]
    if "refused" in follows:
        with pytest.raises(ValueError, match="KL term"):
            build(False)
    else:
        build(False)
