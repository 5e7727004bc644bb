"""A certificate from samples: what an objective's KL term follows as far as they tell, to print, save and draw."""

import io
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.table import Table

from grpo_jax.kl import Target
from grpo_jax.oracle.jackknife import Findings
from grpo_jax.oracle.measured import Measured, Projection, digits, each_measured, measured, number, plot

ROUNDING = 1e-3
"""Distance from 1 that rounding may give the mean of weights which are all 1."""
POWER = 0.25
"""Smallest detectable relative bias above which an agreement is said to mean little."""


@dataclass(frozen=True, repr=False)
class SampledCertificate:
    """Which gradient an objective's KL term follows, as far as samples tell; every interval holds with 95 %.

    Gradients are per unit of beta, and of the scale that reduction and advantage declare. Print it, or end a notebook's
    cell with it.

    Attributes:
        name: what was certified.
        behaviour: "on" where the current policy sampled, "off" where another one did.
        declared: the declared target in words, "none" included.
        reason: why nothing is declared, else "".
        compared: the gradient that it was compared with: the declared one, or the reverse KL's where that is none or 0.
        relative_bias: norm of the expected difference from what is declared, over that of ``compared``.
        resolution: the relative bias that such a sample finds in about half of the cases; None: it finds none.
        cosine: between the expected gradient and ``compared``.
        cosine_reverse: between the expected gradient and the reverse KL's.
        variance: trace of the gradient's covariance for one group.
        squared_bias: squared norm of the expected difference.
        squared_norm: squared norm of ``compared``, to see variance and bias in proportion.
        mean_squared_error: squared bias plus variance, for one group.
        projections: the gradient on random unit vectors, with its sign.
        groups: groups that were sampled.
        effective_sample_size: (sum w)^2 / (n sum w^2) of the importance weights, in (0, 1]; 1 on-policy.
        mean_weight: mean of the importance weights, with four standard errors. Its expectation is 1: where that lies
            outside, the sampler hardly ever writes what the policy does, and nothing can be said.
        notes: what else is to be said, a sentence each.
    """

    name: str
    behaviour: str
    declared: str
    reason: str
    compared: str
    relative_bias: Measured
    resolution: float | None
    cosine: Measured
    cosine_reverse: Measured
    variance: Measured
    squared_bias: Measured
    squared_norm: Measured
    mean_squared_error: float | None
    projections: tuple[Projection, ...]
    groups: int
    effective_sample_size: float
    mean_weight: Measured
    notes: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool | None:
        """Whether the samples are compatible with the declaration; None where it has none or they do not tell."""
        if self.reason or self.relative_bias.low is None or not self.covered:
            return None
        return self.relative_bias.low == 0

    @property
    def covered(self) -> bool:
        """Whether the sampler writes what the policy does: False where importance weights are far from 1 on average."""
        low, high = self.mean_weight.low, self.mean_weight.high
        return low is None or high is None or low - ROUNDING <= 1 <= high + ROUNDING

    @property
    def verdict(self) -> str:
        """The finding in a sentence or two."""
        far = f"its relative distance from {self.compared} is {self.relative_bias.words}"
        if self.relative_bias.low is None:
            if self.squared_norm.value is None:
                return (
                    "Undecided: a gradient is not finite; parameters must be, and every sampled token must be possible "
                    "under policy and reference."
                )
            return (
                f"Undecided: the gradient of {self.compared} itself is lost in the noise; sample more groups. Where "
                "policy and reference are equal it is 0, and there is nothing to measure."
            )
        if not self.covered:
            return (
                f"Undecided: importance weights are {self.mean_weight.words} on average where their expectation is 1, "
                "so the sampler hardly ever writes completions that the policy does; sample from one nearer to it."
            )
        if self.reason:
            return f"Follows no objective, it says ({self.reason}); {far}, the cosine {self.cosine.words}."
        what = "pulls nowhere" if self.declared == "zero" else f"follows {self.declared}"
        if not self.agrees:
            return f"WRONG: it declares that it {what}, but {far}."
        seen = f"a relative bias of {digits(self.resolution)} would have been seen in about half of such samples"
        weak = self.resolution is None or self.resolution > POWER
        little = f"This says little: {seen}; sample more groups." if weak else f"{seen.capitalize()}."
        upper = digits(self.relative_bias.high)
        return f"Compatible with its declaration that it {what}: relative bias at most {upper}. {little}"

    def to_json(self, path: str | Path | None = None) -> str:
        """Returns everything as a JSON object, with ``agrees`` and ``verdict``; writes it where a path is given."""
        text = json.dumps(asdict(self) | {"agrees": self.agrees, "verdict": self.verdict}, allow_nan=False, indent=1)
        if path is not None:
            Path(path).write_text(text + "\n")
        return text

    def plot(self, path: str | Path | None = None) -> Any:
        """Returns a Figure of bias, cosines and projections with their intervals; saves it where a path is given."""
        title = f"{self.name.split(';')[0]}, {self.behaviour}-policy: declares {self.declared}"
        named = {f"cosine with\n{self.compared}": self.cosine, "cosine with\nreverse": self.cosine_reverse}
        shown = {"relative bias": self.relative_bias, **named}
        return plot(title, shown, self.projections, path)

    def __rich__(self) -> Group:
        notes = [f"[dim]{note}[/dim]" for note in self.notes]
        return Group(f"[bold]{self.name}[/bold]", _table(self), self.verdict, *notes)

    def __repr__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=120, color_system=None).print(self)
        return text.getvalue().rstrip()


