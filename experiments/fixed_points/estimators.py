"""The objectives that are trained: the same but for their KL term."""

from grpo_jax import advantages, kl, objective, reductions, surrogates
from grpo_jax.kl import importance
from grpo_jax.losses import Objective


def of(term: kl.Penalty) -> Objective:
    return objective(
        advantages.leave_one_out(),
        surrogates.sequence_importance_weighted(),
        reductions.sequence_mean_of_token_sum(),
        kl=term,
    )


ESTIMATORS = {
    "k1 reward": of(kl.penalty(kl.k1, "reward")),
    "k1 to go": of(kl.penalty(kl.k1, "to_go")),
    "k2 loss, sequence": of(kl.penalty(kl.k2, "loss", "sequence")),
    "k3 both": of(kl.penalty(kl.k3, "both")),
    "k3 loss, causal ratio": of(kl.penalty(kl.k3, "loss", "token", importance.causal())),
    "full both": of(kl.full_vocabulary("both")),
    "k3 loss, sequence": of(kl.penalty(kl.k3, "loss", "sequence")),
    "k1 own token": of(kl.penalty(kl.k1, "own_token")),
    "k2 loss, token": of(kl.penalty(kl.k2, "loss", "token")),
    "k3 loss, token ratio": of(kl.penalty(kl.k3, "loss", "token", importance.token())),
    "full loss": of(kl.full_vocabulary("loss")),
    "k3 loss, token": of(kl.penalty(kl.k3, "loss", "token")),
    "k1 loss": of(kl.penalty(kl.k1, "loss", allow_biased=True)),
    "k3 reward": of(kl.penalty(kl.k3, "reward", allow_biased=True)),
}
"""By name; ``objective.target.name`` says what each follows, and so where it must end."""
