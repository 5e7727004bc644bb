"""What fits: the mesh and micro-batches for a slice, the most prompts per update, and the smallest slice."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from grpo_jax.config import Config
from grpo_jax.plan.chips import Topology, slices, topology
from grpo_jax.plan.measure import Measured, Step, TooLarge, least, measure, with_options

TENSOR = (1, 2, 4, 8)
"""How many devices may share the heads of one token: as few as possible, since they exchange in every layer."""


class Attempt(NamedTuple):
    """A configuration that was compiled.

    Attributes:
        topology: where.
        mesh: as the command line takes it.
        micro_batches: parts of an update.
        prompts: per update.
        step: what needs most.
        peak: bytes on a device that it needs.
        fits: whether that is less than what was allowed.
    """

    topology: str
    mesh: str
    micro_batches: int
    prompts: int
    step: str
    peak: float
    fits: bool


class Search(NamedTuple):
    """Compiles configurations of a run, and none of their steps twice.

    Attributes:
        config: the run.
        shape: the model's config.json, see `outline`.
        report: is told of every attempt, once.
        compiled: steps by name, for every configuration and topology that was tried.
        reported: the attempts that were told of.
    """

    config: Config
    shape: Path | None
    report: Callable[[Attempt], None]
    compiled: dict[tuple[str, Config], dict[str, Step]]
    reported: set[Attempt]

    def whole(self, run: Config, where: Topology) -> Measured:
        """Returns the whole of a configuration; raises TooLarge where a step does not fit."""
        return self._measured(run, where, ())

    def fitting(self, where: Topology, spare: float, *, fewest: bool = True) -> Config | None:
        """Looks for a mesh and a number of micro-batches with which the run fits.

        Heads stay on one device unless memory asks for more; then as few micro-batches as fit, since parameters are
        gathered again for each.

        Args:
            where: the devices.
            spare: share of the memory that must stay free, in [0, 1).
            fewest: look for the fewest micro-batches; otherwise the most, which need the least memory, will do.

        Returns:
            The run with its mesh, micro-batches and logits per chunk. None: nothing that was tried fits.
        """
        for tensor in TENSOR:
            counts = self._micro_batches(where, tensor)
            if not counts:
                continue
            run = self._with(where, tensor, counts[-1])
            if not self._fits(run, where, spare, ("update", "sampling")):
                continue
            low, high = 0, len(counts) - 1  # counts[high] fits
            while fewest and low < high:
                middle = (low + high) // 2
                if self._fits(self._with(where, tensor, counts[middle]), where, spare, ("update",)):
                    high = middle
                else:
                    low = middle + 1
            return self._with(where, tensor, counts[high])
        return None

    def most_prompts(self, run: Config, where: Topology, spare: float) -> int:
        """Looks for the most prompts per update, each micro-batch staying as large as it is.

        Sampling holds the keys and values of all prompts at once, so its memory grows with them in a straight line;
        where two points predict that it is full, the configuration is compiled, and fewer are tried until one fits.

        Args:
            run: fits.
            where: the devices.
            spare: share of the memory that must stay free.
        """
        assert where.chip is not None
        room, unit = where.chip.memory * (1 - spare), run.rollout.prompts
        first, second = (self._attempt(self._times(run, factor), where, room, "sampling") for factor in (1, 2))
        if not second.fits:
            return unit
        factor = int(1 + (room - first.peak) / max(second.peak - first.peak, 1))
        while factor > 1 and not self._fits(self._times(run, factor), where, spare, ("sampling", "update")):
            factor -= max(1, factor // 16)
        return unit * max(1, factor)

    def smallest(self, name: str) -> str | None:
        """Returns the smallest slice of a topology's chip on which the run fits at all; None: none that is known."""
        for other in slices(name):
            where = topology(other)
            hopeless = where.chip is None or least(self._with(where, 1, 1), where, self.shape) > where.chip.memory
            if not hopeless and self.fitting(where, 0.0, fewest=False) is not None:
                return other
        return None

    def _micro_batches(self, where: Topology, tensor: int) -> list[int]:
        """Returns the numbers of micro-batches that leave no device without a group; empty: there is none."""
        devices, prompts = len(where.devices), self.config.rollout.prompts
        if devices % tensor or devices // tensor > prompts:
            return []
        most = -(-prompts // (devices // tensor))
        return [count for count in range(1, most + 1) if most % count == 0]

    def _with(self, where: Topology, tensor: int, micro_batches: int) -> Config:
        mesh = "fsdp=-1" if tensor == 1 else f"fsdp=-1,tensor={tensor}"
        return with_options(self.config, mesh, micro_batches)

    def _times(self, run: Config, factor: int) -> Config:
        update = replace(run.update, micro_batches=run.update.micro_batches * factor)
        return replace(run, rollout=replace(run.rollout, prompts=run.rollout.prompts * factor), update=update)

    def _fits(self, run: Config, where: Topology, spare: float, names: tuple[str, ...]) -> bool:
        assert where.chip is not None
        return all(self._attempt(run, where, where.chip.memory * (1 - spare), name).fits for name in names)

    def _measured(self, run: Config, where: Topology, names: tuple[str, ...]) -> Measured:
        known = self.compiled.setdefault((where.name, run), {})
        found = measure(run, where, self.shape, names, known)
        known.update({step.name: step for step in found.steps})
        return found

    def _attempt(self, run: Config, where: Topology, room: float, name: str) -> Attempt:
        try:
            peak = self._measured(run, where, (name,)).peak
        except TooLarge as error:
            peak = max(error.needed, room + 1)
        what = (where.name, run.mesh, run.update.micro_batches, run.rollout.prompts)
        found = Attempt(*what, name, peak, peak <= room)
        if found not in self.reported:  # what compiled for one question may be looked up for another
            self.reported.add(found)
            self.report(found)
        return found
