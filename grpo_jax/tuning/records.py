"""The folder of a sweep: which run it starts from, what its runs are called, and what came of each."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from grpo_jax.config import Config, load, to_dict
from grpo_jax.metrics import write_json, write_text
from grpo_jax.train import TrainingStopped

START, RECORDS = "start.json", "sweep.jsonl"


class Outcome(NamedTuple):
    """What came of a run; a line of sweep.jsonl.

    Attributes:
        run: name of its folder in the sweep's.
        seed: of the run.
        outcome: "finished"; "diverged", where training stopped because too many updates were not finite; "error".
        reward: mean reward of greedy completions of held-out prompts after training; None where it did not finish.
        kl: KL to the reference in the last update, nats per completion; None where none was measured.
        seconds: how long it trained; None where it did not finish.
        message: what went wrong; "" where it finished.
    """

    run: str
    seed: int
    outcome: str
    reward: float | None = None
    kl: float | None = None
    seconds: float | None = None
    message: str = ""


def opened(folder: Path, config: Config) -> tuple[dict[str, Outcome], Callable[[Outcome], None]]:
    """Opens the folder of a sweep, new or begun.

    Args:
        folder: made where it is not there.
        config: the run that the sweep starts from.

    Returns:
        What came of its runs so far, by their names, and a function that adds to that.

    Raises:
        ValueError: the folder is of a sweep that starts from another run, or of something else.
    """
    start, file = folder / START, folder / RECORDS
    if start.is_file():
        if load(start) != config:
            differing = ", ".join(options(load(start), config))
            raise ValueError(
                f"{folder} holds a sweep that starts from another run, which differs in {differing}. "
                f"Go on with it by --config {start}, or name another folder with --out"
            )
    elif folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty and not the folder of a sweep; name another one with --out")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(start, to_dict(config))
    *lines, _unfinished = file.read_text(encoding="utf-8").split("\n") if file.is_file() else [""]
    write_text(file, "".join(f"{line}\n" for line in lines))  # without what a killed process left unfinished
    known = {outcome.run: outcome for outcome in (Outcome(**json.loads(line)) for line in lines)}

    def add(outcome: Outcome) -> None:
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(outcome._asdict()) + "\n")

    return known, add


def outcome_of(run: Callable[..., Mapping[str, Any]], config: Config, folder: Path) -> Outcome:
    """Trains, from where the run stopped if it has begun, and returns what came of it.

    Args:
        run: `grpo_jax.train.train`, or what stands in for it.
        config: the run.
        folder: its own.

    Raises:
        BlockingIOError: another process writes to the folder.
    """
    try:
        summary = run(config, folder, resume=(folder / "config.json").is_file())
    except BlockingIOError:
        raise
    except TrainingStopped as error:
        return Outcome(folder.name, config.seed, "diverged", message=str(error))
    except Exception as error:  # whatever a run dies of, the others may live
        return Outcome(folder.name, config.seed, "error", message=f"{type(error).__name__}: {error}")
    reward, kl, seconds = (summary[name] for name in ("accuracy_after", "kl", "seconds"))
    if not math.isfinite(reward):
        return Outcome(folder.name, config.seed, "error", message="no completion of a held-out prompt could be scored")
    return Outcome(folder.name, config.seed, "finished", reward, kl, seconds)


def options(start: Config, config: Config) -> dict[str, Any]:
    """Returns the fields in which a run differs from another, by their places, as in ``update.learning_rate``."""

    def flat(values: Mapping[str, Any], place: str = "") -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in values.items():
            found |= flat(value, f"{place}{name}.") if isinstance(value, dict) else {f"{place}{name}": value}
        return found

    before = flat(to_dict(start))
    return {name: value for name, value in flat(to_dict(config)).items() if value != before[name]}


def run_name(start: Config, config: Config) -> str:
    """Returns the name of a run's folder: in what it differs from the sweep's start, and its seed."""
    differing = options(start, config) | {"seed": config.seed}
    return ",".join(f"{name}={value}" for name, value in differing.items())
