"""Optimizers with validated settings, and the one place where a gradient reaches the parameters."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from grpo_jax.types import Params


class Step(NamedTuple):
    """What became of one gradient.

    Attributes:
        params: the parameters after it.
        opt_state: the optimizer's state after it.
        gradient_norm: global norm of the gradient before any clipping, scalar float32.
        rejected: True where loss, gradient or new parameters were not finite; then nothing changed.
        idle: True where the gradient was exactly zero; then nothing changed either.
    """

    params: Params
    opt_state: Any
    gradient_norm: Float[Array, ""]
    rejected: Bool[Array, ""]
    idle: Bool[Array, ""]


def warmed_up(learning_rate: float, steps: int) -> optax.Schedule:
    """Builds a schedule that rises linearly for some steps and is constant afterwards.

    ``lr_n = lr * min(1, (n + 1) / steps)`` for update n = 0, 1, ...: the first one is not wasted on a rate of 0.

    Args:
        learning_rate: the final rate, > 0.
        steps: updates until it is reached, >= 0; 0 and 1 start there.

    Returns:
        The schedule.

    Raises:
        ValueError: for a rate that is not positive and finite or a negative number of steps.
    """
    if not 0 < learning_rate < math.inf:
        raise ValueError(
            f"warmed_up: learning_rate must be positive and finite, got {learning_rate}; 1e-6 suits 7B models"
        )
    if steps < 0:
        raise ValueError(f"warmed_up: steps must not be negative, got {steps}; 0 means no warm-up")
    return lambda count: learning_rate * jnp.minimum(1.0, (count + 1) / max(steps, 1))


def adam(
    learning_rate: float,
    *,
    warmup_steps: int = 0,
    max_norm: float = 1.0,
    b1: float = 0.9,
    b2: float = 0.999,
    epsilon: float = 1e-8,
) -> optax.GradientTransformation:
    """Builds Adam behind a warm-up of the learning rate and a clip of the gradient's global norm.

    Args:
        learning_rate: rate after the warm-up, > 0.
        warmup_steps: updates until it is reached.
        max_norm: largest global norm of the gradient that Adam sees, > 0; ``math.inf`` does not clip.
        b1: decay of the first moment, in [0, 1).
        b2: decay of the second moment, in [0, 1).
        epsilon: added to the root of the second moment, > 0.

    Returns:
        The optimizer.

    Raises:
        ValueError: for a value out of its range.

    References:
        Kingma and Ba, Adam (arXiv 1412.6980), algorithm 1.
    """
    _validate(max_norm, b1, b2, epsilon)
    moments = optax.scale_by_adam(b1=b1, b2=b2, eps=epsilon)
    rate = optax.scale_by_learning_rate(warmed_up(learning_rate, warmup_steps))
    return optax.chain(_clip(max_norm), moments, rate)


def adamw(
    learning_rate: float,
    *,
    weight_decay: float = 0.01,
    warmup_steps: int = 0,
    max_norm: float = 1.0,
    b1: float = 0.9,
    b2: float = 0.999,
    epsilon: float = 1e-8,
) -> optax.GradientTransformation:
    """Builds Adam with decoupled weight decay on every parameter; everything else as in ``adam``.

    Args:
        learning_rate: rate after the warm-up, > 0.
        weight_decay: share of the parameters subtracted per update, times the rate, >= 0.
        warmup_steps: updates until the rate is reached.
        max_norm: largest global norm of the gradient that Adam sees, > 0; ``math.inf`` does not clip.
        b1: decay of the first moment, in [0, 1).
        b2: decay of the second moment, in [0, 1).
        epsilon: added to the root of the second moment, > 0.

    Returns:
        The optimizer.

    Raises:
        ValueError: for a value out of its range.

    References:
        Loshchilov and Hutter, Decoupled weight decay regularization (arXiv 1711.05101), algorithm 2.
    """
    _validate(max_norm, b1, b2, epsilon)
    if not 0 <= weight_decay < math.inf:
        raise ValueError(f"adamw: weight_decay must be 0 or positive, got {weight_decay}; 0 is plain Adam")
    moments = optax.scale_by_adam(b1=b1, b2=b2, eps=epsilon)
    decay = optax.add_decayed_weights(weight_decay)
    rate = optax.scale_by_learning_rate(warmed_up(learning_rate, warmup_steps))
    return optax.chain(_clip(max_norm), moments, decay, rate)


def trainable_only(
    optimizer: optax.GradientTransformation, is_trainable: Callable[[str], bool]
) -> optax.GradientTransformation:
    """Restricts an optimizer to some parameters; the others never move, and clipping does not count them.

    Args:
        optimizer: the optimizer of the trainable ones.
        is_trainable: True for the path of a parameter to train, as in ``"layers/attention/query"``.

    Returns:
        The restricted optimizer; its ``init`` raises ValueError when no path is trainable.
    """

    def labels(params):
        def label(path, _):
            return "trainable" if is_trainable(jax.tree_util.keystr(path, simple=True, separator="/")) else "frozen"

        return jax.tree.map_with_path(label, params)

    inner = optax.partition({"trainable": optimizer, "frozen": optax.set_to_zero()}, labels)

    def init(params):
        if "trainable" not in jax.tree.leaves(labels(params)):
            raise ValueError("no trainable parameters: is_trainable is False for every path; check its spelling")
        return inner.init(params)

    return optax.GradientTransformation(init, inner.update)


def require_trainable(params: Params) -> None:
    """Raises ValueError unless the tree holds at least one array of floats and nothing else."""
    leaves = jax.tree.leaves(params)
    if not any(leaf.size for leaf in leaves):
        raise ValueError("no trainable parameters: the policy's tree is empty; pass what Policy.init returned")
    for path, leaf in jax.tree.leaves_with_path(params):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            name = jax.tree_util.keystr(path)
            raise ValueError(
                f"parameter {name} has dtype {leaf.dtype}, which no gradient can move; keep it out of params"
            )


def guarded_step(
    optimizer: optax.GradientTransformation, params: Params, opt_state: Any, gradient: Params, loss: Float[Array, ""]
) -> Step:
    """Applies one gradient, unless something is not finite or there is nothing to apply.

    A non-finite loss, gradient or result leaves parameters and optimizer state bit for bit as they were. So does a
    gradient that is exactly zero (every group degenerate and masked, or nothing but padding): momentum of earlier
    batches would move the parameters without any evidence, and weight decay too.

    The optimizer's update is computed twice, once to be looked at: memory for a little time, as long as it is
    elementwise.

    Args:
        optimizer: the optimizer.
        params: the parameters.
        opt_state: the optimizer's state.
        gradient: the loss's gradient, a tree like ``params``.
        loss: the loss, scalar.

    Returns:
        The new parameters and state, or the old ones, and which it was.
    """
    gradient_norm = optax.tree.norm(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), gradient))

    def result(gradient: Params, opt_state: Any, params: Params) -> tuple[Params, Any]:
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    finite = jnp.isfinite(loss) & jnp.isfinite(gradient_norm)
    for leaf in jax.tree.leaves(result(gradient, opt_state, params)[0]):
        finite &= jnp.all(jnp.isfinite(leaf))
    idle = gradient_norm == 0
    # Computed once to be looked at and again to be kept. What is looked at is never stored, and what is kept takes the
    # place of what was; a result that waited for the verdict would hold parameters and optimizer state twice.
    kept, *inputs = jax.lax.optimization_barrier((finite & ~idle, gradient, opt_state, params))
    params, opt_state = jax.lax.cond(kept, result, lambda _, opt_state, params: (params, opt_state), *inputs)
    return Step(params, opt_state, gradient_norm, ~finite, idle)


def choose(condition: Bool[Array, ""], new: Any, old: Any) -> Any:
    """Returns the first tree where the condition holds, else the second, never a mixture of both."""
    return jax.tree.map(lambda first, second: jnp.where(condition, first, second), new, old)


def _clip(max_norm: float) -> optax.GradientTransformation:
    """Builds the clip of the global norm as one factor for all leaves.

    ``optax.clip_by_global_norm`` divides each element: XLA for CPUs does that once and keeps a copy of the gradient,
    where it multiplies by a factor wherever the product is read.
    """

    def clipped(gradient: Any, _: Any) -> Any:
        factor = jnp.minimum(1.0, max_norm / optax.tree.norm(gradient))
        return jax.tree.map(lambda leaf: leaf * factor.astype(leaf.dtype), gradient)

    return optax.stateless(clipped)


def _validate(max_norm: float, b1: float, b2: float, epsilon: float) -> None:
    """Raises ValueError for settings of Adam that no run can mean."""
    if not max_norm > 0:
        raise ValueError(f"adam: max_norm must be positive, got {max_norm}; 1.0 is usual, math.inf does not clip")
    for name, value in (("b1", b1), ("b2", b2)):
        if not 0 <= value < 1:
            raise ValueError(f"adam: {name} must lie in [0, 1), got {value}; 0.9 and 0.999 are usual")
    if not 0 < epsilon < math.inf:
        raise ValueError(f"adam: epsilon must be positive and finite, got {epsilon}; 1e-8 is usual")
