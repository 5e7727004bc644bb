"""TRL, read at 1.16.0: GRPOTrainer with its loss types, and RLOOTrainer."""

from grpo_jax.advantages import Advantage, leave_one_out, standardised
from grpo_jax.compat.parts import at_sampling, geometric_mean, noted, sequence_clipped
from grpo_jax.kl import importance as corrections
from grpo_jax.kl import k1, k3, penalty
from grpo_jax.kl.importance import Importance
from grpo_jax.losses import Objective, Reduction, objective, reductions, surrogates

_SAMPLER = "TRL: the sampler's correction (vLLM) weighs the policy loss and not the KL term; ours would weigh both"
_UNBOUNDED = "TRL: exponents are unbounded; ours go on as tangents beyond 20 nats"


def trl_grpo(
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    delta: float | None = None,
    *,
    advantage: Advantage | None = None,
    reduction: Reduction | None = None,
    importance: Importance | None = None,
) -> Objective:
    r"""Builds the loss of TRL's GRPOTrainer (1.16.0; the KL correction is the default there, and was not before).

    .. math:: -\min(\rho_t A, \mathrm{clip}(\rho_t, 1 - \epsilon, 1 + \epsilon_{high}) A) + \beta \rho_t k_3(u_t),
        \quad A = (r - \bar r) / (\mathrm{std} + 10^{-4})

    **Follows** (the KL term alone): `local_reverse` on-policy, the same at the sampler's prefixes off-policy: the
    effect of a token on later KL is lost. With ``importance=kl.importance.none()`` (``use_bias_correction_kl=False``,
    the default of earlier versions) `local_forward`, and nothing off-policy. All reductions but ``constant_length``
    divide by lengths that the policy chooses, and follow neither exactly.

    **Move to** ``kl.penalty(kl.k3, "loss", importance=kl.importance.causal())`` and ``reductions.constant_length(L)``:
    `reverse`, on- and off-policy.

    1. beta is 0 there by default: then the KL term is absent, as here with beta 0.
    2. ``scale_rewards="none"`` is ``advantages.centred()``. ``"batch"`` divides the group's deviations by the standard
       deviation of the batch's raw rewards, which no advantage of ours does.
    3. The correction of the sampler's numbers (vLLM) and ``top_entropy_quantile`` act on the policy loss alone, an
       ``entropy_coef`` divides by tokens under every loss type: no part of ours does so.
    4. Ratios and k3 have unbounded exponents; ours go on as tangents beyond 20 nats.
    5. ``loss_type="grpo"`` and ``"bnpo"`` average over micro-batches; ours is over the whole batch, the same where
       micro-batches hold equally many completions (grpo) or tokens (bnpo).

    Args:
        epsilon: bound below 1, and above where ``epsilon_high`` is None.
        epsilon_high: bound above 1; None: epsilon.
        delta: two-sided clipping, largest ratio for negative advantages, > 1; None: none.
        advantage: None: ``advantages.standardised(1, 1e-4)``, ``scale_rewards="group"``.
        reduction: None: ``token_mean()`` (``loss_type="dapo"``, the default, and ``"bnpo"``);
            ``sequence_mean_of_token_mean()`` is ``"grpo"``, ``constant_length(max_completion_length)`` is
            ``"dr_grpo"``, ``sequence_mean_of_token_sum()`` is ``"luspo"`` with token ratios.
        importance: on the KL term; None: ``kl.importance.token()``.
    """
    high = epsilon if epsilon_high is None else epsilon_high
    surrogate = surrogates.clipped(epsilon, high) if delta is None else surrogates.dual_clipped(epsilon, high, delta)
    weights = corrections.token() if importance is None else importance
    built = objective(
        standardised(1, 1e-4) if advantage is None else advantage,
        surrogate,
        reductions.token_mean() if reduction is None else reduction,
        kl=penalty(k3, "loss", "token", weights, allow_biased=True),
    )
    return noted(built, _SAMPLER, _UNBOUNDED)


