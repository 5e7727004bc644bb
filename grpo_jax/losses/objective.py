"""The objective: advantage, surrogate, KL term, degenerate groups and reduction composed into one pure function.

What trains is what is certified: the training step and the exact oracle differentiate this same function.

    loss = reduce_{p,g,t}( w_p * c_t * [ surrogate_t(A_t - beta * cost_t) + beta * k_t - eta * H_t ] )

with w_p the weight of group p (`grpo_jax.losses.degenerate`), c_t the mismatch correction, cost_t and k_t the parts of
the KL term in the reward and in the loss, and H_t the entropy.
"""

from collections.abc import Callable
from dataclasses import dataclass

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from grpo_jax.advantages import Advantage
from grpo_jax.arguments import check_built, check_takes
from grpo_jax.kl import Penalty, Target
from grpo_jax.losses import declaration
from grpo_jax.losses.degenerate import Degenerate
from grpo_jax.losses.degenerate import keep as keep_degenerate
from grpo_jax.losses.measures import measures
from grpo_jax.losses.mismatch import Mismatch
from grpo_jax.losses.reductions import Reduction
from grpo_jax.losses.surrogates import Surrogate
from grpo_jax.losses.terms import Parts, gather, members, per_completion
from grpo_jax.statistics import Mean, Statistic
from grpo_jax.types import Batch, Scores


@dataclass(frozen=True)
class Objective:
    """A composed objective; call it, or use `prepare` and `accumulate` to split a batch.

    A dataclass and no NamedTuple, because ``jax.jit`` and ``jax.grad`` need callables that can be referenced weakly.

    Attributes:
        parts: the pieces it is made of.
        target: the gradient its KL term follows on-policy, up to a constant scale (reduction, group size).
        off_policy_target: the same when an older policy sampled.
        notes: what else the composition does to the expected gradient, a sentence each.
    """

    parts: Parts
    target: Target
    off_policy_target: Target
    notes: tuple[str, ...]

    @property
    def needs_reference(self) -> bool:
        """Whether a reference policy is needed at all."""
        return self.parts.kl is not None

    @property
    def needs_full_kl(self) -> bool:
        """Whether scores must hold the exact KL of each next-token distribution."""
        return self.parts.kl is not None and self.parts.kl.needs_full_kl

    @property
    def needs_entropy(self) -> bool:
        """Whether scores must hold the entropy of each next-token distribution."""
        return self.parts.entropy_coefficient > 0 or self.parts.degenerate.shape is not None

    def __call__(
        self, scores: Scores, batch: Batch, beta: Float[Array, ""] | float
    ) -> tuple[Float[Array, ""], dict[str, Statistic]]:
        """Returns the loss and its metrics.

        Args:
            scores: what the current policy says of the batch's tokens ``[P, G, T]``; the only input differentiated.
            batch: masks, rewards and other policies' log-probs.
            beta: strength of the KL term, >= 0, may be traced.

        Raises:
            ValueError: the batch or the scores lack something that the objective needs.
            AssertionError: shapes that do not fit.
        """
        mean, metrics = self.accumulate(scores, self.prepare(batch), beta)
        return mean.compute(), metrics

    def prepare(self, batch: Batch) -> Batch:
        """Returns the batch with its advantages, whose statistics may span all groups; call it before splitting."""
        batch = jax.lax.stop_gradient(batch.check())
        if self.parts.kl is not None and self.parts.kl.sequence_cost is not None:
            return batch
        member = members(batch)
        advantages = jax.vmap(self.parts.advantage.compute)(batch.rewards, member)
        if self.parts.advantage.across_batch is not None:
            advantages = self.parts.advantage.across_batch(advantages, member)
        return batch._replace(advantages=advantages)

    def accumulate(
        self, scores: Scores, batch: Batch, beta: Float[Array, ""] | float
    ) -> tuple[Mean, dict[str, Statistic]]:
        """Returns the undivided loss and metrics of a prepared batch or of whole groups out of one.

        Totals, counts and metrics of the pieces merge to those of the whole; only ``total`` carries a gradient.
        """
        check_inputs(self, scores, batch)
        terms = gather(self.parts, scores, batch.check(), beta)
        surrogate, kl = self.parts.surrogate, self.parts.kl
        policy = per_completion(surrogate.loss)(terms.log_probs, terms.old_log_probs, terms.advantages, terms.active)
        penalty = jnp.zeros_like(policy)
        if kl is not None and kl.loss is not None:
            penalty = per_completion(kl.loss)(terms.tokens)
        weight = terms.correction * terms.group_weight[:, None, None]

        def reduced(values: Float[Array, "P G T"]) -> Mean:
            return self.parts.reduction.reduce(jnp.where(terms.active, weight * values, 0), terms.counted)

        loss = reduced(policy + beta * penalty - self.parts.entropy_coefficient * terms.entropy)
        parts = {"loss": loss, "policy_loss": reduced(policy), "kl_loss": reduced(penalty)}
        metrics = parts | measures(surrogate, scores, batch, terms)
        return loss, jax.lax.stop_gradient(metrics)


