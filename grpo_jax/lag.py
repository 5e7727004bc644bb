"""Where the loop gets its experience from: collected on the spot, or ahead of it by a policy of some updates ago.

With a lag of n, step t (from 1) learns from completions of the policy after step max(0, t - 1 - n). That depends on
nothing else, least of all on who was faster, so two runs are equal bit for bit, and so is one that was resumed. Keys
and problems are those of the run without lag.

The objective's ratios need the log-probs of the policy that sampled. They are computed anew from its parameters, by the
function that scores in the update: then a ratio is 1 where nothing has changed, whatever the precision of the sampler,
whose own record stays what it is for, the correction of the mismatch between sampler and trainer.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from grpo_jax import hosts
from grpo_jax.ahead import Beside, InTurn, Source, measured, own_key, steps_of
from grpo_jax.config import Config
from grpo_jax.experience import Collector, Experience
from grpo_jax.placement import samples_beside
from grpo_jax.program import Program
from grpo_jax.types import Params, TrainState

_PATIENCE = 10.0
"""Seconds that a run which fails waits for rollouts in the making; they cannot be interrupted."""


@runtime_checkable
class Experiences(Protocol):
    """What the steps of a run learn from, in their order."""

    def next(self, state: TrainState) -> Experience:
        """Returns what the step after ``state`` learns from; waits for it.

        Args:
            state: the state after the step before. Its parameters are copied where somebody reads them later.
        """
        ...

    def ahead(self) -> list[Experience]:
        """Returns what the next steps will learn from and nobody could sample again; waits for it.

        They belong to a checkpoint of the state after the step that was last asked for.
        """
        ...


class _Now(NamedTuple):
    """Collects when asked, from the policy as it is."""

    config: Config
    collector: Collector
    hand_over: Callable[[Params], Params]

    def next(self, state: TrainState) -> Experience:
        began, done = time.monotonic(), steps_of(self.config, state)
        # fold_in leaves the state's own key as it was, so no two steps, resumed or not, share noise.
        key, params = jax.random.fold_in(own_key(state), done), self.hand_over(state.params)
        found = self.collector.collect(params, int(state.position), key=key, version=done)
        return measured(found, seconds_sampling=time.monotonic() - began)

    def ahead(self) -> list[Experience]:
        return []


@contextmanager
def experiences(
    config: Config, program: Program, state: TrainState, ahead: Sequence[Experience] = ()
) -> Iterator[Experiences]:
    """Opens the source of a run's experience until the ``with`` block is left.

    Args:
        config: the run; ``rollout.lag`` is n. With 0 everything is collected when it is asked for.
        program: its steps.
        state: where it is; only key, step and position are read.
        ahead: what `Experiences.ahead` returned for this state. At the beginning of a run there is none.

    Yields:
        The source. In one process a thread collects beside the updates; what ends it is raised where the loop waits for
        what is missing. In several, batches are collected in turn with the updates, and are the same.
    """
    collector = Collector(
        program.parts,
        program.generate,
        config.rollout.prompts,
        program.rows,
        config.rollout.group_size,
        config.rollout.resample_rounds,
        config.update.packing_widths,
    )
    if not config.rollout.lag:
        yield _Now(config, collector, program.hand_over)
        return

    def collect(params: Params, position: int, key: Any, version: int) -> Experience:
        found = collector.collect(params, position, key=key, version=version)
        rollout = found.rollout if hosts.count() == 1 else program.place(found.rollout)
        old = hosts.whole(program.old_log_probs(params, rollout))
        return found._replace(batch=found.batch._replace(old_log_probs=np.where(found.batch.mask, old, 0)))

    source = Source(config, collect, program.hand_over)
    if not samples_beside(config):
        yield InTurn(source, state, ahead)
        return
    beside, patience = Beside(source, state, ahead), _PATIENCE
    try:
        yield beside
        patience = None
    finally:
        beside.close(patience)


def notes(config: Config, program: Program) -> list[str]:
    """Returns what lag and devices of its own mean for a run's rollouts, a sentence each; none without either."""
    said, behind, objective = [], config.rollout.lag, program.parts.objective
    shape = ", ".join(f"{axis} {count}" for axis, count in program.sampling_mesh.shape.items())
    if config.rollout.mesh is not None:
        said.append(f"rollouts on {program.sampling_mesh.size} devices of their own ({shape})")
    if config.rollout.layout is not None:
        said.append(f"rollouts laid out as {shape}")
    if behind:
        target = objective.off_policy_target
        follows = target.name if not target.none else f"none ({target.none})"
        kl = f"; the KL term then follows {follows}" if objective.needs_reference else ""
        said.append(f"rollouts by the policy of {behind} updates ago, to which every ratio is{kl}")
    return said
