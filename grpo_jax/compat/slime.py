"""slime, read at its main branch of autumn 2026: GRPO, GSPO and CISPO with the KL loss."""

from grpo_jax.advantages import Advantage, standardised
from grpo_jax.compat.parts import cut_term, noted
from grpo_jax.kl import Estimator, Penalty, k1, penalty
from grpo_jax.kl.importance import Importance
from grpo_jax.losses import Objective, Reduction, Surrogate, objective, reductions, surrogates

_IGNORED = "slime: kl_coef has no effect under this advantage; what counts is kl_loss_coef"
_UNBOUNDED = "slime: exponents are unbounded; ours go on as tangents beyond 20 nats"


def slime_grpo(
    eps_clip: float = 0.2,
    eps_clip_high: float | None = None,
    eps_clip_c: float | None = None,
    *,
    estimator: Estimator = k1,
    importance: Importance | None = None,
    kl_limit: float | None = None,
    advantage: Advantage | None = None,
    reduction: Reduction | None = None,
) -> Objective:
    r"""Builds slime's GRPO with ``--use-kl-loss`` (main, autumn 2026).

    .. math:: \mathrm{clip}(\rho_t, A) + \beta \, k(u_t), \quad A = (r - \bar r) / (\mathrm{std} + 10^{-6})

    **Follows** with the default estimator, k1 in the loss, `length` on-policy: a push on length, blind to the
    reference, because the mean over each completion's tokens divides the score by |y|; under a constant denominator it
    would be nothing at all. With ``estimator=kl.k3`` (``--kl-loss-type k3``) `local_forward`, with ``kl.k2``
    `local_reverse` (the KL term alone). ``importance=kl.importance.token()`` (``--use-unbiased-kl``) makes k1 and k3
    `local_reverse`, at the sampler's prefixes off-policy; k2 follows nothing then. Without it nothing off-policy.

    **Move to** ``kl.penalty(kl.k3, "loss", importance=kl.importance.causal())`` and ``reductions.constant_length(L)``:
    `reverse`.

    1. ``--kl-coef`` (KL in the reward) has no effect with GRPO, GSPO and CISPO: it is read for its shape alone.
    2. ``low_var_kl`` is k3 whose weighted value is cut plainly at 10: ``estimator=kl.k3, kl_limit=10.0``.
    3. Exponents are unbounded; ours go on as tangents beyond 20 nats.
    4. A batch that is not a multiple of the group's size becomes one group there.
    5. ``--use-tis`` and ``--use-opsm`` act on the policy loss alone, so they are left out.

    Args:
        eps_clip: bound below 1, and above where ``eps_clip_high`` is None.
        eps_clip_high: bound above 1; None: eps_clip.
        eps_clip_c: largest ratio for negative advantages, > 1; None: none.
        estimator: ``--kl-loss-type``.
        importance: of the KL term; None: ``kl.importance.none()``.
        kl_limit: largest weighted value of the KL term, nats, > 0; None: no limit.
        advantage: None: ``advantages.standardised(1, 1e-6)``; ``--disable-grpo-std-normalization`` is ``centred()``.
        reduction: None: ``sequence_mean_of_token_mean()``; ``--calculate-per-token-loss`` is ``token_mean()``.
    """
    high = eps_clip if eps_clip_high is None else eps_clip_high
    plain = eps_clip_c is None
    surrogate = surrogates.clipped(eps_clip, high) if plain else surrogates.dual_clipped(eps_clip, high, eps_clip_c)
    return _built(surrogate, estimator, importance, kl_limit, advantage, reduction)


def slime_gspo(
    eps_clip: float = 0.2,
    eps_clip_high: float | None = None,
    *,
    estimator: Estimator = k1,
    importance: Importance | None = None,
    kl_limit: float | None = None,
    advantage: Advantage | None = None,
    reduction: Reduction | None = None,
) -> Objective:
    """Builds slime's GSPO: ``--advantage-estimator gspo``, the clipped ratio exp(mean_t log rho_t).

    **Follows** and **move to**: as `slime_grpo`, whose KL term it shares; the ratio of ``--use-unbiased-kl`` stays the
    token's.

    Differences: those of `slime_grpo`. The bounds are slime's defaults; the paper's 3e-4 and 4e-4 belong to this ratio.

    Args:
        eps_clip: bound below 1, and above where ``eps_clip_high`` is None.
        eps_clip_high: bound above 1; None: eps_clip.
        estimator: as in `slime_grpo`.
        importance: as in `slime_grpo`.
        kl_limit: as in `slime_grpo`.
        advantage: as in `slime_grpo`.
        reduction: as in `slime_grpo`.
    """
    surrogate = surrogates.gspo(eps_clip, eps_clip if eps_clip_high is None else eps_clip_high)
    return _built(surrogate, estimator, importance, kl_limit, advantage, reduction)


def slime_cispo(
    eps_clip: float = 0.2,
    eps_clip_high: float | None = None,
    *,
    estimator: Estimator = k1,
    importance: Importance | None = None,
    kl_limit: float | None = None,
    advantage: Advantage | None = None,
    reduction: Reduction | None = None,
) -> Objective:
    """Builds slime's CISPO: -sg(clip(rho_t, 1 - eps_clip, 1 + eps_clip_high)) A log pi_t, clipped on both sides.

    **Follows** and **move to**: as `slime_grpo`, whose KL term it shares.

    Differences: those of `slime_grpo`. The paper has no lower bound.

    Args:
        eps_clip: bound below 1, and above where ``eps_clip_high`` is None.
        eps_clip_high: bound above 1; None: eps_clip.
        estimator: as in `slime_grpo`.
        importance: as in `slime_grpo`.
        kl_limit: as in `slime_grpo`.
        advantage: as in `slime_grpo`.
        reduction: as in `slime_grpo`.
    """
    surrogate = surrogates.cispo(eps_clip, eps_clip if eps_clip_high is None else eps_clip_high)
    return _built(surrogate, estimator, importance, kl_limit, advantage, reduction)


def _built(
    surrogate: Surrogate,
    estimator: Estimator,
    importance: Importance | None,
    kl_limit: float | None,
    advantage: Advantage | None,
    reduction: Reduction | None,
) -> Objective:
    term: Penalty = cut_term(penalty(estimator, "loss", "token", importance, allow_biased=True), kl_limit)
    built = objective(
        standardised(1, 1e-6) if advantage is None else advantage,
        surrogate,
        reductions.sequence_mean_of_token_mean() if reduction is None else reduction,
        kl=term,
    )
    return noted(built, _IGNORED, _UNBOUNDED)
