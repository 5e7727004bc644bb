"""A plan as text and as JSON."""

from dataclasses import asdict
from typing import Any, NamedTuple

from grpo_jax.plan.measure import GIGA, Measured, Step


class Times(NamedTuple):
    """Seconds of one execution of a step, from the chip's published figures.

    Attributes:
        compute: matrix products at the peak rate.
        memory: traffic between memory and processor at full bandwidth.
        links: what each device sends, over all its links at full bandwidth.
    """

    compute: float
    memory: float
    links: float

    @property
    def overlapped(self) -> float:
        """Everything at the same time: no execution is faster."""
        return max(self)

    @property
    def in_turn(self) -> float:
        """One after another, each at its peak."""
        return sum(self)


def times(found: Measured, step: Step) -> Times | None:
    """Returns the estimated times of a step; None where nothing is published about the device."""
    chip = found.topology.chip
    if chip is None:
        return None
    sent = sum(each.sent for each in step.traffic.collectives.values())
    devices = len(found.topology.devices)
    return Times(step.operations / devices / chip.flops, step.traffic.memory / chip.bandwidth, sent / chip.links)


def utilisation(found: Measured) -> tuple[float, float] | None:
    """Returns the model FLOPs utilisation of sampling and update, steps one after another and overlapped, in [0, 1]."""
    chip, each = found.topology.chip, [times(found, step) for step in found.steps if step.often == 1]
    known = [x for x in each if x is not None]
    if chip is None or not known:
        return None
    best = found.model_operations / len(found.topology.devices) / chip.flops
    return best / sum(x.in_turn for x in known), best / sum(x.overlapped for x in known)


def as_json(found: Measured) -> dict[str, Any]:
    """Returns everything that was measured, in bytes, operations and seconds."""
    chip, used = found.topology.chip, utilisation(found)
    steps = {}
    for step in found.steps:
        estimated = times(found, step)
        steps[step.name] = {
            "often": step.often,
            "memory": step.memory._asdict() | {"peak": step.memory.peak},
            "operations": step.operations,
            "memory_traffic": step.traffic.memory,
            "collectives": {kind: each._asdict() for kind, each in step.traffic.collectives.items()},
            "seconds": None
            if estimated is None
            else estimated._asdict() | {"overlapped": estimated.overlapped, "in_turn": estimated.in_turn},
            "compile_seconds": round(step.seconds, 1),
        }
    return {
        "topology": found.topology.name,
        "devices": len(found.topology.devices),
        "mesh": found.mesh,
        "rows": found.rows,
        "chip": None if chip is None else chip._asdict(),
        "state": found.state,
        "batch": found.batch,
        "key_value_cache": found.cache,
        "peak": found.peak,
        "model_operations": found.model_operations,
        "utilisation": None if used is None else {"in_turn": used[0], "overlapped": used[1]},
        "steps": steps,
        "config": asdict(found.config),
    }


def table(found: Measured) -> str:
    """Returns a plan to read."""
    axes = ", ".join(f"{axis} {size}" for axis, size in found.mesh.items() if size > 1) or "one device"
    run, chip = found.config, found.topology.chip
    lines = [
        f"{found.topology.name}: {len(found.topology.devices)} devices ({axes}); {found.rows} prompts x "
        f"{run.rollout.group_size} completions in {run.update.micro_batches} micro-batches",
        "",
        "GB on each device        " + "  ".join(f"{kind} {_gb(size)}" for kind, size in found.state.items()),
        f"                         batch {_gb(found.batch)}  keys and values while sampling {_gb(found.cache)}",
        "",
        f"{'step':<16}{'stays':>8}{'takes':>8}{'returns':>8}{'between':>8}{'peak':>8}   PFLOP      GB moved   GB sent",
    ]
    for step in found.steps:
        memory, sent = step.memory, sum(each.sent for each in step.traffic.collectives.values())
        sizes = (memory.resident, memory.arguments, memory.results, memory.temporaries, memory.peak)
        lines.append(
            f"{step.name:<16}"
            + "".join(f"{_gb(size):>8}" for size in sizes)
            + f"{step.operations / 1e15:>8.4g}{step.traffic.memory / GIGA:>14.4g}{sent / GIGA:>10.4g}"
        )
    lines += ["", "collectives of each device: how often, GB sent"]
    for step in found.steps:
        each = [f"{kind} {x.count:.0f}, {x.sent / GIGA:.4g}" for kind, x in step.traffic.collectives.items()]
        lines.append(f"{step.name:<16}{'; '.join(each) or 'none'}")
    if chip is not None:
        lines += ["", *_estimates(found)]
        free = 1 - found.peak / chip.memory
        verdict = f"{free:.0%} of {_gb(chip.memory)} GB to spare" if free >= 0 else "DOES NOT FIT"
        lines += ["", f"peak {_gb(found.peak)} GB on each device: {verdict}"]
    return "\n".join(lines)


def _estimates(found: Measured) -> list[str]:
    lines = ["seconds from published peaks (not measured): compute, memory, links; overlapped to in turn"]
    for step in found.steps:
        estimated = times(found, step)
        assert estimated is not None
        lines.append(
            f"{step.name:<16}"
            + "".join(f"{value:>9.3g}" for value in estimated)
            + f"   {estimated.overlapped:.3g} to {estimated.in_turn:.3g}, {step.often:.3g} times per update"
        )
    used = utilisation(found)
    if used is not None:
        lines.append(f"model FLOPs utilisation of sampling and update: {used[0]:.1%} to {used[1]:.1%}")
    return lines


def _gb(size: float) -> str:
    return f"{size / GIGA:.2f}"
