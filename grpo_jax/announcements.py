"""What a run says in words when it begins and when it is done."""

from collections.abc import Mapping
from typing import Any

import jax

from grpo_jax.config import Config
from grpo_jax.evaluation import described
from grpo_jax.lag import notes
from grpo_jax.metrics import RunFolder
from grpo_jax.program import Program


def introduction(config: Config, program: Program, files: RunFolder, start: int | None) -> str:
    """Returns what a run is, as text of several lines.

    Args:
        config: the run.
        program: its compiled steps.
        files: where its files lie.
        start: the step that it is resumed at; None: it begins.
    """
    objective, controller = program.parts.objective, program.parts.controller
    size = sum(leaf.size for leaf in jax.tree.leaves(program.shapes.params))
    kl = objective.parts.kl
    follows = "no KL term" if kl is None else f"KL term: {kl.name}; follows {objective.target.name}"
    mesh = ", ".join(f"{axis} {count}" for axis, count in program.mesh.shape.items())
    lines = [
        f"run {files.path} on {jax.devices()[0].platform} ({mesh}); {size:,} parameters",
        f"{follows}; {controller.description}",
        *objective.notes,
        *notes(config, program),
        *([program.parts.task.description] if program.parts.task.description else []),
        *([] if start is None else [f"resuming {files.path} at step {start}"]),
    ]
    return "\n".join(lines)


def conclusion(summary: Mapping[str, Any], files: RunFolder) -> str:
    """Returns what came of a run, and where it lies, as text of several lines.

    Args:
        summary: what summary.json holds.
        files: where the run's files lie.
    """
    before, after = summary["accuracy_before"], summary["accuracy_after"]
    moved = f"{'rose' if after > before else 'fell'} from {before:.3f} to {after:.3f}"
    moved = f"stayed at {after:.3f}" if after == before else moved
    elsewhere = (
        f"\nOut of domain: {described(summary['out_of_domain_after'])}, before "
        f"{described(summary['out_of_domain_before'])}."
        if summary["out_of_domain_after"]
        else ""
    )
    kl = "" if summary["kl"] is None else f" The policy is {summary['kl']:.3g} nats per completion from its reference."
    return (
        f"In {summary['steps']} steps and {summary['seconds']:.0f} s the accuracy on held-out problems {moved}.{kl}"
        f"{elsewhere}\nCurves: {files.curves}\nSamples: {files.samples_after}\n"
        f"Summary: {files.summary}\nTensorBoard: tensorboard --logdir {files.tensorboard}"
    )
