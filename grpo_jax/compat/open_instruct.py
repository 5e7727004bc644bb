"""open-instruct, read at its main branch of autumn 2026."""

from grpo_jax.advantages import Advantage, standardised
from grpo_jax.compat.parts import cut, noted
from grpo_jax.kl import Estimator, k3, penalty
from grpo_jax.kl.importance import Importance
from grpo_jax.losses import Objective, Reduction, objective, reductions, surrogates

_SAMPLER = "open-instruct: truncated sampler ratios (cap 2) weigh the policy loss and not the KL term; left out here"
_DENOMINATOR = "open-instruct: a numeric loss_denominator divides the sum over the whole batch by that one number"


def open_instruct_grpo(
    clip_lower: float = 0.2,
    clip_higher: float = 0.272,
    *,
    estimator: Estimator = k3,
    importance: Importance | None = None,
    advantage: Advantage | None = None,
    reduction: Reduction | None = None,
) -> Objective:
    r"""Builds open-instruct's GRPO with ``loss_fn=dapo`` (main, autumn 2026).

    .. math:: \mathrm{clip}(\rho_t, A) + \beta \, k_3(\mathrm{clip}(u_t, \pm 40)), \quad
        A = (r - \bar r) / (\mathrm{std}_0 + 10^{-8})

    **Follows** (the KL term alone) `local_forward` on-policy, nothing off-policy. Estimators are numbered from 0 there:
    0 is ``kl.k1`` (nothing), 1 ``kl.k2`` (`local_reverse`), 2 ``kl.k3`` (the default), 3 the token's ratio times k1:
    ``estimator=kl.k1, importance=kl.importance.token()``, `local_reverse`, at the sampler's prefixes off-policy.

    **Move to** ``kl.penalty(kl.k3, "loss", importance=kl.importance.causal())`` and ``reductions.constant_length(L)``:
    `reverse`.

    1. beta is 0.05 there by default.
    2. ``truncated_importance_sampling_ratio_cap`` (2 by default) and the trust-region mask weigh the policy loss and
       not the KL term, so they are left out.
    3. A numeric ``loss_denominator`` divides the sum over the whole batch by that one number: with it set to
       completions times L this is ``constant_length(L)``.
    4. Between 20 and 40 nats k3 is exp(-u) - 1 + u there, here its tangent at 20.

    Args:
        clip_lower: bound below 1.
        clip_higher: bound above 1.
        estimator: ``kl_estimator``.
        importance: of the KL term; None: ``kl.importance.none()``.
        advantage: None: ``advantages.standardised(0, 1e-8)``; "centered" is ``centred()``.
        reduction: None: ``token_mean()``, ``loss_denominator="token"``.
    """
    built = objective(
        standardised(0, 1e-8) if advantage is None else advantage,
        surrogates.clipped(clip_lower, clip_higher),
        reductions.token_mean() if reduction is None else reduction,
        kl=penalty(cut(estimator, None, 40.0), "loss", "token", importance, allow_biased=True),
    )
    return noted(built, _SAMPLER, _DENOMINATOR)
