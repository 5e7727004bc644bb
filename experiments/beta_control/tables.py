"""What came of it, as tables and lines."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from experiments.beta_control.measures import late, off_target, overshoot, settling
from experiments.beta_control.rules import TARGET
from experiments.small_scale.campaign import Rows
from experiments.small_scale.records import curve, last
from experiments.small_scale.seeds import in_words, mean_interval
from experiments.small_scale.setting import Setting
from experiments.small_scale.tables import markdown

WINDOW = 4
"""Looks of a running mean: the KL of so few completions is noisy."""
COMPARED = "constant"


def steered(row: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Returns a training's KL as a running mean ``[S, N]``, and the last update of each mean ``[N]``."""
    every = Setting(*row["setting"]).every
    seen = curve(row, "kl_per_sequence")[:, 1:]
    kl = np.mean(np.lib.stride_tricks.sliding_window_view(seen, WINDOW, axis=1), axis=-1)
    return kl, every * (WINDOW + np.arange(kl.shape[1]))


def settled(row: dict[str, Any]) -> np.ndarray:
    """Returns the update from which on each seed's KL stays near its target ``[S]``, infinity if it does not."""
    kl, updates = steered(row)
    first = settling(kl, TARGET)
    known = np.isfinite(first)
    return np.where(known, updates[np.where(known, first, 0).astype(int)], np.inf)


_ENDS: dict[str, Callable[[dict[str, Any]], np.ndarray]] = {
    "overshoot": lambda row: overshoot(steered(row)[0], TARGET),
    "off target": lambda row: off_target(steered(row)[0], TARGET),
    "KL at the end": lambda row: np.mean(late(curve(row, "kl_per_sequence")[:, 1:]), axis=1),
    "beta at the end": lambda row: np.mean(late(curve(row, "beta")), axis=1),
    "accuracy": lambda row: last(row, "accuracy_sums"),
}


def trained(rows: Rows) -> str:
    """Returns the trainings of the decoder as a Markdown table: mean over seeds and half of the 95 % interval."""
    lines = [[row["rule"], told(settled(row)), *(cell(of(row)) for of in _ENDS.values())] for row in rows.values()]
    return markdown(["rule", "settled", *_ENDS], lines)


def differences(rows: Rows) -> str:
    """Returns a line for each training about accuracy and KL beside those of the constant, paired by seed."""
    base, lines = rows[COMPARED,], []
    for (name,), row in rows.items():
        if name == COMPARED:
            continue
        of = {measure: _ENDS[measure] for measure in ("accuracy", "KL at the end")}
        said = [f"{measure} {in_words(end(row) - end(base))}" for measure, end in of.items()]
        lines.append(f"{name} against {COMPARED}: {'; '.join(said)}")
    return "\n".join(lines)


def exactly(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the trials on the exact model as a Markdown table, over problems as above."""
    names = ["overshoot", "off_target", "reward"]
    lines = []
    for row in rows:
        low, high = (_numbers(row[name]) for name in ("lowest_beta", "highest_beta"))
        span = "not finite" if np.isnan([low, high]).any() else f"{low.min():.2g} to {high.max():.2g}"
        below = int(sum(row["below_zero"]))
        span += f"; below 0 in {below}/{len(low)}" if below else ""
        cells = [cell(_numbers(row[name])) for name in names]
        lines.append([row["trial"], row["rule"], told(times_of(row)), *cells, span])
    heads = ["trial", "rule", "settled", "overshoot", "off target", "reward", "lowest and highest beta"]
    return markdown(heads, lines)


def swept(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the settling times of the sweep as a Markdown table, a column for each speed of the policy."""
    speeds = list(dict.fromkeys(row["speed"] for row in rows))
    found = {(row["form"], row["gain"], row["speed"]): told(times_of(row)) for row in rows}
    tried = dict.fromkeys((row["form"], row["gain"]) for row in rows)
    lines = [[form, f"{gain:g}", *(found[form, gain, speed] for speed in speeds)] for form, gain in tried]
    return markdown(["rule", "gain", *(f"speed {speed:g}" for speed in speeds)], lines)


def told(times: np.ndarray) -> str:
    """Returns how many runs settled, and the median of their times with the range."""
    known = times[np.isfinite(times)]
    if not len(known):
        return f"0/{len(times)}"
    return f"{len(known)}/{len(times)}: {np.median(known):g} ({known.min():g} to {known.max():g})"


def cell(values: np.ndarray) -> str:
    """Returns a mean and half of its 95 % interval."""
    if not np.isfinite(values).all():
        return "not finite"
    interval = mean_interval(values)
    half = interval.high - interval.mean
    return f"{interval.mean:.3g} ±{half if half > 1e-12 * abs(interval.mean) else 0:.2g}"


def times_of(row: dict[str, Any]) -> np.ndarray:
    """Returns the settling times of a row of the exact model, infinity where it did not settle."""
    times = _numbers(row["settling"])
    return np.where(np.isnan(times), np.inf, times)


def _numbers(values: Iterable[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values], float)
