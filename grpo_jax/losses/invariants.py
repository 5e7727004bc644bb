"""What must hold of every objective, checkable on real batches during training."""

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from grpo_jax.losses.objective import Objective
from grpo_jax.losses.terms import gather
from grpo_jax.types import Batch, Scores


def log_prob_gradient(
    objective: Objective, scores: Scores, batch: Batch, beta: Float[Array, ""] | float
) -> Float[Array, "P G T"]:
    """Returns the gradient of the loss with respect to every token's log-probability."""
    return _score_gradient(objective, scores, batch, beta).log_probs


def assert_degenerate_gradients_are_zero(
    objective: Objective, scores: Scores, batch: Batch, beta: Float[Array, ""] | float
) -> None:
    """Asserts that no score of a group with weight 0, or of a masked token, has any gradient at all.

    That is its log-probability, and its entropy and exact KL where scored.

    Under ``jit`` wrap the caller in ``chex.chexify``. Cost: one more evaluation and gradient of the objective on the
    scores, without the model.

    Raises:
        AssertionError: a gradient that must be exactly 0 is not.
    """
    gradient = _score_gradient(objective, scores, batch, beta)
    terms = gather(objective.parts, scores, objective.prepare(batch), beta)
    forbidden = jax.tree.map(lambda slope: jnp.where(terms.active, 0, slope), gradient)
    chex.assert_trees_all_close(forbidden, jax.tree.map(jnp.zeros_like, forbidden), rtol=0, atol=0)


def _score_gradient(objective: Objective, scores: Scores, batch: Batch, beta: Float[Array, ""] | float) -> Scores:
    return jax.grad(lambda scores: objective(scores, batch, beta)[0])(scores)
