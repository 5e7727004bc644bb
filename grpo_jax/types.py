"""What flows between the stages, with the axis letters used everywhere.

P prompts (one group each), G completions of a group, T tokens of a completion, L tokens of a prompt, V vocabulary,
K rewards of a completion. Log-probabilities are natural, so KL is in nats.
"""

from typing import Any, NamedTuple

import chex
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

Params = Any
"""A pytree of arrays: the parameters of one policy."""


class Prompts(NamedTuple):
    """One prompt per group, padded on either side to a common width.

    Attributes:
        tokens: token ids ``[P, L]``; what stands at masked positions is never read.
        mask: True where a token belongs to the prompt ``[P, L]``. A row without any True is a padding group.
    """

    tokens: Int[Array, "P L"]
    mask: Bool[Array, "P L"]

    def check(self) -> "Prompts":
        """Returns itself; raises AssertionError when shapes or dtypes are not those documented."""
        chex.assert_rank(self, 2)
        chex.assert_equal_shape(self)
        chex.assert_type(self.mask, bool)
        return self


class Rollout(NamedTuple):
    """Completions sampled for every prompt, and what the sampler thought of them.

    Attributes:
        prompts: the prompts ``[P, L]``.
        tokens: completion token ids ``[P, G, T]``.
        mask: True up to and including the first end token ``[P, G, T]``; positions, never ``tokens != pad``.
        log_probs: the sampler's log-probability of each token under its temperature-scaled full-vocabulary
            distribution ``[P, G, T]``, also where top-k or top-p restricted the choice; 0 where masked.
        finished: True where the completion ended with an end token, False where the budget cut it ``[P, G]``.
    """

    prompts: Prompts
    tokens: Int[Array, "P G T"]
    mask: Bool[Array, "P G T"]
    log_probs: Float[Array, "P G T"]
    finished: Bool[Array, "P G"]

    def check(self) -> "Rollout":
        """Returns itself; raises AssertionError when shapes or dtypes are not those documented."""
        self.prompts.check()
        chex.assert_rank([self.tokens, self.mask, self.log_probs], 3)
        chex.assert_equal_shape([self.tokens, self.mask, self.log_probs])
        chex.assert_shape(self.finished, self.tokens.shape[:2])
        chex.assert_equal_shape_prefix([self.prompts.tokens, self.tokens], 1)
        chex.assert_type([self.mask, self.finished], bool)
        return self


class Scores(NamedTuple):
    """What the current policy says of a rollout's tokens; the only thing an objective differentiates.

    Attributes:
        log_probs: log-probability of each completion token ``[P, G, T]``, float32.
        entropy: entropy of each next-token distribution ``[P, G, T]``, nats; None unless asked for.
        full_kl: exact KL of each next-token distribution to the reference's ``[P, G, T]``, nats; None unless asked for.
    """

    log_probs: Float[Array, "P G T"]
    entropy: Float[Array, "P G T"] | None = None
    full_kl: Float[Array, "P G T"] | None = None


class Batch(NamedTuple):
    """What the objective needs besides the scores. No gradient flows into any of it.

    Attributes:
        mask: True at tokens the policy chose ``[P, G, T]``.
        rewards: the reward trained on ``[P, G]``, or several ``[P, G, K]``. NaN: not scorable, so the member leaves
            the group's statistics and has advantage 0.
        valid: members that exist at all ``[P, G]``; an invalid one (padding, aborted) contributes nothing anywhere.
            None: all are.
        task_rewards: raw rewards that decide which groups are degenerate ``[P, G]`` or ``[P, G, K]``, where
            ``rewards`` have been shaped (length penalties). None: ``rewards`` themselves.
        old_log_probs: log-probs at the time of sampling ``[P, G, T]``. None: the current policy sampled (on-policy).
        behaviour_log_probs: the sampler's own record ``[P, G, T]``, for mismatch correction; NaN where unknown.
        ref_log_probs: log-probs of the reference policy ``[P, G, T]``; None when there is no KL term.
        advantages: filled in by ``Objective.prepare`` ``[P, G]``, so that statistics over the whole batch are taken
            before it is split into micro-batches; None: computed by the objective.
    """

    mask: Bool[Array, "P G T"]
    rewards: Float[Array, "P G"] | Float[Array, "P G K"]
    valid: Bool[Array, "P G"] | None = None
    task_rewards: Float[Array, "P G"] | Float[Array, "P G K"] | None = None
    old_log_probs: Float[Array, "P G T"] | None = None
    behaviour_log_probs: Float[Array, "P G T"] | None = None
    ref_log_probs: Float[Array, "P G T"] | None = None
    advantages: Float[Array, "P G"] | None = None

    def check(self) -> "Batch":
        """Returns itself with ``valid`` and ``task_rewards`` filled in; raises AssertionError on a wrong shape."""
        chex.assert_rank(self.mask, 3)
        chex.assert_type(self.mask, bool)
        groups = self.mask.shape[:2]
        chex.assert_rank(self.rewards, {2, 3})
        valid = jnp.ones(groups, bool) if self.valid is None else self.valid
        task_rewards = self.rewards if self.task_rewards is None else self.task_rewards
        chex.assert_shape(valid, groups)
        chex.assert_type(valid, bool)
        chex.assert_equal_shape_prefix([self.rewards, task_rewards, self.mask], 2)
        per_token = [self.old_log_probs, self.behaviour_log_probs, self.ref_log_probs]
        chex.assert_equal_shape([self.mask, *(x for x in per_token if x is not None)])
        return self._replace(valid=valid, task_rewards=task_rewards)


class TrainState(NamedTuple):
    """Everything needed to continue a run bit for bit, and nothing else.

    Attributes:
        params: the policy's parameters.
        opt_state: the optimizer's state.
        ref_params: the reference policy's parameters; None when no KL term needs them.
        controller: state of the beta controller.
        key: typed PRNG key, consumed by ``fold_in`` of the step.
        step: optimizer steps taken so far, scalar int32.
        position: index of the next training prompt, scalar int32.
        rejected: consecutive updates rejected because loss or gradient was not finite, scalar int32.
    """

    params: Params
    opt_state: Any
    ref_params: Params | None
    controller: Any
    key: Key[Array, ""]
    step: Int[Array, ""]
    position: Int[Array, ""]
    rejected: Int[Array, ""]
