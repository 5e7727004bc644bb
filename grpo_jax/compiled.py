"""Functions compiled once for a run, which can also be traced from shapes alone, on devices that are not there."""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding
from jaxtyping import Array, Key

from grpo_jax.hosts import put
from grpo_jax.types import Params, Prompts, Rollout

_LAUNCH = threading.Lock()
"""Held while a computation is launched, not while it runs: every device gets those of several threads in one order, or
else two that exchange data could each hold devices that the other one waits for."""


class Base(NamedTuple):
    """What a run computes with and never changes: the parameters that adapters adapt; nothing without adapters.

    They are read at the first use, and reach every compiled function as its first argument, never as a constant.

    Attributes:
        params: reads them, once.
        shapes: their shapes, with the devices they live on.
        places: where they live.
        merge: ``(base, params) -> params`` of the policy.
    """

    params: Callable[[], Params | None]
    shapes: Any
    places: Any
    merge: Callable[[Params | None, Params], Params]


class Compiled(NamedTuple):
    """A function under ``jax.jit`` whose first argument, the frozen base, is filled in at every call.

    Attributes:
        function: ``(base, *arguments)``, with the devices of each argument.
        base: the frozen base.
    """

    function: Any
    base: Base

    def __call__(self, *arguments: Any) -> Any:
        """Computes; XLA compiles at the first call."""
        with _LAUNCH:
            return self.function(self.base.params(), *arguments)

    def trace(self, *shapes: Any) -> jax.stages.Traced:
        """Traces the very function that is called, for arguments of these shapes; allocates nothing."""
        return self.function.trace(self.base.shapes, *shapes)


class Sampler(NamedTuple):
    """A compiled sampler.

    Attributes:
        compiled: ``(params, prompts, key) -> Rollout``.
        groups: where prompts and completions live; a process need know only the prompts that live on its own devices.
    """

    compiled: Compiled
    groups: NamedSharding

    def __call__(self, params: Params, prompts: Prompts, *, key: Key[Array, ""]) -> Rollout:
        """Samples; consumes the key."""
        return self.compiled(params, put(prompts, self.groups), key)
