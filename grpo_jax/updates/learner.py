"""The learner: one scored batch in, one updated training state out."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import chex
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key

from grpo_jax.arguments import check_built
from grpo_jax.kl.controllers import Controller
from grpo_jax.losses import Objective
from grpo_jax.statistics import Maximum, Mean, Moments, Statistic
from grpo_jax.types import Batch, Params, Rollout, Scores, TrainState
from grpo_jax.updates.micro_batches import accumulate_gradient, map_groups, merge_stacked, pad_groups
from grpo_jax.updates.optimizers import choose, guarded_step, require_trainable
from grpo_jax.updates.reference import Reference, assert_not_aliased, reference_scores

STATISTICS = {"nats_per_sequence": "kl_per_sequence", "nats_per_token": "kl_per_token"}
"""Which of an objective's statistics a controller reads, by the unit it declares."""


@runtime_checkable
class Score(Protocol):
    """What a policy says of a rollout's tokens: ``functools.partial(policy.score, temperature=...)``."""

    def __call__(
        self, params: Params, rollout: Rollout, *, entropy: bool = False, ref_params: Params | None = None
    ) -> Scores:
        """Scores the rollout.

        Args:
            params: the policy's parameters.
            rollout: the completions ``[P, G, T]``.
            entropy: whether to fill ``Scores.entropy``.
            ref_params: the reference's parameters, to fill ``Scores.full_kl``; None leaves it empty.

        Returns:
            The scores, at the temperature the rollout was sampled at.
        """
        ...


class Learner(NamedTuple):
    """A training state and how it changes, as pure functions to be compiled by whoever knows the devices.

    Attributes:
        init: ``(params, *, key) -> TrainState``. ``params`` become part of the state, so that donating it donates them;
            the key is consumed. Raises ValueError when nothing is trainable.
        update: ``(state, rollout, batch) -> (state, metrics)``, metrics being float scalars by name.
    """

    init: Callable[..., TrainState]
    update: Callable[[TrainState, Rollout, Batch], tuple[TrainState, dict[str, Float[Array, ""]]]]


def learner(
    score: Score,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    controller: Controller,
    reference: Reference,
    *,
    micro_batches: int = 1,
    updates_per_rollout: int = 1,
    measure_entropy: bool = False,
) -> Learner:
    """Builds init and update of a training run.

    An update pads P to a multiple of ``micro_batches`` with invalid groups; fills ``ref_log_probs`` if the objective
    reads them and the batch lacks them; fills ``old_log_probs`` if there are several optimizer steps and the batch
    lacks them (with one step None stays None: on-policy); prepares the batch once as a whole; then takes the optimizer
    steps, each on the whole batch. beta and the reference that scores are those from before the first step.

    The controller moves once per update, fed the KL of the first optimizer step, whose samples are the current policy's
    own, and the number of sequences. A step whose loss or gradient is not finite leaves parameters, optimizer state,
    reference and controller as they were and counts in ``rejected``; ``step`` advances all the same.

    Args:
        score: the policy's scoring function with the temperature bound.
        objective: the loss.
        optimizer: from ``grpo_jax.updates`` or optax.
        controller: beta's controller.
        reference: the reference policy; stored only where the objective reads it and beta can be above 0.
        micro_batches: parts of the batch whose activations exist at a time, >= 1.
        updates_per_rollout: optimizer steps per update, >= 1.
        measure_entropy: whether scores carry the entropy even if the objective does not need it.

    Returns:
        The learner.

    Raises:
        ValueError: for a number below 1, or parts that contradict each other.
        TypeError: a part that is its own factory, uncalled.
    """
    check_built("learner", optax.GradientTransformation, optimizer=optimizer)
    _validate(objective, controller, reference, micro_batches, updates_per_rollout)
    entropy = objective.needs_entropy or measure_entropy
    bound = _Learner(score, objective, optimizer, controller, reference, micro_batches, updates_per_rollout, entropy)
    return Learner(bound.init, bound.update)


