"""The importance forms: how completions of the behaviour policy are weighted in the policy loss and in the KL term."""

import functools

import grpo_jax as gj
from grpo_jax.kl import Penalty
from grpo_jax.losses import Objective, Surrogate

WHOLE = gj.surrogates.sequence_importance_weighted()


def _k3(importance: gj.kl.importance.Importance) -> Penalty:
    return gj.kl.penalty(gj.kl.k3, "loss", importance=importance)


FORMS: dict[str, tuple[Surrogate, Penalty]] = {
    "none": (gj.surrogates.reinforce(), _k3(gj.kl.importance.none())),
    "token": (gj.surrogates.importance_weighted(), _k3(gj.kl.importance.token())),
    "prefix": (WHOLE, _k3(gj.kl.importance.prefix())),
    "causal": (WHOLE, _k3(gj.kl.importance.causal())),
    "sequence": (WHOLE, _k3(gj.kl.importance.sequence())),
    "k1 to go, sequence": (WHOLE, gj.kl.penalty(gj.kl.k1)),
    "k1 to go, clipped": (gj.surrogates.clipped(), gj.kl.penalty(gj.kl.k1)),
    "exact KL, token": (gj.surrogates.importance_weighted(), gj.kl.full_vocabulary("loss")),
}
"""Policy loss and KL term. The first five have k3 in the loss with that correction; beside prefix, causal and sequence
the policy loss has the exact weight of the whole trajectory, beside none and token the same as the KL term. The last
computes the KL over all actions in each state of the data, and needs no weight for that."""


@functools.cache
def objective_of(form: str) -> Objective:
    """Returns the objective: leave-one-out advantage, sums over steps."""
    surrogate, term = FORMS[form]
    return gj.objective(gj.advantages.leave_one_out(), surrogate, gj.reductions.sequence_mean_of_token_sum(), kl=term)
