"""Which gradient the KL terms of other libraries follow, on-policy and off-policy. See README.md."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tyro

from experiments.migration.rows import REDUCTION, ROWS, SURROGATES, TERMS, Row, built, replacement
from grpo_jax.advantages import leave_one_out
from grpo_jax.losses import Objective, declaration, reductions
from grpo_jax.models import prefix_tabular
from grpo_jax.oracle import Tables, enumerated, expectation, judge, multisets, random_instance, tables

HERE = Path(__file__).parent
ROUNDING = 1e-12
"""Relative distance up to which a gradient is the same in float64."""


def main(
    seed: int = 0,
    instances: int = 5,
    results: Path = HERE / "results.jsonl",
    figure: Path = HERE / "figure.png",
    smoke: bool = False,
) -> str:
    """Certifies every constructor of `grpo_jax.compat` by listing all groups of completions of a random policy.

    Args:
        seed: which random policies, references, samplers and rewards.
        instances: how many of each; told are the median and the range of the distances.
        results: the file that is written, one line a configuration.
        figure: the picture that is written.
        smoke: three configurations on a tiny policy, nothing written: seconds.
    """
    rows, size, group_size = (ROWS[:2] + ROWS[6:7], 2, 2) if smoke else (ROWS, 3, 3)
    listed = enumerated(prefix_tabular(size, size), size)
    drawn = [random_instance(listed, seed + number) for number in range(instances)]
    sampled = {name: [tables(each, name == "off") for each in drawn] for name in ("on", "off")}
    found = []
    for row in rows:
        found.append(described(row) | certified(built(row.code), sampled, group_size))
        print(f"{row.code}: {found[-1]['sentence_on']}", flush=True)
    for letter in TERMS:
        row = next(row for row in ROWS if row.move_to == letter)
        found.append(described(row) | certified(replacement(row), sampled, group_size) | {"replaces": row.code})
    text = table(found)
    print(text)
    wrong = [line["code"] for line in found if line["wrong"]]
    exact = sum(line[f"agree_{behaviour}"] for line in found for behaviour in sampled)
    print(f"{2 * instances * len(found)} findings, {exact} as declared, {len(wrong)} configurations wrong: {wrong}")
    if not smoke:
        results.write_text("".join(json.dumps(line) + "\n" for line in found), encoding="utf-8")
        draw(found, figure)
    return text


def described(row: Row) -> dict[str, Any]:
    """What is known of a configuration without computing: its options and all that is declared."""
    whole, alone, instead = built(row.code), built(row.unclamped or row.code), replacement(row)
    parts = alone.parts._replace(advantage=leave_one_out(), reduction=reductions.sequence_mean_of_token_sum())
    clamped = " within the clamp" if row.unclamped else ""
    on = declaration.on_policy(parts).name
    off = declaration.off_policy(parts).name
    return row._asdict() | {
        "term_on": on + clamped,
        "term_off": off + ("" if off == "none" else clamped),
        "reduction": whole.parts.reduction.name,
        "instead_on": instead.target.name,
        "instead_off": instead.off_policy_target.name,
    }


def certified(objective: Objective, sampled: dict[str, list[Tables]], group_size: int) -> dict[str, Any]:
    """What was found, on-policy and off-policy, in all instances."""
    found: dict[str, Any] = {"wrong": False}
    for behaviour, drawn in sampled.items():
        records, distances = [], []
        for known in drawn:
            groups = multisets(len(known.mask), group_size)
            exact = expectation(objective, known, groups, reduction=objective.parts.reduction)
            records.append(judge(objective, known, exact, group_size, behaviour == "off"))
            distances.append(distance(exact.kl, known.targets["reverse"]))
        found["wrong"] |= any(record.wrong for record in records)
        found |= {
            f"whole_{behaviour}": records[0].declared,
            f"agree_{behaviour}": sum(record.agrees for record in records),
            f"sentence_{behaviour}": records[0].sentence,
            f"distances_{behaviour}": sorted(distances),
        }
    return found


def distance(gradient: np.ndarray, target: np.ndarray) -> float:
    """Relative distance at the best scale, ``min_{c >= 0} |c g - t| / |t|``: 0 same direction, 1 no component along it.

    The scale is left to the learning rate, because reductions by lengths change it.
    """
    size = float(gradient @ gradient)
    scale = max(0.0, float(gradient @ target)) / size if size > 1e-24 else 0.0
    return float(np.linalg.norm(scale * gradient - target) / np.linalg.norm(target))


def table(found: Sequence[dict[str, Any]]) -> str:
    """The findings in Markdown."""
    heads = ("library", "its options", "here", "KL term alone, on / off", "whole, on / off")
    heads += ("distance to `reverse`, on / off", "move to", "follows, on / off")
    lines = [" | ".join(("", *heads, "")).strip(), "|" + "---|" * len(heads)]
    for line in found:
        names = (line["library"], line["options"], f"`{line['code']}`")
        if "replaces" in line:
            names = ("**ours**", f"{line['move_to']} in place of `{line['replaces']}`", f"`{TERMS[line['move_to']]}`")
        moved = ("", "") if "replaces" in line else (line["move_to"], f"{line['instead_on']} / {line['instead_off']}")
        cells = (
            *names,
            "" if "replaces" in line else f"{line['term_on']} / {line['term_off']}",
            f"{line['whole_on']} / {line['whole_off']}",
            f"{written(line['distances_on'])} / {written(line['distances_off'])}",
            *moved,
        )
        lines.append(" | ".join(("", *cells, "")).strip())
    legend = []
    for letter, code in TERMS.items():
        also = f" and `{SURROGATES[letter]}`" if letter in SURROGATES else ""
        legend.append(f"{letter}: `{code}`, with `{REDUCTION}`{also}")
    return "\n".join([*lines, "", *(f"- {line}" for line in legend)])


def written(distances: Sequence[float]) -> str:
    """Median and range; 0 where all are, up to the rounding of float64."""
    if max(distances) < ROUNDING:
        return "0"
    return f"{median(distances):.2f} ({min(distances):.2f} to {max(distances):.2f})"


def draw(found: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws the distances to the gradient of the reverse KL, on-policy and off-policy."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 0.36 * len(found) + 1.6), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(found))[::-1]
    for shift, behaviour, colour in ((0.2, "on", "tab:blue"), (-0.2, "off", "tab:orange")):
        ranges = [line[f"distances_{behaviour}"] for line in found]
        middle = np.array([median(each) for each in ranges])
        reach = np.abs(np.array([(each[0], each[-1]) for each in ranges]).T - middle)
        axes.barh(places + shift, middle, 0.38, color=colour, label=f"{behaviour}-policy: median")
        axes.errorbar(middle, places + shift, xerr=reach, fmt="none", ecolor="0.3", elinewidth=0.8, capsize=1.5)
        for place, each in zip(places, ranges, strict=True):
            if each[-1] < ROUNDING:
                axes.text(0.006, place + shift, "0", va="center", fontsize=7, color=colour)
    labels = [f"{line['move_to']}: {TERMS[line['move_to']]}" if "replaces" in line else line["code"] for line in found]
    axes.set_yticks(places, [label.replace("gj.compat.", "").replace("gj.", "") for label in labels], fontsize=8)
    axes.set_xlim(0, 1.02)
    axes.set_ylim(-0.7, len(found) - 0.3)
    policies = len(found[0]["distances_on"])
    axes.set_xlabel(
        "relative distance to the gradient of the reverse KL, at the best scale (0: same direction)\n"
        f"bars: median of {policies} random policies; lines: their range"
    )
    axes.set_title(
        "How far the KL terms of other libraries are from reverse KL; A, B, C: what to move to", fontsize="medium"
    )
    figure.legend(loc="outside upper right", ncols=2, fontsize="small")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    tyro.cli(main)