def objective(
    advantage: Advantage,
    surrogate: Surrogate,
    reduction: Reduction,
    kl: Penalty | None = None,
    degenerate: Degenerate | None = None,
    entropy_coefficient: float = 0.0,
    mismatch: Mismatch | None = None,
    off_policy: Callable | None = None,
) -> Objective:
    """Builds an objective from its parts.

    Args:
        advantage: from rewards to advantages, one group at a time.
        surrogate: the policy loss of each token.
        reduction: from token losses to one number; the same for policy, KL and entropy.
        kl: the KL term; None: no reference is needed anywhere.
        degenerate: the rule for groups with equal rewards; None: ``degenerate.keep()``.
        entropy_coefficient: eta, weight of the entropy bonus, >= 0, per nat.
        mismatch: correction between sampler and trainer; needs ``behaviour_log_probs``.
        off_policy: rule that drops completions, `mismatch.off_policy_sequences`.

    Returns:
        The objective, with the gradient it follows declared.

    Raises:
        ValueError: parts that do not fit together, with the reason and the remedy.
        TypeError: a part that is its own factory, uncalled.
    """
    check_built("objective", Advantage, advantage=advantage)
    check_built("objective", Surrogate, surrogate=surrogate)
    check_built("objective", Reduction, reduction=reduction)
    check_built("objective", Penalty, kl=kl)
    check_built("objective", Degenerate, degenerate=degenerate)
    check_takes("objective", ("old_log_probs", "behaviour_log_probs", "mask"), mismatch=mismatch)
    check_takes("objective", ("log_probs", "behaviour_log_probs", "advantage", "mask"), off_policy=off_policy)
    if not 0 <= entropy_coefficient < float("inf"):
        raise ValueError(f"objective: entropy_coefficient is {entropy_coefficient}; it must be finite and >= 0")
    rule = keep_degenerate() if degenerate is None else degenerate
    parts = Parts(advantage, surrogate, kl, rule, reduction, entropy_coefficient, mismatch, off_policy)
    declaration.check_parts(advantage, surrogate, kl, rule)
    return Objective(
        parts,
        declaration.on_policy(parts),
        declaration.off_policy(parts),
        declaration.notes(advantage, kl, rule, reweighted=mismatch is not None or off_policy is not None),
    )


def check_inputs(checked: Objective, scores: Scores, batch: Batch) -> None:
    """Raises ValueError where scores or batch lack what the objective needs, naming it and the remedy.

    Also AssertionError where the scores are not of the batch's shape.
    """
    chex.assert_equal_shape([batch.mask, *jax.tree.leaves(scores)])
    if checked.needs_reference and not checked.needs_full_kl and batch.ref_log_probs is None:
        raise ValueError(
            "objective: a KL term needs batch.ref_log_probs [P, G, T]; score the reference, or pass kl=None"
        )
    if checked.needs_full_kl and scores.full_kl is None:
        raise ValueError(
            "objective: the full-vocabulary KL needs scores.full_kl; score with the reference's parameters"
        )
    if checked.needs_entropy and scores.entropy is None:
        raise ValueError("objective: the entropy term needs scores.entropy; score with entropy=True")
    wants_record = checked.parts.mismatch is not None or checked.parts.off_policy is not None
    if wants_record and batch.behaviour_log_probs is None:
        raise ValueError("objective: mismatch correction needs batch.behaviour_log_probs, the sampler's own record")
