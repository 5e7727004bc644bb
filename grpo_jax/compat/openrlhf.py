"""OpenRLHF, read at 0.11.2: RLOO, REINFORCE++ baseline, and GRPO with the KL loss."""

from grpo_jax.advantages import Advantage, batch_whitened, leave_one_out, standardised
from grpo_jax.compat.parts import at_sampling, capped_ratio_k2, cut, noted
from grpo_jax.kl import Estimator, k1, k2, k3, penalty
from grpo_jax.kl.estimators import name_of
from grpo_jax.losses import Objective, Reduction, Surrogate, objective, reductions, surrogates

_CLAMP = "OpenRLHF: ratios are clamped plainly at 20 nats; ours go on as tangents"
_REWARD = "OpenRLHF: the reward minus its baseline is clipped to +-10; here it is not"


def openrlhf_rloo(
    eps_clip_low: float = 0.2,
    eps_clip_high: float = 0.2,
    dual_clip: float | None = None,
    *,
    estimator: Estimator | None = None,
    reduction: Reduction | None = None,
) -> Objective:
    r"""Builds OpenRLHF's ``algo.advantage.estimator=rloo`` with the KL in the reward, its default (0.11.2).

    .. math:: \mathrm{clip}(\rho_t, A_t), \quad A_t = r_i - \frac{1}{G-1} \sum_{j \ne i} r_j
        - \beta \sum_{s \ge t} \mathrm{clip}(\log \pi_{old} - \log p, \pm 10)_s

    The baseline comes first and the KL after it, unlike in TRL: both are unbiased, with another variance.

    **Follows** (the KL term alone, within the clamp) `reverse` on-policy: this is the placement that ours calls
    ``to_go``. Off-policy nothing: the ratio is clipped, and the KL is that of the old policy.

    **Move to** ``reductions.constant_length(L)`` in place of the mean over tokens: then the whole is `reverse`. For
    samples of an older policy ``kl.penalty(kl.k3, "loss", importance=kl.importance.causal())``.

    1. The reward minus its baseline is clipped to +-10 (``reward.clip_range``); here it is not.
    2. Ratios are clamped plainly at 20 nats; ours go on as tangents.

    Args:
        eps_clip_low: bound below 1.
        eps_clip_high: bound above 1.
        dual_clip: largest ratio for negative advantages, > 1; None: none.
        estimator: None: k1, cut at 10 nats.
        reduction: None: ``token_mean()``.
    """
    built = objective(
        leave_one_out(),
        _surrogate(eps_clip_low, eps_clip_high, dual_clip),
        reductions.token_mean() if reduction is None else reduction,
        kl=at_sampling(penalty(cut(k1) if estimator is None else estimator, "to_go", allow_biased=True)),
    )
    return noted(built, _CLAMP, _REWARD)


def openrlhf_reinforce_plus_plus_baseline(
    eps_clip_low: float = 0.2,
    eps_clip_high: float = 0.2,
    dual_clip: float | None = None,
    *,
    estimator: Estimator | None = None,
    reduction: Reduction | None = None,
) -> Objective:
    r"""Builds the closest to OpenRLHF's ``algo.advantage.estimator=reinforce_baseline`` (0.11.2). It is not the same.

    .. math:: A_t = (r_i - \bar r) / \mathrm{std}
        - \beta \sum_{s \ge t} \mathrm{clip}(\log \pi_{old} - \log p, \pm 10)_s

    **Follows** (the KL term alone, within the clamp) `reverse` on-policy, nothing off-policy.

    **Move to** this with ``reductions.constant_length(L)``.

    1. There the KL is subtracted *before* the whitening, which divides it by the batch's standard deviation: beta
       changes from batch to batch, and with it what the run is regularised by. Here it is added after, with the beta
       given.
    2. There every token counts in mean and standard deviation, so long completions count more and the mean is not 0;
       here every completion counts once, and groups of equal rewards stay at exactly 0.
    3. The differences of `openrlhf_rloo`.

    Args:
        eps_clip_low: bound below 1.
        eps_clip_high: bound above 1.
        dual_clip: largest ratio for negative advantages, > 1; None: none.
        estimator: None: k1, cut at 10 nats.
        reduction: None: ``token_mean()``.
    """
    built = objective(
        batch_whitened(0, 0),
        _surrogate(eps_clip_low, eps_clip_high, dual_clip),
        reductions.token_mean() if reduction is None else reduction,
        kl=at_sampling(penalty(cut(k1) if estimator is None else estimator, "to_go", allow_biased=True)),
    )
    whitened = "OpenRLHF: the KL goes through the whitening, over tokens; here it is added after it, over completions"
    return noted(built, whitened, _CLAMP, _REWARD)


