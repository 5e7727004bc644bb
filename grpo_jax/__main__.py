"""The command line: train, sweep, evaluate, sample, export, diagnose, report, certify, plan.

``grpo-jax train --help`` lists every option of a run.
"""

import sys
from collections.abc import Sequence
from typing import Annotated

import tyro

from grpo_jax.commands import Certify, Diagnose, Evaluate, Export, Plan, Report, Sample, Sweep, Train, starting_point
from grpo_jax.hosts import HostFailed
from grpo_jax.interruption import Interrupted
from grpo_jax.memory import keep_freed_memory
from grpo_jax.train import TrainingStopped
from grpo_jax.tuning import SweepFailed

Command = Train | Sweep | Evaluate | Sample | Export | Diagnose | Report | Certify | Plan


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: the words after the program's name; None: those it was called with.

    Returns:
        The exit status: 0; 1 where the run failed; 2 where the arguments or the files do not fit; 143 where SIGTERM
        ended the run, and 130 where SIGINT did, after the step under way was saved.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        command = _parse(words)
        keep_freed_memory()
        return command.execute()
    except Interrupted as error:
        return _failed(str(error), error.status)
    except KeyboardInterrupt:
        return _failed("interrupted; --resume --out FOLDER continues from the last checkpoint", 130)
    except (TrainingStopped, SweepFailed, HostFailed) as error:
        return _failed(error, 1)
    except (ValueError, OSError, ImportError) as error:
        return _failed(error, 2)


def _failed(error: Exception | str, status: int) -> int:
    print(f"grpo-jax: {error}", file=sys.stderr)
    return status


def _parse(words: list[str]) -> Command:
    start = Train(config=starting_point(words)) if words[:1] == ["train"] else Train()
    tuned = Sweep(config=starting_point(words)) if words[:1] == ["sweep"] else Sweep()
    planned = Plan(config=starting_point(words)) if words[:1] == ["plan"] else Plan()
    commands = (
        Annotated[Train, tyro.conf.subcommand("train", default=start)]
        | Annotated[Sweep, tyro.conf.subcommand("sweep", default=tuned)]
        | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
        | Annotated[Sample, tyro.conf.subcommand("sample")]
        | Annotated[Export, tyro.conf.subcommand("export")]
        | Annotated[Diagnose, tyro.conf.subcommand("diagnose")]
        | Annotated[Report, tyro.conf.subcommand("report")]
        | Annotated[Certify, tyro.conf.subcommand("certify")]
        | Annotated[Plan, tyro.conf.subcommand("plan", default=planned)]
    )
    return tyro.cli(commands, prog="grpo-jax", args=words, description=__doc__)  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    sys.exit(main())
