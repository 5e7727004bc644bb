"""NeMo-RL, read at its main branch of autumn 2026: ClippedPGLossFn."""

from grpo_jax.advantages import Advantage, leave_one_out_standardised
from grpo_jax.compat.parts import cut, cut_term, noted, own_ratio
from grpo_jax.kl import Estimator, Penalty, importance, k3, penalty
from grpo_jax.losses import Objective, Reduction, Surrogate, objective, reductions, surrogates

_SAMPLER = "NeMo-RL: the sampler's correction weighs the policy loss and not the KL term; ours would weigh both"
_ADDED = "NeMo-RL: 1e-8 is added to every denominator; here nothing is"


def nemo_rl_grpo(
    ratio_clip_min: float = 0.2,
    ratio_clip_max: float = 0.2,
    ratio_clip_c: float | None = None,
    *,
    kl_input_clamp_value: float | None = 20.0,
    kl_output_clamp_value: float | None = 10.0,
    estimator: Estimator = k3,
    advantage: Advantage | None = None,
    reduction: Reduction | None = None,
) -> Objective:
    r"""Builds NeMo-RL's GRPO (main, autumn 2026): the KL weighted by pi / sg(pi), which is 1 and carries the score.

    .. math:: \mathrm{clip}(\rho_t, A) + \beta \, \mathrm{clip}(w_t k_3(\mathrm{clip}(u_t, \pm 20)), \pm 10), \quad
        w_t = \pi_t / \mathrm{sg}(\pi_t)

    **Follows** (the KL term alone, within the clamp) `local_reverse` on-policy: the gradient per token is u. Off-policy
    nothing, since w is 1 whoever sampled. Beyond the output clamp, where p / pi > e^2.61, nothing pulls back.
    ``kl.k1`` follows the same, ``kl.k2`` nothing.

    **Move to** ``kl.penalty(kl.k3, "loss", importance=kl.importance.causal())`` and ``reductions.constant_length(L)``:
    `reverse`, on- and off-policy.

    1. ``reference_policy_kl_penalty`` (beta) is 0.01 by default.
    2. ``use_importance_sampling_correction`` and its truncations weigh the policy loss and not the KL term; a mismatch
       correction of ours weighs both, so it is left out.
    3. 1e-8 is added to every denominator there; an all-masked batch gives 0 in both.
    4. ``positive_example_nll_weight`` has no counterpart.

    Args:
        ratio_clip_min: bound below 1.
        ratio_clip_max: bound above 1.
        ratio_clip_c: largest ratio for negative advantages, > 1; None: none.
        kl_input_clamp_value: largest absolute log-ratio, nats; None: no limit.
        kl_output_clamp_value: largest value, nats; None: no limit.
        estimator: ``reference_policy_kl_type``.
        advantage: None: ``advantages.leave_one_out_standardised(1e-6)``. Without ``use_leave_one_out_baseline``
            ``standardised(1, 1e-6)``, without ``normalize_rewards`` ``leave_one_out()`` or ``centred()``.
        reduction: None: ``token_mean()``; ``token_level_loss=False`` is ``sequence_mean_of_token_mean()``.
    """
    surrogate = _clipped(ratio_clip_min, ratio_clip_max, ratio_clip_c)
    term = _uncorrected(estimator, kl_input_clamp_value, kl_output_clamp_value)
    return _built(advantage, surrogate, reductions.token_mean() if reduction is None else reduction, term)


