"""grpo-jax diagnose and report: what a run's measures say, without its model."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from grpo_jax.report import read_runs, write_report


@dataclass(frozen=True)
class Diagnose:
    """Print what is wrong with a run, each finding with its likely cause and a remedy.

    The same rules look at a run while it trains. The exit status is 0 whatever they find.

    Attributes:
        run: the run's folder.
    """

    run: tyro.conf.Positional[Path]

    def execute(self) -> int:
        """Prints findings; returns the exit status."""
        (run,) = read_runs([self.run])
        for finding in run.findings:
            print(finding)
        if not run.findings:
            print(f"nothing to report after {run.step} updates")
        return 0


@dataclass(frozen=True)
class Report:
    """Write a page about one or several runs: curves, configurations, certificates, diagnosis, samples.

    It is one file that needs no other and no network.

    Attributes:
        runs: the runs' folders.
        output: the page; one that is there is replaced.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    output: Path = Path("report.html")

    def execute(self) -> int:
        """Writes the page; returns the exit status."""
        if not self.output.parent.is_dir():
            raise ValueError(f"--output {self.output}: there is no folder {self.output.parent}; make it first")
        if self.output.is_dir():
            raise ValueError(f"--output {self.output} is a folder; name a file in it")
        write_report(read_runs(self.runs), self.output)
        print(self.output)
        return 0
