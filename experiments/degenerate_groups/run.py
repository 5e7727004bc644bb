"""Groups of equal rewards through training: what they are worth, and what each rule for them does. See README.md."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from experiments.degenerate_groups import exact
from experiments.degenerate_groups.cases import (
    ADVANTAGES,
    BETA,
    FUSED,
    KEEP,
    RESAMPLE,
    ROUNDS,
    RULES,
    SHAPED,
    SMALL,
    cases,
    objective_of,
)
from experiments.degenerate_groups.picture import draw
from experiments.degenerate_groups.shares import shares
from experiments.small_scale.campaign import Rows, campaign
from experiments.small_scale.loop import Training
from experiments.small_scale.records import curve
from experiments.small_scale.seeds import in_words
from experiments.small_scale.setting import SMOKE, Setting, policy_of
from experiments.small_scale.sums import problems
from experiments.small_scale.verdict import OUTSIDE, table

HERE = Path(__file__).parent
LABELS = ("advantage", "rule", "beta")
COLUMNS = ("accuracy_sums", *OUTSIDE, "reverse_kl", "forward_kl", "entropy", "degenerate_groups", "gradient_share")


def moved(rows: Rows) -> str:
    """Returns a line for each run: how much of the gradient was that of groups of equal rewards, at all looks."""
    lines = []
    for name, row in rows.items():
        found = curve(row, "gradient_share")
        lines.append(
            f"{_words(name)}: their gradient {found.min():.3g} to {found.max():.3g} of the whole, "
            f"mean {found.mean():.3g}"
        )
    return "\n".join(lines)


def differences(rows: Rows) -> str:
    """Returns a line for each rule beside keeping such groups at the same beta, and for the KL term, paired by seed."""
    pairs = []
    for advantage in ADVANTAGES:
        keep, without = (advantage, KEEP, BETA), (advantage, KEEP, 0.0)
        pairs += [((advantage, rule, BETA), keep) for rule in (*RULES, RESAMPLE) if rule != KEEP]
        pairs += [((advantage, SHAPED, 0.0), without), (keep, without)]
    pairs += [(("GRPO", FUSED, beta), ("GRPO", KEEP, beta)) for beta in (SMALL, BETA)]
    said = {pair: _changes(rows[pair[0]], rows[pair[1]]) for pair in pairs}
    return "\n".join(f"{_words(name)} against {_words(other)}: {told}" for (name, other), told in said.items())


def same_samples(rows: Rows) -> str:
    """Returns a line for each advantage: resampling against keeping after the same number of sampled completions."""
    lines = []
    for advantage in ADVANTAGES:
        row, keep = rows[advantage, RESAMPLE, BETA], rows[advantage, KEEP, BETA]
        setting = Setting(*row["setting"])
        looks = setting.updates // setting.every
        spent = setting.updates // ROUNDS * ROUNDS * setting.prompts * setting.group
        said = _changes(row, keep, looks // ROUNDS, looks // ROUNDS * ROUNDS)
        lines.append(f"{advantage} beta {BETA:g}, {RESAMPLE} against {KEEP}, {spent} completions each: {said}")
    return "\n".join(lines)


def _words(name: tuple) -> str:
    return " ".join(map(str, name))


def _changes(row: dict[str, Any], other: dict[str, Any], look: int = -1, other_look: int = -1) -> str:
    def of(each: dict[str, Any], at: int) -> dict[str, np.ndarray]:
        outside = np.mean([curve(each, kind)[:, at] for kind in OUTSIDE], axis=0)
        inside, drift = (curve(each, name)[:, at] for name in ("accuracy_sums", "reverse_kl"))
        return {"accuracy": inside, "out of domain": outside, "KL": drift}

    theirs, said = of(other, other_look), []
    for measure, values in of(row, look).items():
        said.append(f"{measure} {in_words(values - theirs[measure])}")
    return "; ".join(said)


def main(seeds: int = 6, out: Path = HERE, smoke: bool = False) -> list[dict[str, Any]]:
    """Trains with every rule, prints what came of it, and writes results.jsonl and figure.png.

    Args:
        seeds: of each run, each with a warm start of its own.
        out: the folder that is written to; runs that are recorded there are not repeated.
        smoke: a few updates without a warm start and one exact price, nothing written: seconds.
    """
    if smoke:
        return [_smoke()]
    print(exact.price())
    rows = campaign(cases(), Setting(), seeds, out / "results.jsonl", shares)
    print(table(rows, LABELS, COLUMNS))
    for told in (moved, differences, same_samples):
        print(told(rows))
    draw(rows).savefig(out / "figure.png", dpi=110)
    return list(rows.values())


def _smoke() -> dict[str, Any]:
    """Resamples for a few updates of an untaught policy, which is never right: every group is one of equal rewards."""
    case = next(case for case in cases() if case.labels["rule"] == RESAMPLE)
    training = Training(case.objective, SMOKE, 0, rounds=case.rounds)
    shared = jnp.float32(case.beta), jnp.int32(0), problems("sums", False, 50)
    params = policy_of(SMOKE).init(key=jax.random.key(0))
    seen = jax.jit(training.run)(params, jax.random.key(1), shared)[1]
    row = case.labels | {name: np.asarray(values).tolist() for name, values in seen.items()}
    print(row)
    print(f"masked, the KL gradient is off by {exact.error(objective_of('RLOO', 'mask'), 0.0):.3g}")
    return row


if __name__ == "__main__":
    tyro.cli(main)
