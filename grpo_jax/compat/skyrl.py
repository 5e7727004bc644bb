"""SkyRL, read at its main branch of autumn 2026."""

from grpo_jax.advantages import Advantage, standardised
from grpo_jax.compat.parts import low_var_kl, noted
from grpo_jax.kl import Estimator, penalty
from grpo_jax.losses import Objective, Surrogate, objective, reductions, surrogates

_REDUCTION = "SkyRL: the KL is averaged per micro-batch over sequences whatever reduces the policy loss"
_CLAMP = "SkyRL: ratios are clamped plainly at 20 nats; ours go on as tangents"


def skyrl_grpo(
    eps_clip_low: float = 0.2,
    eps_clip_high: float = 0.2,
    clip_ratio_c: float | None = None,
    *,
    estimator: Estimator | None = None,
    advantage: Advantage | None = None,
) -> Objective:
    r"""Builds SkyRL's GRPO with ``use_kl_loss`` and ``loss_reduction="sequence_mean"`` (main, autumn 2026).

    .. math:: \mathrm{clip}(\rho_t, A) + \beta \, \mathrm{clip}(k_3(\mathrm{clip}(u_t, \pm 20)), \pm 10), \quad
        A = (r - \bar r) / (\mathrm{std} + 10^{-6})

    **Follows** (the KL term alone, within the clamp) `local_forward` on-policy, nothing off-policy.

    **Move to** ``kl.penalty(kl.k3, "loss", importance=kl.importance.causal())`` and ``reductions.constant_length(L)``:
    `reverse`.

    1. The default ``loss_reduction="token_mean"`` **cannot be expressed**: the KL stays a mean over sequences of means
       over tokens, averaged over micro-batches, while the policy loss is a mean over the batch's tokens, so that the
       weight of one against the other moves with the mix of lengths. Rows of 1 and 9 tokens with KL 1 at the first
       token of the first row and 0 elsewhere have a KL loss of 0.5 there and 0.1 with one reduction. Ours has one
       reduction for both, always.
    2. Completions without tokens count in that mean there, and not here.
    3. Ratios are clamped plainly at 20 nats; ours go on as tangents.
    4. Soft masks scale a token's KL there; here a mask is boolean.
    5. The off-policy correction weighs the policy loss alone, so it is left out.

    Args:
        eps_clip_low: bound below 1.
        eps_clip_high: bound above 1.
        clip_ratio_c: ``policy_loss_type="dual_clip"``: largest ratio for negative advantages, > 1; None: "regular".
        estimator: ``kl_estimator_type``; None: k3, which is `low_var_kl`.
        advantage: None: ``advantages.standardised(1, 1e-6)``; ``grpo_norm_by_std=False`` is ``centred()``, "rloo"
            ``leave_one_out()``, "maxrl" ``max_rl()``.
    """
    built = objective(
        standardised(1, 1e-6) if advantage is None else advantage,
        _surrogate(eps_clip_low, eps_clip_high, clip_ratio_c),
        reductions.sequence_mean_of_token_mean(),
        kl=penalty(low_var_kl() if estimator is None else estimator, "loss", allow_biased=True),
    )
    return noted(built, _REDUCTION, _CLAMP)


def _surrogate(low: float, high: float, dual: float | None) -> Surrogate:
    return surrogates.clipped(low, high) if dual is None else surrogates.dual_clipped(low, high, dual)
