"""verl, read at 0.9.1: the KL loss, its straight-through form, and the KL penalty in the reward."""

from grpo_jax.advantages import Advantage, standardised
from grpo_jax.compat.parts import at_sampling, low_var_kl, noted
from grpo_jax.kl import Estimator, k1, k2, penalty, straight_through
from grpo_jax.losses import Objective, Reduction, objective, reductions, surrogates

_SINGLETON = "verl: a group of one has its raw reward as advantage; here 0"
_CLAMP = "verl: ratios are clamped plainly at 20 nats; ours go on as tangents"


def verl_grpo(
    clip_ratio_low: float = 0.2,
    clip_ratio_high: float = 0.2,
    clip_ratio_c: float = 3.0,
    *,
    estimator: Estimator | None = None,
    advantage: Advantage | None = None,
    reduction: Reduction | None = None,
) -> Objective:
    r"""Builds verl's GRPO with ``use_kl_loss=True`` (0.9.1).

    .. math:: \mathrm{dual\,clip}(\rho_t, A) + \beta \, \mathrm{clip}(k_3(\mathrm{clip}(u_t, \pm 20)), \pm 10),
        \quad A = (r - \bar r) / (\mathrm{std} + 10^{-6})

    **Follows** (the KL term alone, within the clamp): `local_forward` on-policy, nothing off-policy, since there is no
    importance weight. Beyond the clamp, where p / pi > e^2.61, it has no gradient at all: the tokens that the policy
    has all but lost are let go. ``kl_loss_type="kl"`` is ``kl.k1`` and pulls nowhere; ``"mse"`` is ``kl.k2``:
    `local_reverse`; ``"abs"`` is ``kl.absolute``: nothing.

    **Move to** ``kl.penalty(kl.k3, "loss", importance=kl.importance.causal())`` and ``reductions.constant_length(L)``:
    `reverse`, on- and off-policy.

    1. The KL loss is off by default, its coefficient 0.001.
    2. Ratios are clamped plainly at 20 nats; ours go on as tangents.
    3. A group of one has its raw reward as advantage there, 0 here.
    4. ``seq-mean-token-sum-norm`` divides by the padded width unless ``loss_scale_factor`` is given.
    5. ``rollout_is`` weighs the policy loss and not the KL term; ours would weigh both, so it is left out.

    Args:
        clip_ratio_low: bound below 1.
        clip_ratio_high: bound above 1.
        clip_ratio_c: largest ratio for negative advantages, > 1.
        estimator: of the KL loss; None: `low_var_kl`, the default.
        advantage: None: ``advantages.standardised(1, 1e-6)``; ``norm_adv_by_std_in_grpo=False`` is ``centred()``,
            ``adv_estimator=rloo`` is ``leave_one_out()``.
        reduction: None: ``token_mean()``; ``seq-mean-token-mean`` is ``sequence_mean_of_token_mean()``,
            ``seq-mean-token-sum`` is ``sequence_mean_of_token_sum()``.
    """
    built = objective(
        standardised(1, 1e-6) if advantage is None else advantage,
        surrogates.dual_clipped(clip_ratio_low, clip_ratio_high, clip_ratio_c),
        reductions.token_mean() if reduction is None else reduction,
        kl=penalty(low_var_kl() if estimator is None else estimator, "loss", allow_biased=True),
    )
    return noted(built, _CLAMP, _SINGLETON)


def verl_grpo_straight_through(
    clip_ratio_low: float = 0.2,
    clip_ratio_high: float = 0.2,
    clip_ratio_c: float = 3.0,
    *,
    value: Estimator | None = None,
    advantage: Advantage | None = None,
    reduction: Reduction | None = None,
) -> Objective:
    r"""Builds `verl_grpo` with ``kl_loss_type="k3+"`` (0.9.1): the value of one estimator, the gradient of k2.

    .. math:: \beta (k_2(u_t) - \mathrm{sg}(k_2(u_t)) + \mathrm{sg}(k(u_t)))

    **Follows** (the KL term alone) `local_reverse` on-policy, and beyond the clamp too, which touches the value alone;
    nothing off-policy.

    **Move to** ``kl.penalty(kl.k2, "loss", "sequence")`` (`reverse` on-policy) or
    ``kl.penalty(kl.k3, "loss", importance=kl.importance.causal())`` (off-policy too), and
    ``reductions.constant_length(L)``.

    Differences: those of `verl_grpo`.

    Args:
        clip_ratio_low: bound below 1.
        clip_ratio_high: bound above 1.
        clip_ratio_c: largest ratio for negative advantages, > 1.
        value: what is reported; None: `low_var_kl`.
        advantage: as in `verl_grpo`.
        reduction: as in `verl_grpo`.
    """
    return verl_grpo(
        clip_ratio_low,
        clip_ratio_high,
        clip_ratio_c,
        estimator=straight_through(low_var_kl() if value is None else value, k2),
        advantage=advantage,
        reduction=reduction,
    )


def verl_kl_in_reward(
    clip_ratio_low: float = 0.2,
    clip_ratio_high: float = 0.2,
    clip_ratio_c: float = 3.0,
    *,
    estimator: Estimator = k1,
    advantage: Advantage | None = None,
    reduction: Reduction | None = None,
) -> Objective:
    r"""Builds verl's ``use_kl_in_reward=True`` with a group-relative advantage (0.9.1).

    .. math:: \mathrm{dual\,clip}(\rho_t, A(R)), \quad R = r - \beta \sum_t k(\log \pi_{old} - \log p)_t

    **Follows** nothing with the default advantage, although k1 in the reward would be `reverse`: the KL return goes
    through the division by the group's standard deviation, and where all task rewards are equal it alone is blown up to
    unit scale, whatever beta is. With ``advantage=leave_one_out()`` (``adv_estimator=rloo``) and a constant denominator
    `reverse` on-policy. Off-policy nothing.

    **Move to** ``kl.penalty(kl.k1, "to_go")``, which is added after the division, and
    ``reductions.constant_length(L)``: `reverse` on-policy.

    1. ``algorithm.kl_ctrl.kl_coef`` is 0.001 by default; the adaptive controller is ``kl.controllers``.
    2. The other differences of `verl_grpo`.

    Args:
        clip_ratio_low: bound below 1.
        clip_ratio_high: bound above 1.
        clip_ratio_c: largest ratio for negative advantages, > 1.
        estimator: ``kl_penalty``: k1 ("kl"), or `low_var_kl`, ``kl.k2``, ``kl.absolute``.
        advantage: None: ``advantages.standardised(1, 1e-6)``.
        reduction: None: ``token_mean()``.
    """
    built = objective(
        standardised(1, 1e-6) if advantage is None else advantage,
        surrogates.dual_clipped(clip_ratio_low, clip_ratio_high, clip_ratio_c),
        reductions.token_mean() if reduction is None else reduction,
        kl=at_sampling(penalty(estimator, "reward", allow_biased=True)),
    )
    return noted(built, _CLAMP, _SINGLETON)
