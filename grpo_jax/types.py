"""What flows between the stages, with the axis letters used everywhere.

P prompts (one group each), G completions of a group, T tokens of a completion, L tokens of a prompt, V vocabulary,
K rewards of a completion. Log-probabilities are natural, so KL is in nats.
"""

from typing import Any, NamedTuple

import chex
import jax.numpy as jnp
import numpy as np
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


class Packing(NamedTuple):
    """Where a group's tokens stand once its completions are laid end to end in B bins of S positions.

    A completion stands in one bin from its first token to its last unmasked one, in order; what follows is padding and
    stands nowhere. ``grpo_jax.updates.pack`` makes one.

    Attributes:
        members: number of the completion that a position's token belongs to, counted from 1; 0 where none stands, so
            that a group of zeros is empty ``[P, B, S]``.
        steps: which of the completion's tokens it is, counted from 0; not read where none stands ``[P, B, S]``.
    """

    members: Int[Array, "P B S"]
    steps: Int[Array, "P B S"]

    def check(self, mask: Bool[Array | np.ndarray, "P G T"]) -> "Packing":
        """Returns itself; raises AssertionError for a wrong shape, ValueError where completions do not stand as said.

        Args:
            mask: the rollout's mask; where it and the packing are NumPy arrays, what they hold is checked too.
        """
        chex.assert_rank(self, 3)
        chex.assert_equal_shape(self)
        chex.assert_equal_shape_prefix([self.members, mask], 1)
        if all(isinstance(leaf, np.ndarray) for leaf in (*self, mask)):
            wrong = np.flatnonzero(~np.asarray(self.holds(mask)))
            if wrong.size:
                raise ValueError(
                    f"Rollout.packing does not hold every completion of the groups {wrong[:8].tolist()} once, whole "
                    "and in order; make it with grpo_jax.updates.pack after the mask has its last form"
                )
        return self

    def holds(self, mask: Bool[Array | np.ndarray, "P G T"]) -> Bool[Array | np.ndarray, " P"]:
        """Returns for each group whether every completion of the mask stands in it once, whole and in order."""
        numbers = np.arange(1, mask.shape[1] + 1)[None, None, None]
        stands = self.members > 0
        begins = self.steps == 0
        follows = (self.members[..., 1:] == self.members[..., :-1]) & (self.steps[..., 1:] == self.steps[..., :-1] + 1)
        ordered = (begins | ~stands)[..., 0].all(-1) & (begins[..., 1:] | ~stands[..., 1:] | follows).all((-1, -2))
        own = self.members[..., None] == numbers
        lengths = (mask * np.arange(1, mask.shape[2] + 1)[None, None]).max(-1)
        starts, counts = (own & begins[..., None]).sum((1, 2)), own.sum((1, 2))
        whole = (starts == (counts > 0)) & (counts >= lengths) & (counts <= mask.shape[2])
        known = ((self.members >= 0) & (self.members <= mask.shape[1])).all((-1, -2))
        return ordered & whole.all(-1) & known


class Rollout(NamedTuple):
    """Completions sampled for every prompt, and what the sampler thought of them.

    Attributes:
        prompts: the prompts ``[P, L]``.
        tokens: completion token ids ``[P, G, T]``.
        mask: True up to and including the first end token ``[P, G, T]``; positions, never ``tokens != pad``.
        log_probs: the sampler's log-probability of each token under its temperature-scaled full-vocabulary
            distribution ``[P, G, T]``, also where top-k or top-p restricted the choice; 0 where masked.
        finished: True where the completion ended with an end token, False where the budget cut it ``[P, G]``.
        packing: how a policy may lay the completions out to score them, so that padding costs nothing. It changes no
            score, and a policy that has no use for it ignores it. None: as they stand.
    """

    prompts: Prompts
    tokens: Int[Array, "P G T"]
    mask: Bool[Array, "P G T"]
    log_probs: Float[Array, "P G T"]
    finished: Bool[Array, "P G"]
    packing: Packing | None = None

    def check(self) -> "Rollout":
        """Returns itself; raises AssertionError when shapes or dtypes are not those documented."""
        self.prompts.check()
        chex.assert_rank([self.tokens, self.mask, self.log_probs], 3)
        chex.assert_equal_shape([self.tokens, self.mask, self.log_probs])
        chex.assert_shape(self.finished, self.tokens.shape[:2])
        chex.assert_equal_shape_prefix([self.prompts.tokens, self.tokens], 1)
        chex.assert_type([self.mask, self.finished], bool)
        if self.packing is not None:
            self.packing.check(self.mask)
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
