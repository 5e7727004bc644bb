"""What is tried on the exact model: all rules, what the formulas as written do, and gains against speeds."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from experiments.beta_control import article
from experiments.beta_control.exact import AT_ONCE, SPEED, Worlds, simulation
from experiments.beta_control.measures import late, off_target, overshoot, settling
from experiments.beta_control.rules import GAIN, LOOSE, PER_TOKEN, RIGHT, TARGET, WRONG, clipped, integral, proportional

IDLE, LOST = 1000, 1000
"""Updates without a reward at the start, and the update whose KL is not finite."""
WRITTEN = {
    "proportional, as written": article.proportional(LOOSE, TARGET, GAIN / TARGET),
    "proportional, library": proportional(LOOSE),
    "integral, as written": article.proportional_integral(LOOSE, TARGET, 100),
    "integral, library": integral(LOOSE),
}
"""Both formulas of the article, and the same in the library."""
FORMS = {"proportional": proportional, "clipped": clipped, "integral": integral}
GAINS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
SPEEDS = (0.02, SPEED, 0.5, AT_ONCE)


def trials(given: Worlds, steps: int) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Runs everything but the sweep.

    Args:
        given: problems.
        steps: updates after which a run ends; those with an idle start have ``IDLE`` more.

    Returns:
        A row for each trial and rule, of lists with one number a problem; and the runs, by trial and rule.
    """
    plans = {
        "aimed right": (RIGHT, {}),
        "aimed wrong": (WRONG, {}),
        "fed per token": (PER_TOKEN, {}),
        f"no reward for {IDLE} updates": (WRITTEN, {"idle": IDLE}),
        f"KL not finite at update {LOST}": (WRITTEN, {"lost": LOST}),
    }
    rows, runs = [], {}
    for trial, (rules, more) in plans.items():
        runs[trial] = simulation(rules, steps + more.get("idle", 0), **more)(given, SPEED)
        rows += [{"trial": trial, "rule": name} | _measured(run, more) for name, run in runs[trial].items()]
    return rows, runs


def _measured(run: Mapping[str, np.ndarray], more: Mapping[str, int]) -> dict[str, list[float | None]]:
    kl, beta = run["kl"][:, more.get("idle", 0) :], run["beta"]
    found = {
        "settling": settling(kl, TARGET),
        "overshoot": overshoot(kl, TARGET),
        "off_target": off_target(kl, TARGET),
        "reward": np.mean(late(run["reward"]), axis=1),
        "lowest_beta": np.min(beta, axis=1),
        "highest_beta": np.max(beta, axis=1),
        "below_zero": np.any(beta < 0, axis=1),
    }
    return {name: _listed(values) for name, values in found.items()}


def sweep(given: Worlds, steps: int) -> list[dict[str, Any]]:
    """Runs every form with every gain, on policies of every speed; returns a row for each."""
    known = {f"{form} {gain:g}": (form, gain) for form in FORMS for gain in GAINS}
    rules = {name: FORMS[form](LOOSE, gain=gain) for name, (form, gain) in known.items()}
    run, rows = simulation(rules, steps), []
    for speed in SPEEDS:
        for name, found in run(given, speed).items():
            times, beyond = settling(found["kl"], TARGET), overshoot(found["kl"], TARGET)
            rows.append({"form": known[name][0], "gain": known[name][1], "speed": speed})
            rows[-1] |= {"settling": _listed(times), "overshoot": _listed(beyond)}
    return rows


def _listed(values: Iterable[float]) -> list[float | None]:
    """Five digits of each; None where it is not finite."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]
