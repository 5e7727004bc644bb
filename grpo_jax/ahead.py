"""Experience collected ahead of the updates that learn from it: by a thread beside them, or in turn with them."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Key

from grpo_jax.config import Config
from grpo_jax.experience import Experience
from grpo_jax.types import Params, TrainState


class Source(NamedTuple):
    """What both ways of collecting ahead are given.

    Attributes:
        config: the run; ``rollout.lag`` is n > 0.
        collect: ``(params, position, key, version) -> Experience``.
        hand_over: ``params -> params`` to sample with, in memory that no update takes meanwhile.
    """

    config: Config
    collect: Callable[[Params, int, Any, int], Experience]
    hand_over: Callable[[Params], Params]


class _Next:
    """Collects the batches of a run in their order, each with its own key and problems."""

    def __init__(self, source: Source, state: TrainState, ready: Sequence[Experience]) -> None:
        self._collect = source.collect
        self._lag = source.config.rollout.lag
        self._key = own_key(state)
        self._step = steps_of(source.config, state) + len(ready)  # the last one that has been collected
        self._position = int(state.position) + sum(each.consumed for each in ready)

    @property
    def version(self) -> int:
        """Updates behind the policy that samples the next batch."""
        return max(0, self._step - self._lag)

    def one(self, params: Params) -> Experience:
        """Returns the next batch, sampled by the policy of ``version``."""
        began = time.monotonic()
        found = self._collect(params, self._position, jax.random.fold_in(self._key, self._step), self.version)
        self._step += 1
        self._position += found.consumed
        return measured(found, seconds_sampling=time.monotonic() - began)


class InTurn:
    """Collects ``lag`` steps ahead, each batch when the policy that samples it is asked for what to learn from.

    Processes that share devices must launch their computations in one order, which a thread of each could not promise.
    """

    def __init__(self, source: Source, state: TrainState, ready: Sequence[Experience]) -> None:
        self._source = source
        self._next = _Next(source, state, ready)
        self._ready = deque(ready)

    def next(self, state: TrainState) -> Experience:
        """Returns what the step after ``state`` learns from."""
        began, done, queued = time.monotonic(), steps_of(self._source.config, state), len(self._ready)
        params = self._source.hand_over(state.params)
        while len(self._ready) <= self._source.config.rollout.lag:
            self._ready.append(self._next.one(params))
        return _late(self._ready.popleft(), done, queued, time.monotonic() - began)

    def ahead(self) -> list[Experience]:
        """Returns what the ``lag`` steps after the one that was last asked for learn from."""
        return list(self._ready)


class Beside:
    """A thread that collects up to ``lag`` steps ahead.

    It may begin with step t once the policy after step max(0, t - 1 - lag) has been handed over and fewer than ``lag``
    batches wait. The loop hands over the policy after step s when it asks for step s + 1; until then the thread never
    needs it. So ``lag`` batches are what waits at most, and exactly what a checkpoint needs beside its state.
    """

    def __init__(self, source: Source, state: TrainState, ready: Sequence[Experience]) -> None:
        self._source = source
        self._lag = source.config.rollout.lag
        self._next = _Next(source, state, ready)
        self._ready = deque(ready)
        self._policies: dict[int, Params] = {}
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="rollouts", daemon=True)
        self._thread.start()

    def next(self, state: TrainState) -> Experience:
        """Returns what the step after ``state`` learns from."""
        began, done = time.monotonic(), steps_of(self._source.config, state)
        policy = self._source.hand_over(state.params)
        with self._changed:
            self._policies[done] = policy
            queued = len(self._ready)
            self._changed.notify_all()
            found = self._wait_for(1).popleft()
            self._changed.notify_all()
        return _late(found, done, queued, time.monotonic() - began)

    def ahead(self) -> list[Experience]:
        """Returns what the ``lag`` steps after the one that was last asked for learn from; waits for it."""
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
            version = self._next.version
            for old in [each for each in self._policies if each < version]:
                del self._policies[old]
            self._changed.wait_for(
                lambda: self._stopped or (version in self._policies and len(self._ready) < self._lag)
            )
            return not self._stopped

    def _one(self) -> None:
        found = self._next.one(self._policies[self._next.version])
        with self._changed:
            self._ready.append(found)
            self._changed.notify_all()


def steps_of(config: Config, state: TrainState) -> int:
    """Returns the steps that a state is after, each on one batch of completions."""
    return int(state.step) // config.update.updates_per_rollout


def measured(found: Experience, **measures: float) -> Experience:
    """Returns an experience with further measures."""
    return found._replace(measures=found.measures | measures)


def own_key(state: TrainState) -> Key[Array, ""]:
    """Returns a state's key in memory of its own, on no particular device: an update takes the state's memory."""
    return jax.random.wrap_key_data(jax.device_get(jax.random.key_data(state.key)), impl=jax.random.key_impl(state.key))


def _late(found: Experience, done: int, queued: int, waited: float) -> Experience:
    """Returns an experience with what the loop, after so many updates, had of it and of the queue."""
    lags = done - found.versions
    lag = {"lag_mean": float(np.mean(lags)), "lag_max": float(np.max(lags))}
    return measured(found, **lag, queued=float(queued), seconds_waiting=waited)
