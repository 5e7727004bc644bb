"""Where each KL term leads when nothing is left to chance, beside where it must lead. See README.md."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from experiments.fixed_points import modes
from experiments.fixed_points.estimators import ESTIMATORS
from experiments.fixed_points.pictures import draw_modes, draw_training
from experiments.fixed_points.predictions import Completion, predicted
from experiments.fixed_points.training import COMPLETIONS, Run, divergence, instance, problem, train

HERE = Path(__file__).parent
PREDICTABLE = ("reverse", "forward", "local_reverse", "local_forward")
"""Targets that hold the policy at one point."""
FITTED = ("k1 to go", "k2 loss, sequence", "k3 loss, sequence", "k1 loss", "k3 reward")
"""What the bump is fitted with."""
CENTRES, WIDTH = (8.0, 19.0, 32.0), 8.0
"""Where the bump starts."""


def row_of(name: str, seed: int, beta: float, steps: int) -> tuple[dict[str, Any], Run]:
    """Trains with one objective; returns what there is to say of its end, in nats, and the run."""
    drawn = instance(seed)
    known, target = problem(drawn, beta), ESTIMATORS[name].target.name
    point = predicted(known, target) if target in PREDICTABLE else None
    run = train(ESTIMATORS[name], drawn, beta, steps, point)
    last, best = run.log_probs[-1], int(np.argmax(drawn.rewards))
    row = {"estimator": name, "follows": target, "seed": seed, "beta": beta, "steps": steps}
    row["to_optimum"] = float(divergence(last, logarithms(predicted(known, "reverse"))))
    row["to_predicted"] = None if point is None else float(divergence(last, logarithms(point)))
    row["gradient"], row["gradient_at_predicted"] = run.gradient, None if point is None else run.gradient_at_point
    row |= {"reward": float(np.exp(last) @ drawn.rewards), "best_reward": float(drawn.rewards[best])}
    row |= {"forward_kl": float(divergence(run.log_probs[0], last)), "best_probability": float(np.exp(last[best]))}
    row["likeliest"], row["its_probability"] = (
        " ".join(map(str, COMPLETIONS[int(np.argmax(last))])),
        float(np.exp(np.max(last))),
    )
    return row, run


def logarithms(point: dict[Completion, float]) -> np.ndarray:
    return np.log([point[completion] for completion in COMPLETIONS])


def without_reward(name: str, seed: int, beta: float, steps: int) -> dict[str, Any]:
    """Trains from elsewhere with the KL term alone: returns the KL to the reference before and after, nats."""
    drawn = instance(seed)
    elsewhere = instance(seed + 1000).params
    run = train(ESTIMATORS[name], drawn._replace(params=elsewhere, rewards=0 * drawn.rewards), beta, steps)
    reference = logarithms(predicted(problem(drawn._replace(rewards=0 * drawn.rewards), beta), "reverse"))
    before, after = (float(divergence(run.log_probs[at], reference)) for at in (0, -1))
    return {"estimator": name, "reward_is": 0, "seed": seed, "beta": beta, "before": before, "after": after}


def fitted(name: str, centre: float, steps: int) -> tuple[dict[str, Any], np.ndarray]:
    """Fits the bump; returns where it ended, beside the nearest predicted end, and its path."""
    path = modes.fit(ESTIMATORS[name], modes.Bump(centre, float(np.log(WIDTH))), steps)
    target = ESTIMATORS[name].target.name
    ends = {"reverse": modes.mode_seeking(), "forward": [modes.mode_covering()]}.get(target, [])
    ours, theirs = modes.log_bump(*path[-1]), modes.reference()
    off = [float(divergence(ours, modes.log_bump(*end))) for end in ends]
    row = {"estimator": name, "follows": target, "start": centre, "centre": path[-1, 0], "width": path[-1, 1]}
    row |= {"to_predicted": min(off, default=None), "reverse_kl": float(np.sum(np.exp(ours) * (ours - theirs)))}
    row["forward_kl"] = float(np.sum(np.exp(theirs) * (theirs - ours)))
    row["left_mass"] = float(np.sum(np.exp(ours[: modes.MIDDLE])))
    return row, path


def table(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    """Prints some columns of some rows."""
    width = [max(11, len(column)) for column in columns]
    print("\n" + f"{'':23}" + " ".join(f"{column:>{size}}" for column, size in zip(columns, width, strict=True)))
    for row in rows:
        cells = [f"{row[c]:.3g}" if isinstance(row[c], float) else str(row[c]) for c in columns]
        print(f"{row['estimator']:23}" + " ".join(f"{cell:>{size}}" for cell, size in zip(cells, width, strict=True)))


def main(
    seed: int = 5, beta: float = 0.15, steps: int = 2000, out: Path = HERE, smoke: bool = False
) -> list[dict[str, Any]]:
    """Trains with every estimator, prints where it ends and writes results.jsonl and two pictures.

    Args:
        seed: of reference and rewards.
        beta: strength of the KL term.
        steps: of Adam.
        out: the folder that is written to.
        smoke: few estimators and steps, nothing written: seconds.
    """
    names = ("k1 to go",) if smoke else tuple(ESTIMATORS)
    steps = 50 if smoke else steps
    found = {name: row_of(name, seed, beta, steps) for name in names}
    rows = [row for row, _ in found.values()]
    print("Ends of training, KL in nats: pi* is the optimum, the predicted point that of what is followed")
    table(rows, ("follows", "to_optimum", "to_predicted", "gradient", "gradient_at_predicted"))
    table(rows, ("reward", "best_reward", "forward_kl", "likeliest", "its_probability"))
    known = problem(instance(seed), beta)
    apart = {name: logarithms(predicted(known, name)) for name in PREDICTABLE}
    for name, point in apart.items():
        print(f"KL(predicted point of {name} || pi*): {divergence(point, apart['reverse']):.3g}")
    if not smoke:
        same = train(ESTIMATORS["k1 loss"], instance(seed), 0.0, steps).log_probs
        print(f"k1 loss, largest difference to beta 0: {np.max(np.abs(same - found['k1 loss'][1].log_probs)):.2g}")
    alone = [without_reward(name, seed, beta, steps) for name in (names if smoke else FITTED)]
    print("\nWithout any reward, from another policy: KL(pi || p) before and after")
    table(alone, ("before", "after"))
    bumps = {(name, centre): fitted(name, centre, steps) for name in names[:1] if smoke for centre in CENTRES[:1]}
    if not smoke:
        bumps = {(name, centre): fitted(name, centre, steps) for name in FITTED for centre in CENTRES}
    ends = [row for row, _ in bumps.values()]
    print("\nOne bump for two modes")
    print(f"predicted: reverse {modes.mode_seeking()}, forward {modes.mode_covering()} (centre, width)")
    table(ends, ("start", "centre", "width", "to_predicted", "reverse_kl", "forward_kl", "left_mass"))
    if not smoke:
        text = "".join(json.dumps(row) + "\n" for row in rows + alone + ends)
        (out / "results.jsonl").write_text(text, encoding="utf-8")
        runs = {name: run for name, (_, run) in found.items()}
        points = {name: apart.get(row["follows"]) for name, (row, _) in found.items()}
        draw_training(runs, points, apart["reverse"], beta).savefig(out / "figure.png", dpi=130)
        draw_modes({place: path for place, (_, path) in bumps.items()}).savefig(out / "modes.png", dpi=130)
    return rows + alone + ends


if __name__ == "__main__":
    tyro.cli(main)
