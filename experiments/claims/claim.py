"""What a claim is, how its verdict follows from comparisons, and how claims are printed."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, SupportsFloat

from rich.markup import escape
from rich.table import Column, Table

from grpo_jax.oracle.judgement import TOLERANCE

ARTICLES = {
    "A": "groups whose rewards are all equal, and the KL term (huggingface/trl#5588)",
    "B": "the KL penalty of GRPO, from theory to tuning",
    "C": "where the KL estimators stand (on arXiv 2512.21852)",
}
EXACT = TOLERANCE
"""Relative distance, in float64, up to which two gradients are the same."""
APART = 0.01
"""Relative distance from which a bias is called one."""
HEADINGS = ("claim", "verdict", "numbers", "computed from")


class Claim(NamedTuple):
    """A statement and what came of it.

    Attributes:
        article: letter of `ARTICLES`; "A, ours" where the statement is our answer to the article.
        statement: the statement, in our words.
        verdict: from `verdict`.
        numbers: by name, what was computed; the worst of all seeds where random.
        computed: what they were computed from.
    """

    article: str
    statement: str
    verdict: str
    numbers: Mapping[str, SupportsFloat]
    computed: str


Claims = Sequence[Callable[[tuple[int, ...]], Claim]]
"""Functions of the seeds, each named as its claim."""


def verdict(always: object, under: object = False, condition: str = "") -> str:
    """Returns "holds", "does not hold", or "holds CONDITION" for what holds only under a condition.

    Args:
        always: the comparison that decides the statement as it stands.
        under: the one that decides it under the condition.
        condition: in words.
    """
    if always:
        return "holds"
    return f"holds {condition}" if under else "does not hold"


def worded(number: SupportsFloat) -> str:
    """Returns a number for the table; what is 0 but for float64's rounding says so."""
    number = float(number)
    if number == 0:
        return "0"
    if abs(number) < EXACT:
        return "< 1e-12"
    return f"{number:.5g}" if 1e-3 <= abs(number) < 1e6 else f"{number:.3g}"


def cells(name: str, claim: Claim) -> tuple[str, str, str, str]:
    """Returns a claim's row: what stands in the terminal and in the README alike."""
    numbers = "; ".join(f"{what}: {worded(number)}" for what, number in claim.numbers.items())
    whose = " (ours)" if claim.article.endswith("ours") else ""
    return f"{name}{whose}: {claim.statement}", claim.verdict, numbers, claim.computed


def by_article(found: Mapping[str, Claim]) -> dict[str, dict[str, Claim]]:
    """Returns the claims of each article that has any."""
    sorted_out = {letter: {n: c for n, c in found.items() if c.article[0] == letter} for letter in ARTICLES}
    return {letter: claims for letter, claims in sorted_out.items() if claims}


def tables(found: Mapping[str, Claim]) -> list[Table]:
    """Returns one table an article, for the terminal."""
    made = []
    for letter, claims in by_article(found).items():
        columns = [Column(heading, ratio=ratio) for heading, ratio in zip(HEADINGS, (4, 2, 5, 3), strict=True)]
        title = f"{letter}: {ARTICLES[letter]}"
        table = Table(*columns, title=title, title_justify="left", show_lines=True, expand=True)
        for name, claim in claims.items():
            colour = {"holds": "green", "does not hold": "red"}.get(claim.verdict, "yellow")
            what, judged, numbers, computed = map(escape, cells(name, claim))
            table.add_row(what, f"[{colour}]{judged}[/{colour}]", numbers, computed)
        made.append(table)
    return made


def markdown(found: Mapping[str, Claim]) -> str:
    """Returns the same tables for the README."""
    lines = []
    for letter, claims in by_article(found).items():
        lines += [f"### {letter}: {ARTICLES[letter]}", "", f"| {' | '.join(HEADINGS)} |", "|---" * len(HEADINGS) + "|"]
        rows = (cells(name, claim) for name, claim in claims.items())
        lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
        lines.append("")
    return "\n".join(lines)