def openrlhf_grpo(
    eps_clip_low: float = 0.2,
    eps_clip_high: float = 0.2,
    dual_clip: float | None = None,
    *,
    estimator: Estimator | None = None,
    advantage: Advantage | None = None,
    reduction: Reduction | None = None,
) -> Objective:
    r"""Builds OpenRLHF's ``group_norm`` with ``algo.kl.use_loss`` (0.11.2).

    .. math:: \mathrm{clip}(\rho_t, A) + \beta \, \mathrm{clip}(k(u_t), \pm 10), \quad
        A = (r - \bar r) / (\mathrm{std} + 10^{-9})

    **Follows** (the KL term alone, within the clamp) `local_forward` for k3, `local_reverse` for ``cut(kl.k2)``,
    nothing for ``cut(kl.k1)``, which is what the option leaves the estimator at unless it is set; off-policy nothing.

    **Move to** ``kl.penalty(kl.k3, "loss", importance=kl.importance.causal())`` and ``reductions.constant_length(L)``:
    `reverse`.

    1. The estimator is k1 by default and k2 or k3 are recommended there; here k3, as in its GRPO.
    2. Ratios are clamped plainly at 20 nats; ours go on as tangents.

    Args:
        eps_clip_low: bound below 1.
        eps_clip_high: bound above 1.
        dual_clip: largest ratio for negative advantages, > 1; None: none.
        estimator: None: k3, cut at 10 nats.
        advantage: None: ``advantages.standardised(1, 1e-9)``; ``dr_grpo`` is ``centred()``.
        reduction: None: ``token_mean()``.
    """
    built = objective(
        standardised(1, 1e-9) if advantage is None else advantage,
        _surrogate(eps_clip_low, eps_clip_high, dual_clip),
        reductions.token_mean() if reduction is None else reduction,
        kl=penalty(cut(k3) if estimator is None else estimator, "loss", allow_biased=True),
    )
    return noted(built, _CLAMP)


def openrlhf_grpo_unbiased(
    eps_clip_low: float = 0.2,
    eps_clip_high: float = 0.2,
    dual_clip: float | None = None,
    *,
    value: Estimator | None = None,
    ratio_cap: float = 10.0,
    advantage: Advantage | None = None,
    reduction: Reduction | None = None,
) -> Objective:
    r"""Builds `openrlhf_grpo` with ``algo.kl.unbiased_gradient`` (0.11.2): the gradient of k2 under a capped ratio.

    .. math:: \beta (w_t k_2(u_t) - \mathrm{sg}(w_t k_2(u_t)) + \mathrm{sg}(k(u_t))), \quad
        w_t = \mathrm{sg}(\min(\rho_t, 10))

    **Follows** (the KL term alone) `local_reverse` on-policy; off-policy the same at the sampler's prefixes as long as
    no ratio meets the cap, which nothing guarantees.

    **Move to** ``kl.penalty(kl.k3, "loss", importance=kl.importance.causal())`` and ``reductions.constant_length(L)``:
    `reverse`.

    1. Of the whole KL of a sequence, which the option is named after, only the local part is followed.
    2. Ratios of the policy loss are clamped plainly at 20 nats; ours go on as tangents.

    Args:
        eps_clip_low: bound below 1.
        eps_clip_high: bound above 1.
        dual_clip: largest ratio for negative advantages, > 1; None: none.
        value: the estimator that is reported; None: k3, cut at 10 nats.
        ratio_cap: largest weight, > 0.
        advantage: as in `openrlhf_grpo`.
        reduction: as in `openrlhf_grpo`.
    """
    local = penalty(k2, "loss")
    term = local._replace(
        estimator=f"{name_of(cut(k3) if value is None else value)} with k2's gradient",
        importance=f"token, capped at {ratio_cap:g}",
        loss=capped_ratio_k2(cut(k3) if value is None else value, ratio_cap),
        loss_off_policy=local.target.without(f"ratios are capped at {ratio_cap:g}"),
    )
    built = objective(
        standardised(1, 1e-9) if advantage is None else advantage,
        _surrogate(eps_clip_low, eps_clip_high, dual_clip),
        reductions.token_mean() if reduction is None else reduction,
        kl=term,
    )
    return noted(built, _CLAMP)


def _surrogate(low: float, high: float, dual: float | None) -> Surrogate:
    return surrogates.clipped(low, high) if dual is None else surrogates.dual_clipped(low, high, dual)
