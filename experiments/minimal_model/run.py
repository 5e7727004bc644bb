"""Bias and variance of KL gradients in the article's minimal model, exactly and from samples. See README.md."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from experiments.minimal_model.configurations import ARTICLE, OFF_POLICY, OURS, Configuration
from experiments.minimal_model.exact import LENGTHS, A, B, Instance, kl_gradients, moments, parameters
from experiments.minimal_model.pictures import draw_off_policy, draw_on_policy
from experiments.minimal_model.sampled import Rounds

HERE = Path(__file__).parent
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
"""How far the sampler has gone from A (0) to B (1), and on."""
FIXED_LENGTH = 10
"""Tokens of the completions on which the sampler is moved."""


def published() -> dict[tuple[int, str], float]:
    """Returns the readable points of the article's figure by length and column, log10."""
    lines = (HERE / "published.csv").read_text(encoding="utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return {(int(row["T"]), name): float(value) for row in rows for name, value in row.items() if name != "T" and value}


def differences(rows: Sequence[dict[str, Any]]) -> dict[tuple[int, str], float]:
    """Returns log10(exact) - published where the article's point is readable and no Monte-Carlo floor.

    Args:
        rows: of `on_policy`; the floor is the squared bias of what is unbiased.
    """
    points, found = published(), {}
    for row in rows:
        columns = {each.name: each.published for each in ARTICLE}
        for ours, theirs in (("bias2", "bias2_"), ("variance", "var_")):
            place = (row["length"], theirs + columns.get(row["configuration"], ""))
            if place in points and place[1] != "bias2_k1_reward":
                found[place] = float(np.log10(row[ours])) - points[place]
    return found


def rms(values) -> float:
    return float(np.sqrt(np.mean(np.square(list(values)))))


def on_policy(
    configurations: Sequence[Configuration], lengths: Sequence[int], samples: int, rounds: Rounds | None = None
) -> list[dict[str, Any]]:
    """Returns squared bias and variance of each configuration at each length, where A samples and B is the reference.

    Args:
        configurations: what to measure.
        lengths: of the completions, tokens.
        samples: completions whose mean gradient the variance is of.
        rounds: measures the same from samples; None: only exactly.
    """
    instance, rows = Instance(A, B, A), []
    targets = kl_gradients(A, B)[1]
    for length in lengths:
        exact = moments(configurations, instance, length)
        measured = None if rounds is None else rounds.moments(configurations, instance, length, seed=length)
        for i, each in enumerate(configurations):
            target = targets[length - 1]
            row = {"sampler": "A", "configuration": each.name, "length": length, "follows": each.objective.target.name}
            row |= {"bias2": squared(exact.mean[i] - target), "variance": float(exact.variance[i]) / samples}
            row["relative_bias"] = float(np.sqrt(row["bias2"]) / np.linalg.norm(target))
            if measured is not None:
                row["sampled_bias2"] = squared(measured.mean[i] - target)
                row["sampled_variance"] = float(measured.variance[i])
            rows.append(row)
    return rows


def off_policy(
    configurations: Sequence[Configuration], lengths: Sequence[int], shares: Sequence[float], samples: int
) -> list[dict[str, Any]]:
    """Returns the same, exactly, where a policy on the line from A to B samples: at every length, at every share."""
    places = [(length, 0.5) for length in lengths] + [(FIXED_LENGTH, share) for share in shares]
    targets, rows = kl_gradients(A, B)[1], []
    for length, share in dict.fromkeys(places):
        sampler = parameters(*(float(A[name] + share * (B[name] - A[name])) for name in ("intercept", "slope")))
        exact = moments(configurations, Instance(A, B, sampler), length)
        distance = float(kl_gradients(sampler, A)[0][length - 1])
        for i, each in enumerate(configurations):
            target = targets[length - 1]
            row = {"sampler": share, "configuration": each.name, "length": length}
            row |= {"follows": each.objective.off_policy_target.name, "distance": max(distance, 0.0)}
            row |= {"bias2": squared(exact.mean[i] - target), "variance": float(exact.variance[i]) / samples}
            row["relative_bias"] = float(np.sqrt(row["bias2"]) / np.linalg.norm(target))
            rows.append(row)
    return rows


def squared(difference: np.ndarray) -> float:
    return float(np.sum(np.square(difference)))


def table(title: str, rows: Sequence[dict[str, Any]], column: str, key: str) -> None:
    """Prints one quantity by configuration (down) and length or share (across)."""
    across = list(dict.fromkeys(row[key] for row in rows))
    print(f"\n{title}\n{'':34}" + "".join(f"{each:>9}" for each in across))
    for name in dict.fromkeys(row["configuration"] for row in rows):
        cells = [row[column] for row in rows if row["configuration"] == name]
        print(f"{name:34}" + "".join(f"{cell:9.2g}" for cell in cells))


def relative(rows: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Returns the rows with their variances divided by that of one configuration at the same length."""
    unit = {row["length"]: row["variance"] for row in rows if row["configuration"] == name}
    return [{**row, "variance": row["variance"] / unit[row["length"]]} for row in rows]


def main(rounds: int = 200, samples: int = 1000, out: Path = HERE, smoke: bool = False) -> list[dict[str, Any]]:
    """Measures everything, prints the tables and writes results.jsonl and two pictures.

    Args:
        rounds: of samples, as in the article.
        samples: in a round.
        out: the folder that is written to.
        smoke: few configurations, rounds, lengths and shares, nothing written: seconds.
    """
    lengths, shares = (LENGTHS[:3], SHARES[:2]) if smoke else (LENGTHS, SHARES)
    rounds = 5 if smoke else rounds
    ours, theirs = (ARTICLE[:3] + OURS[:1], OFF_POLICY[:3]) if smoke else (ARTICLE + OURS, OFF_POLICY)
    here = on_policy(ours, lengths, samples, Rounds(rounds, samples))
    away = off_policy(theirs, lengths, shares, samples)
    table("Relative bias |mean - gradient| / |gradient|, A samples, by length", here, "relative_bias", "length")
    table(f"Variance of the mean of {samples} samples, by length", here, "variance", "length")
    table("The same over that of k1 reward, by length", relative(here, "k1 reward"), "variance", "length")
    at_half = [row for row in away if row["sampler"] == 0.5]
    at_length = sorted((row for row in away if row["length"] == FIXED_LENGTH), key=lambda row: row["sampler"])
    table("Relative bias, the policy halfway to B samples, by length", at_half, "relative_bias", "length")
    table("Variance, the policy halfway to B samples, by length", at_half, "variance", "length")
    table(f"Relative bias at {FIXED_LENGTH} tokens, by the sampler's share of B", at_length, "relative_bias", "sampler")
    table(f"Variance at {FIXED_LENGTH} tokens, by the sampler's share of B", at_length, "variance", "sampler")
    nearest = {row["configuration"]: row["variance"] for row in at_length if row["sampler"] == 0}
    grown = [{**row, "variance": row["variance"] / nearest[row["configuration"]]} for row in at_length]
    table("The same over that of samples of A, by share", grown, "variance", "sampler")
    distances = [row for row in at_length if row["configuration"] == OFF_POLICY[0].name]
    table(f"KL(sampler || A) at {FIXED_LENGTH} tokens, nats", distances, "distance", "sampler")
    off = differences(here)
    where = max(off, key=lambda place: abs(off[place]))
    print(f"\nlog10 exact - published: rms {rms(off.values()):.3f} over {len(off)} points,", end=" ")
    print(f"largest {off[where]:+.2f} ({where[1]} at length {where[0]})")
    for name in dict.fromkeys(name for _, name in off):
        print(f"  {name}: rms {rms(value for place, value in off.items() if place[1] == name):.3f}")
    if not smoke:
        text = "".join(json.dumps(row) + "\n" for row in here + away)
        (out / "results.jsonl").write_text(text, encoding="utf-8")
        draw_on_policy(here, published(), rounds, samples).savefig(out / "figure.png", dpi=130)
        draw_off_policy(at_half, at_length, samples).savefig(out / "off_policy.png", dpi=130)
    return here + away


if __name__ == "__main__":
    tyro.cli(main)
