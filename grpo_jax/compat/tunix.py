"""Tunix, read at 0.1.7."""

from grpo_jax.advantages import Advantage, standardised
from grpo_jax.compat.parts import cut, noted
from grpo_jax.kl import Estimator, k1, penalty
from grpo_jax.losses import Objective, Reduction, objective, reductions, surrogates

_CLAMP = "Tunix: ratios are clamped plainly at 20 nats; ours go on as tangents"
_MICRO = "Tunix: micro-batches are averaged with equal weight; here the batch has one denominator"


def tunix_grpo(
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    epsilon_c: float | None = None,
    *,
    estimator: Estimator = k1,
    kl_clamp_value: float | None = None,
    advantage: Advantage | None = None,
    reduction: Reduction | None = None,
) -> Objective:
    r"""Builds Tunix's GRPO (0.1.7).

    .. math:: \mathrm{clip}(\rho_t, A) + \beta \, k(u_t), \quad A = (r - \bar r) / (\mathrm{std} + 10^{-6})

    **Follows** with the default ``kl_loss_mode="kl"``, k1 in the loss, **nothing that knows the reference**: the
    gradient is the bare score, and the mean over each completion's tokens makes of it `length`, a push on length. Its
    own KL therefore grows as if beta were 0. With ``estimator=kl.k2`` (``"mse_kl"``) `local_reverse`, with ``kl.k3``
    (``"low_var_kl"``) `local_forward` (the KL term alone, on-policy); off-policy nothing.

    **Move to** ``kl.penalty(kl.k3, "loss", importance=kl.importance.causal())`` and ``reductions.constant_length(L)``:
    `reverse`.

    1. beta is 0.04 there by default.
    2. Ratios are clamped plainly at 20 nats; ours go on as tangents. k3's exponent is unbounded there.
    3. ``sequence-mean-token-scale`` divides by the padded width of the batch: ``constant_length(width)`` only while the
       width does not change. ``sequence-mean-token-sum-norm`` is ``sequence_mean_of_token_sum()``.
    4. Micro-batches are averaged with equal weight; here the batch has one denominator.
    5. ``sampler_is_weights`` weigh the policy loss alone, so they are left out.

    Args:
        epsilon: bound below 1, and above where ``epsilon_high`` is None.
        epsilon_high: bound above 1; None: epsilon.
        epsilon_c: largest ratio for negative advantages, > 1; None: none.
        estimator: ``kl_loss_mode``.
        kl_clamp_value: largest absolute value of the estimate, nats, clamped plainly; None: no limit.
        advantage: None: ``advantages.standardised(1, 1e-6)``; "rloo" is ``leave_one_out()``, "drgrpo" ``centred()``.
        reduction: None: ``sequence_mean_of_token_mean()``; ``token-mean`` is ``token_mean()``.
    """
    high = epsilon if epsilon_high is None else epsilon_high
    plain = epsilon_c is None
    built = objective(
        standardised(1, 1e-6) if advantage is None else advantage,
        surrogates.clipped(epsilon, high) if plain else surrogates.dual_clipped(epsilon, high, epsilon_c),
        reductions.sequence_mean_of_token_mean() if reduction is None else reduction,
        kl=penalty(_cut(estimator, kl_clamp_value), "loss", allow_biased=True),
    )
    return noted(built, _CLAMP, _MICRO)


def tunix_gspo(
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    *,
    estimator: Estimator = k1,
    kl_clamp_value: float | None = None,
    advantage: Advantage | None = None,
    reduction: Reduction | None = None,
) -> Objective:
    """Builds Tunix's ``loss_algo="gspo-token"`` (0.1.7): the ratio sg(s) pi / sg(pi) in place of the token's.

    **Follows** and **move to**: as `tunix_grpo`, whose KL term it shares.

    Differences: those of `tunix_grpo`; log s is cut at 10 there.

    Args:
        epsilon: bound below 1, and above where ``epsilon_high`` is None.
        epsilon_high: bound above 1; None: epsilon.
        estimator: as in `tunix_grpo`.
        kl_clamp_value: as in `tunix_grpo`.
        advantage: as in `tunix_grpo`.
        reduction: as in `tunix_grpo`.
    """
    built = objective(
        standardised(1, 1e-6) if advantage is None else advantage,
        surrogates.gspo_token(epsilon, epsilon if epsilon_high is None else epsilon_high),
        reductions.sequence_mean_of_token_mean() if reduction is None else reduction,
        kl=penalty(_cut(estimator, kl_clamp_value), "loss", allow_biased=True),
    )
    return noted(built, _CLAMP, _MICRO)


def _cut(estimator: Estimator, limit: float | None) -> Estimator:
    return estimator if limit is None else cut(estimator, limit)
