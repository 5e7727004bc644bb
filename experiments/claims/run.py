"""Every mathematical statement of the three articles, computed, with a verdict. See README.md."""

import io
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import tyro
from rich.console import Console

from experiments.claims import betas, degenerate_groups, estimators, figure, groups, kl_penalty, off_policy, variance
from experiments.claims.claim import Claim, markdown, tables

HERE = Path(__file__).parent
MODULES = (degenerate_groups, estimators, kl_penalty, variance, betas, off_policy, groups)
NAMES = {name for m in MODULES for name in (m.__name__.rpartition(".")[-1], *(each.__name__ for each in m.CLAIMS))}
"""What may be asked for: the claims, and the files they are in."""
BEGIN, END = "<!-- verdicts -->\n", "<!-- end of verdicts -->"
"""What stands before and after the table in the README."""


def computed(seeds: tuple[int, ...], only: tuple[str, ...] = ()) -> dict[str, Claim]:
    """Computes the claims; ``only``: names of claims, or of files of them."""

    def of_module(module: ModuleType) -> dict[str, Claim]:
        return {claim.__name__: claim(seeds) for claim in module.CLAIMS if wanted(module, claim.__name__, only)}

    # XLA compiles without holding Python's lock, and compiling is what takes the time.
    with ThreadPoolExecutor(2) as pool:
        return {name: claim for found in pool.map(of_module, MODULES) for name, claim in found.items()}


def wanted(module: ModuleType, name: str, only: tuple[str, ...]) -> bool:
    """Returns whether a claim was asked for, by its name or its module's; all are where nothing was asked for."""
    return not only or name in only or module.__name__.rpartition(".")[-1] in only


def as_line(name: str, claim: Claim) -> str:
    """Returns a claim as a line of ``results.jsonl``."""
    numbers = {what: float(number) for what, number in claim.numbers.items()}
    return json.dumps({"claim": name, **claim._asdict(), "numbers": numbers}, allow_nan=False)


def as_claims(lines: str) -> dict[str, Claim]:
    """Returns the claims of ``results.jsonl``."""
    rows = [json.loads(line) for line in lines.splitlines()]
    return {row.pop("claim"): Claim(**row) for row in rows}


def with_table(readme: str, found: dict[str, Claim]) -> str:
    """Returns the README with the table of these claims."""
    before, after = readme.split(BEGIN)[0], readme.split(END)[1]
    return f"{before}{BEGIN}\n{markdown(found)}\n{END}{after}"


def main(seed: int = 0, only: tuple[str, ...] = (), smoke: bool = False) -> None:
    """Computes the statements of the three articles and prints a verdict on each.

    Args:
        seed: the first of the three seeds of whatever is random.
        only: names of claims, or of files of them; then nothing is written.
        smoke: one seed in place of three, and nothing is written: seconds.
    """
    unknown = set(only) - NAMES
    if unknown:
        raise SystemExit(f"no claim is called {', '.join(sorted(unknown))}; choose of {', '.join(sorted(NAMES))}")
    began, seeds = time.perf_counter(), (seed,) if smoke else (seed, seed + 1, seed + 2)
    found = computed(seeds, only)
    console = Console() if sys.stdout.isatty() else Console(width=180)
    for table in tables(found):
        console.print(table)
    picture = io.BytesIO()
    if not only:
        figure.draw(seeds).savefig(picture, dpi=150)
    if not smoke and not only:
        lines = "\n".join(as_line(name, claim) for name, claim in found.items())
        (HERE / "results.jsonl").write_text(lines + "\n", encoding="utf-8")
        (HERE / "figure.png").write_bytes(picture.getvalue())
        readme = HERE / "README.md"
        readme.write_text(with_table(readme.read_text(encoding="utf-8"), as_claims(lines)), encoding="utf-8")
    verdicts = [each.verdict for each in found.values()]
    hold, not_hold = verdicts.count("holds"), verdicts.count("does not hold")
    partly, took = len(verdicts) - hold - not_hold, time.perf_counter() - began
    print(f"{len(verdicts)} claims in {took:.0f} s: {hold} hold, {partly} under a condition, {not_hold} do not")


if __name__ == "__main__":
    tyro.cli(main)