def trl_gspo(
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    *,
    advantage: Advantage | None = None,
    reduction: Reduction | None = None,
    importance: Importance | None = None,
) -> Objective:
    r"""Builds the loss of TRL's GRPOTrainer with ``importance_sampling_level="sequence"`` (1.16.0).

    .. math:: -\min(s A, \mathrm{clip}(s) A) + \beta s k_3(u_t), \quad s = \exp(\mathrm{mean}_t \log \rho_t)

    **Follows** nothing, on-policy too: the KL correction multiplies by the same s, which is no importance weight, and
    its gradient pulls every token of a completion by the completion's mean k3.

    **Move to** ``kl.penalty(kl.k3, "loss", importance=kl.importance.causal())`` beside ``surrogates.gspo()``, and
    ``reductions.constant_length(L)``: `reverse`.

    1. The bounds are TRL's defaults; the paper's 3e-4 and 4e-4 belong to this ratio.
    2. As in `trl_grpo`: sampler's correction, exponents, micro-batches.

    Args:
        epsilon: bound below 1, and above where ``epsilon_high`` is None.
        epsilon_high: bound above 1; None: epsilon.
        advantage: None: ``advantages.standardised(1, 1e-4)``.
        reduction: None: ``sequence_mean_of_token_mean()``, ``loss_type="grpo"``, which goes with this level.
        importance: on the KL term; None: the same ratio s; ``kl.importance.none()`` is
            ``use_bias_correction_kl=False``.
    """
    weights = geometric_mean() if importance is None else importance
    built = objective(
        standardised(1, 1e-4) if advantage is None else advantage,
        surrogates.gspo(epsilon, epsilon if epsilon_high is None else epsilon_high),
        reductions.sequence_mean_of_token_mean() if reduction is None else reduction,
        kl=penalty(k3, "loss", "token", weights, allow_biased=True),
    )
    return noted(built, _SAMPLER, _UNBOUNDED)


def trl_cispo(
    cap: float = 5.0,
    *,
    advantage: Advantage | None = None,
    importance: Importance | None = None,
) -> Objective:
    r"""Builds the loss of TRL's GRPOTrainer with ``loss_type="cispo"`` (1.16.0).

    .. math:: -\mathrm{sg}(\min(\rho_t, cap)) A \log \pi_t + \beta \rho_t k_3(u_t)

    **Follows** and **move to**: as `trl_grpo`; only the policy loss differs.

    1. ``epsilon_high`` is there the largest ratio itself, not its distance from 1: 5 is recommended, and the default
       inherited from ``epsilon`` (0.2) would make every weight 0.2.
    2. As in `trl_grpo`: sampler's correction, exponents.

    Args:
        cap: largest ratio, >= 1.
        advantage: None: ``advantages.standardised(1, 1e-4)``.
        importance: on the KL term; None: ``kl.importance.token()``.

    Raises:
        ValueError: cap below 1.
    """
    if not cap >= 1:
        raise ValueError(
            f"compat.trl_cispo: cap is {cap}; it must be >= 1, the largest ratio itself (epsilon_high; 5 is common)"
        )
    weights = corrections.token() if importance is None else importance
    built = objective(
        standardised(1, 1e-4) if advantage is None else advantage,
        surrogates.cispo(None, cap - 1),
        reductions.token_mean(),
        kl=penalty(k3, "loss", "token", weights, allow_biased=True),
    )
    return noted(built, _SAMPLER, _UNBOUNDED)


def trl_rloo(epsilon: float = 0.2, epsilon_high: float | None = None) -> Objective:
    r"""Builds the loss of TRL's RLOOTrainer (1.16.0).

    .. math:: -\min(\rho A, \mathrm{clip}(\rho) A), \quad \rho = \prod_t \rho_t, \quad
        A = R_i - \frac{1}{G-1} \sum_{j \ne i} R_j, \quad R = r - \beta \sum_t (\log \pi_{old} - \log p)_t

    **Follows** `reverse` on-policy. Off-policy nothing: the ratio is clipped, and the KL is that of the old policy.

    **Move to** ``kl.penalty(kl.k1, "to_go")`` with ``surrogates.sequence_importance_weighted()``, the same ratio
    without the clip, and ``reductions.constant_length(L)``: `reverse`, on- and off-policy, without the noise of the
    past tokens' KL.

    1. beta is 0.05 there by default.
    2. ``normalize_advantages`` (off by default) and ``reward_clip_range`` are left out: the first divides the KL term
       by the batch's standard deviation too, the second clips before the KL is subtracted and belongs into the reward.
    3. The ratio's exponent is unbounded; ours goes on as a tangent beyond 20 nats.

    Args:
        epsilon: bound below 1, and above where ``epsilon_high`` is None.
        epsilon_high: bound above 1; None: epsilon.
    """
    built = objective(
        leave_one_out(),
        sequence_clipped(epsilon, epsilon if epsilon_high is None else epsilon_high),
        reductions.sequence_mean_of_token_sum(),
        kl=at_sampling(penalty(k1, "reward")),
    )
    return noted(built, _UNBOUNDED)