class _Learner(NamedTuple):
    """What ``learner`` was given, bound once; every method is a pure function of its arguments."""

    score: Score
    objective: Objective
    optimizer: optax.GradientTransformation
    controller: Controller
    reference: Reference
    micro_batches: int
    updates_per_rollout: int
    entropy: bool

    def init(self, params: Params, *, key: Key[Array, ""]) -> TrainState:
        """Returns the state before the first update; see ``Learner``."""
        require_trainable(params)
        ref_params = self.reference.init(params) if self.objective.needs_reference else None
        assert_not_aliased(params, ref_params)
        zeros = [jnp.zeros((), jnp.int32) for _ in range(3)]
        return TrainState(params, self.optimizer.init(params), ref_params, self.controller.init(), key, *zeros)

    def update(
        self, state: TrainState, rollout: Rollout, batch: Batch
    ) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
        """Returns the state after a rollout, and its metrics; see ``learner``."""
        chex.assert_equal_shape([rollout.check().mask, batch.mask])
        rollout, batch = pad_groups((rollout, batch.check()), self.micro_batches)
        batch = self._filled(state, rollout, batch)
        beta = self.controller.beta(state.controller)
        inputs, ref_params = (rollout, self.objective.prepare(batch)), state.ref_params

        def step(state, _):
            return self._step(state, inputs, ref_params, beta)

        state, first, merged = _repeat(step, state, self.updates_per_rollout)
        if self.objective.needs_reference:
            state = state._replace(controller=_controlled(self.controller, state.controller, first, batch))
        return state, summary(merged) | {"beta": beta}

    def _step(self, state: TrainState, inputs: Any, ref_params: Params | None, beta: Float[Array, ""]) -> tuple:
        """Takes one optimizer step on the whole batch; returns the state and undivided statistics."""

        def terms(params, part):
            rollout, prepared = part
            exact = ref_params if self.objective.needs_full_kl else None
            scores = self.score(params, rollout, entropy=self.entropy, ref_params=exact)
            return self.objective.accumulate(scores, prepared, beta)

        gradient, loss, statistics = accumulate_gradient(terms, state.params, inputs, self.micro_batches)
        step = guarded_step(self.optimizer, state.params, state.opt_state, gradient, loss.compute())
        number = state.step + 1
        moved = self.reference.update(state.ref_params, step.params, number)
        state = state._replace(
            params=step.params,
            opt_state=step.opt_state,
            ref_params=None if state.ref_params is None else choose(~step.rejected, moved, state.ref_params),
            step=number,
            rejected=jnp.where(step.rejected, state.rejected + 1, 0),
        )
        own = {"gradient_norm": step.gradient_norm, "rejected": step.rejected, "idle": step.idle}
        counted = {name: Mean(jnp.asarray(value, jnp.float32), jnp.ones(())) for name, value in own.items()}
        return state, statistics | {"loss": loss} | counted

    def _filled(self, state: TrainState, rollout: Rollout, batch: Batch) -> Batch:
        """Returns the batch with the log-probs that the objective reads and the caller did not give."""
        objective, reference = self.objective, self.reference
        if objective.needs_reference and reference.needs_params and state.ref_params is None:
            raise ValueError(
                "the KL term needs a reference, but the state has no ref_params; make it with Learner.init"
            )
        # The exact KL comes with the scores, from a pass of the reference of its own.
        if objective.needs_reference and not objective.needs_full_kl and batch.ref_log_probs is None:
            scored = reference_scores(self.score, reference, micro_batches=self.micro_batches)
            batch = batch._replace(ref_log_probs=scored(state.ref_params, rollout, batch))
        if self.updates_per_rollout > 1 and batch.old_log_probs is None:
            old = map_groups(lambda part: self.score(state.params, part).log_probs, rollout, self.micro_batches)
            batch = batch._replace(old_log_probs=jax.lax.stop_gradient(old))
        return batch


def summary(statistics: dict[str, Statistic]) -> dict[str, Float[Array, ""]]:
    """Divides statistics at last: Moments become ``name_mean`` and ``name_std``, the others keep their name."""
    metrics = {}
    for name, statistic in statistics.items():
        if isinstance(statistic, Moments):
            metrics |= {f"{name}_mean": statistic.mean, f"{name}_std": statistic.std()}
        else:
            metrics[name] = statistic.value if isinstance(statistic, Maximum) else statistic.compute()
    return metrics


def _repeat(body: Callable, state: TrainState, count: int) -> tuple[TrainState, dict, dict]:
    """Takes ``count`` optimizer steps; returns the last state, the first step's statistics and all steps' merged."""
    if count == 1:
        state, statistics = body(state, None)
        return state, statistics, statistics
    state, stacked = jax.lax.scan(body, state, length=count)
    return state, jax.tree.map(lambda leaf: leaf[0], stacked), merge_stacked(stacked)


def _controlled(controller: Controller, state: Any, statistics: dict[str, Statistic], batch: Batch) -> Any:
    """Returns the controller's next state; the same one where the step was rejected."""
    name = STATISTICS[controller.statistic]
    kl, rejected = statistics.get(name), statistics["rejected"]
    if not (isinstance(kl, Mean) and isinstance(rejected, Mean)):
        raise ValueError(f"the controller reads the mean {name!r}, but the objective reports only {sorted(statistics)}")
    # An average over nothing is no evidence that the KL is 0: a non-finite one leaves the controller alone.
    value = jnp.where(kl.count > 0, kl.compute(), jnp.nan)
    samples = jnp.sum(jnp.any(batch.mask, axis=-1), where=batch.valid)
    return choose(rejected.total == 0, controller.update(state, value, samples), state)


def _validate(
    objective: Objective, controller: Controller, reference: Reference, micro_batches: int, updates_per_rollout: int
) -> None:
    """Raises ValueError for numbers below 1 and for parts of which one would silently have no effect."""
    check_built("learner", Objective, objective=objective)
    check_built("learner", Controller, controller=controller)
    check_built("learner", Reference, reference=reference)
    for name, value in (("micro_batches", micro_batches), ("updates_per_rollout", updates_per_rollout)):
        if value < 1:
            raise ValueError(f"learner: {name} must be at least 1, got {value}")
    has_kl, beta = objective.needs_reference, controller.description
    if reference.moves and (controller.always_zero or not has_kl):
        why = "the objective has no KL term" if not has_kl else "beta is 0 for ever"
        remedy = "use frozen(), or a KL term and a beta above 0"
        raise ValueError(f"learner: {reference.description} follows the policy, but {why}; {remedy}")
    if not has_kl and not controller.always_zero:
        raise ValueError(f"learner: {beta} has no effect, since the objective has no KL term; use constant(0.0)")
    if has_kl and controller.always_zero:
        raise ValueError(
            f"learner: {beta} turns the objective's KL term off for ever; build the objective with kl=None"
        )
    if objective.needs_full_kl and not reference.needs_params:
        remedy = "use frozen(), or an estimator of the log-ratio such as k3"
        raise ValueError(
            f"learner: the full-vocabulary KL needs a reference policy, not {reference.description}; {remedy}"
        )
