"""What a rule finds in a run, and how it reads."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from grpo_jax.config import Config
from grpo_jax.metrics import Row, write_text


class Finding(NamedTuple):
    """Something wrong with a run.

    Attributes:
        name: of the fault, the same wherever it is found; a run is told once of each.
        first: first step that the evidence is from.
        last: last step that it is from.
        measure: name of the measure, as in metrics.jsonl.
        value: its number, in the measure's units.
        evidence: what was measured, as a sentence without a full stop.
        cause: the likely cause.
        remedy: what to do.
    """

    name: str
    first: int
    last: int
    measure: str
    value: float
    evidence: str
    cause: str
    remedy: str

    def __str__(self) -> str:
        where = f"step {self.last}" if self.first == self.last else f"steps {self.first} to {self.last}"
        title = self.name.replace("_", " ")
        return f"{title} ({where}): {self.evidence}.\n  likely cause: {self.cause}\n  remedy: {self.remedy}"


@runtime_checkable
class Rule(Protocol):
    """Looks for one fault; a factory binds its thresholds."""

    def __call__(self, rows: Sequence[Row], config: Config) -> Finding | None:
        """Looks at a run, or at as much of it as there is.

        Args:
            rows: of the updates so far, oldest first, from step 1; a measure may be missing from any row, and is None
                where it was not finite. Of a long run the first 30 and the last 100, and of those between each second,
                third, ..., so that there are never more than 530.
            config: the run's configuration, to tell causes apart. It does not describe an objective of the user's own.

        Returns:
            What is wrong; None where nothing is, or nothing can be known yet.
        """
        ...


def write_findings(path: Path, findings: Sequence[Finding]) -> None:
    """Writes findings as JSON lines, complete or not at all."""
    write_text(path, "".join(json.dumps(finding._asdict()) + "\n" for finding in findings))
