"""grpo-jax certify."""

from dataclasses import dataclass
from pathlib import Path

from matplotlib.backend_bases import FigureCanvasBase

from grpo_jax.oracle import certify_shipped, heatmap, print_records, to_json


@dataclass(frozen=True)
class Certify:
    """Print which gradient every shipped configuration follows, found exactly by listing all groups of completions.

    Each is compared with what it declares; the exit status is 1 where a promise is broken.

    Attributes:
        estimator: only the KL terms of this one: k1, k2, k3, absolute, straight_through, clamped, full. None: all.
        json: file for the records, one for each configuration and way of sampling.
        plot: file for a picture of all distances, such as distances.png.
        seed: of policy, reference, sampler and rewards.
        vocabulary: number of token ids; token 0 ends a completion.
        length: longest completion.
    """

    estimator: str | None = None
    json: Path | None = None
    plot: Path | None = None
    seed: int = 0
    vocabulary: int = 3
    length: int = 3

    def execute(self) -> int:
        """Prints certificates; returns the exit status."""
        for name, path in (("json", self.json), ("plot", self.plot)):
            if path is not None and not path.parent.is_dir():
                raise ValueError(f"--{name} {path}: there is no folder {path.parent}; make it first")
            if path is not None and path.is_dir():
                raise ValueError(f"--{name} {path} is a folder; name a file in it")
        known = sorted(FigureCanvasBase.filetypes)
        if self.plot is not None and self.plot.suffix[1:].lower() not in known:
            raise ValueError(
                f"--plot {self.plot}: no picture is written with this ending; give one of {', '.join(known)}"
            )
        records = certify_shipped(self.estimator, self.seed, self.vocabulary, self.length)
        print_records(records)
        if self.json is not None:
            to_json(records, self.json)
        if self.plot is not None:
            heatmap(records, self.plot)
        return int(any(record.wrong for record in records))
