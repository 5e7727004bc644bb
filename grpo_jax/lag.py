"""Where the loop gets its experience from: collected on the spot, or ahead of it by a policy of some updates ago.

With a lag of n, step t (from 1) learns from completions of the policy after step max(0, t - 1 - n). That depends on
nothing else, least of all on who was faster, so two runs are equal bit for bit, and so is one that was resumed. Keys
and problems are those of the run without lag.

The objective's ratios need the log-probs of the policy that sampled. They are computed anew from its parameters, by the
function that scores in the update: then a ratio is 1 where nothing has changed, whatever the precision of the sampler,
whose own record stays what it is for, the correction of the mismatch between sampler and trainer.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Key

from grpo_jax.config import Config
from grpo_jax.experience import Collector, Experience
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
        key, params = jax.random.fold_in(_own_key(state), done), self.hand_over(state.params)
        found = self.collector.collect(params, int(state.position), key=key, version=done)
        return _measured(found, seconds_sampling=time.monotonic() - began)

    def ahead(self) -> list[Experience]:
        return []


class _Ahead:
    """A thread that collects up to ``lag`` steps ahead.

    It may begin with step t once the policy after step max(0, t - 1 - lag) has been handed over and fewer than ``lag``
    batches wait. The loop hands over the policy after step s when it asks for step s + 1; until then the thread never
    needs it. So ``lag`` batches are what waits at most, and exactly what a checkpoint needs beside its state.
    """

    def __init__(
        self,
        config: Config,
        collect: Callable[[Params, int, Any, int], Experience],
        hand_over: Callable[[Params], Params],
        state: TrainState,
        ready: Sequence[Experience],
    ) -> None:
        self._config = config
        self._lag = config.rollout.lag
        self._collect = collect
        self._hand_over = hand_over
        self._key = _own_key(state)
        self._step = steps_of(config, state) + len(ready)  # the last one that has been collected
        self._position = int(state.position) + sum(each.consumed for each in ready)
        self._ready = deque(ready)
        self._policies: dict[int, Params] = {}
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="rollouts", daemon=True)
        self._thread.start()

    def next(self, state: TrainState) -> Experience:
        began, done = time.monotonic(), steps_of(self._config, state)
        policy = self._hand_over(state.params)
        with self._changed:
            self._policies[done] = policy
            queued = len(self._ready)
            self._changed.notify_all()
            found = self._wait_for(1).popleft()
            self._changed.notify_all()
        lags = done - found.versions
        return _measured(
            found,
            lag_mean=float(np.mean(lags)),
            lag_max=float(np.max(lags)),
            queued=float(queued),
            seconds_waiting=time.monotonic() - began,
        )

    def ahead(self) -> list[Experience]:
        with self._changed:
            return list(self._wait_for(self._lag))

    def close(self, patience: float | None) -> None:
        """Ends the thread after what it is at; gives up waiting after so many seconds, None: never."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join(patience)

    def _wait_for(self, count: int) -> deque[Experience]:
        """Returns the queue once it has so many batches; raises what ended the thread if it never will."""
        self._changed.wait_for(lambda: len(self._ready) >= count or self._failure is not None)
        if len(self._ready) < count:
            assert self._failure is not None
            raise self._failure
        return self._ready

    def _work(self) -> None:
        try:
            while self._may_begin():
                self._one()
        except BaseException as failure:  # of any kind: the loop is who has to know
            with self._changed:
                self._failure = failure
                self._changed.notify_all()

    def _may_begin(self) -> bool:
        """Waits until the next step may be collected; returns whether it still is to be."""
        with self._changed:
            version = self._next_version()
            for old in [each for each in self._policies if each < version]:
                del self._policies[old]
            self._changed.wait_for(
                lambda: self._stopped or (version in self._policies and len(self._ready) < self._lag)
            )
            return not self._stopped

    def _one(self) -> None:
        version = self._next_version()
        began, params = time.monotonic(), self._policies[version]
        found = self._collect(params, self._position, jax.random.fold_in(self._key, self._step), version)
        found = _measured(found, seconds_sampling=time.monotonic() - began)
        with self._changed:
            self._step += 1
            self._position += found.consumed
            self._ready.append(found)
            self._changed.notify_all()

    def _next_version(self) -> int:
        return max(0, self._step - self._lag)


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
        The source. What ends the thread of one with a lag is raised where the loop waits for what is missing.
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
        old = jax.device_get(program.old_log_probs(params, found.rollout))
        return found._replace(batch=found.batch._replace(old_log_probs=np.where(found.batch.mask, old, 0)))

    source, patience = _Ahead(config, collect, program.hand_over, state, ahead), _PATIENCE
    try:
        yield source
        patience = None
    finally:
        source.close(patience)


def steps_of(config: Config, state: TrainState) -> int:
    """Returns the steps that a state is after, each on one batch of completions."""
    return int(state.step) // config.update.updates_per_rollout


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


def _measured(found: Experience, **measures: float) -> Experience:
    return found._replace(measures=found.measures | measures)


def _own_key(state: TrainState) -> Key[Array, ""]:
    """Returns a state's key in memory of its own, on no particular device: an update takes the state's memory."""
    return jax.random.wrap_key_data(jax.device_get(jax.random.key_data(state.key)), impl=jax.random.key_impl(state.key))