def sampled_certificate(
    name: str, behaviour: str, target: Target, found: Findings, notes: tuple[str, ...] = ()
) -> SampledCertificate:
    """Returns the certificate of findings that are on the host.

    Args:
        name: what was certified.
        behaviour: "on" or "off".
        target: what it declares.
        found: the findings.
        notes: what else is to be said.
    """
    pairs = zip(each_measured(found.projections), each_measured(found.differences), strict=True)
    return SampledCertificate(
        name=name,
        behaviour=behaviour,
        declared=target.name,
        reason=target.none,
        compared="reverse" if target.none or not target.coefficients else target.name,
        relative_bias=measured(found.relative_bias),
        resolution=number(found.resolution),
        cosine=measured(found.cosine),
        cosine_reverse=measured(found.cosine_reverse),
        variance=measured(found.variance),
        squared_bias=measured(found.squared_bias),
        squared_norm=measured(found.squared_unit),
        mean_squared_error=number(found.mean_squared_error),
        projections=tuple(Projection(gradient, difference) for gradient, difference in pairs),
        groups=int(found.groups),
        effective_sample_size=float(found.effective_sample_size),
        mean_weight=measured(found.mean_weight),
        notes=notes,
    )


def _table(shown: SampledCertificate) -> Table:
    rows = Table()
    for heading in ("", f"{shown.behaviour}-policy", "95 % interval"):
        rows.add_column(heading, justify="right" if heading else "left")

    def add(heading: str, found: Measured) -> None:
        rows.add_row(heading, digits(found.value), f"{digits(found.low)} to {digits(found.high)}")

    verdict = {True: "yes, as far as can be seen", False: "[bold red]NO[/bold red]", None: "-"}[shown.agrees]
    rows.add_row("declared", shown.declared, "")
    rows.add_row("as declared", verdict, "")
    add(f"relative bias to {shown.compared}", shown.relative_bias)
    rows.add_row("would be seen from", digits(shown.resolution), "")
    add(f"cosine with {shown.compared}", shown.cosine)
    if shown.compared != "reverse":
        add("cosine with reverse", shown.cosine_reverse)
    add("variance, one group", shown.variance)
    add("squared bias", shown.squared_bias)
    rows.add_row("mean squared error, one group", digits(shown.mean_squared_error), "")
    add(f"squared norm of {shown.compared}", shown.squared_norm)
    rows.add_row("effective sample size", f"{shown.effective_sample_size:.2f}", "")
    add("mean importance weight", shown.mean_weight)
    return rows