def nemo_rl_grpo_importance_weighted(
    ratio_clip_min: float = 0.2,
    ratio_clip_max: float = 0.2,
    ratio_clip_c: float | None = None,
    *,
    kl_input_clamp_value: float | None = 20.0,
    kl_output_clamp_value: float | None = 10.0,
    estimator: Estimator = k3,
    advantage: Advantage | None = None,
    reduction: Reduction | None = None,
) -> Objective:
    r"""Builds `nemo_rl_grpo` with ``use_on_policy_kl_approximation``: the KL weighted by the token's ratio.

    .. math:: \beta \, \mathrm{clip}(\rho_t k_3(\mathrm{clip}(u_t, \pm 20)), \pm 10)

    **Follows** (the KL term alone, within the clamp) `local_reverse` on-policy, the same at the sampler's prefixes
    off-policy.

    **Move to** ``kl.penalty(kl.k3, "loss", importance=kl.importance.causal())`` and ``reductions.constant_length(L)``.

    1. The ratio is there to the generator's own log-probabilities, here to ``old_log_probs``: pass the generator's, or
       expect the difference between both engines.
    2. Where the input clamp is met the ratio is detached there and differentiated here (beyond 20 nats).
    3. The differences of `nemo_rl_grpo`.

    Args:
        ratio_clip_min: bound below 1.
        ratio_clip_max: bound above 1.
        ratio_clip_c: largest ratio for negative advantages, > 1; None: none.
        kl_input_clamp_value: largest absolute log-ratio, nats; None: no limit.
        kl_output_clamp_value: largest weighted value, nats; None: no limit.
        estimator: ``reference_policy_kl_type``.
        advantage: as in `nemo_rl_grpo`.
        reduction: as in `nemo_rl_grpo`.
    """
    inner = cut(estimator, None, kl_input_clamp_value)
    term = cut_term(penalty(inner, "loss", "token", importance.token(), allow_biased=True), kl_output_clamp_value)
    surrogate = _clipped(ratio_clip_min, ratio_clip_max, ratio_clip_c)
    return _built(advantage, surrogate, reductions.token_mean() if reduction is None else reduction, term)


def nemo_rl_gspo(
    ratio_clip_min: float = 0.2,
    ratio_clip_max: float = 0.2,
    *,
    estimator: Estimator = k3,
    advantage: Advantage | None = None,
) -> Objective:
    """Builds NeMo-RL's GSPO: ``sequence_level_importance_ratios`` with ``token_level_loss=False``.

    The policy loss has the clipped ratio exp(mean_t log rho_t); the KL term is that of `nemo_rl_grpo`, averaged over
    each completion's tokens.

    **Follows** and **move to**: as `nemo_rl_grpo`; beside ``surrogates.gspo()`` the KL term stays in the loss.

    Differences: those of `nemo_rl_grpo`.

    Args:
        ratio_clip_min: bound below 1.
        ratio_clip_max: bound above 1.
        estimator: ``reference_policy_kl_type``.
        advantage: as in `nemo_rl_grpo`.
    """
    surrogate = surrogates.gspo(ratio_clip_min, ratio_clip_max)
    return _built(advantage, surrogate, reductions.sequence_mean_of_token_mean(), _uncorrected(estimator, 20.0, 10.0))


def nemo_rl_reinforce(
    *, estimator: Estimator = k3, advantage: Advantage | None = None, reduction: Reduction | None = None
) -> Objective:
    """Builds NeMo-RL's REINFORCE: ``disable_ppo_ratio=True``, -A log pi and the KL term of `nemo_rl_grpo`.

    **Follows** and **move to**: as `nemo_rl_grpo`.

    Differences: those of `nemo_rl_grpo`.

    Args:
        estimator: ``reference_policy_kl_type``.
        advantage: as in `nemo_rl_grpo`.
        reduction: as in `nemo_rl_grpo`.
    """
    term = _uncorrected(estimator, 20.0, 10.0)
    chosen = reductions.token_mean() if reduction is None else reduction
    return _built(advantage, surrogates.reinforce(), chosen, term)


def _uncorrected(estimator: Estimator, input_limit: float | None, limit: float | None) -> Penalty:
    return penalty(own_ratio(estimator, limit, input_limit), "loss", allow_biased=True)


def _built(advantage: Advantage | None, surrogate: Surrogate, reduction: Reduction, term: Penalty) -> Objective:
    chosen = leave_one_out_standardised(1e-6) if advantage is None else advantage
    return noted(objective(chosen, surrogate, reduction, kl=term), _SAMPLER, _ADDED)


def _clipped(low: float, high: float, dual: float | None) -> Surrogate:
    return surrogates.clipped(low, high) if dual is None else surrogates.dual_clipped(low, high, dual)
