"""The configurations of other libraries that are certified: their options, our constructor, what to move to."""

from typing import NamedTuple

import grpo_jax as gj
from grpo_jax.losses import Objective

TERMS = {
    "A": 'gj.kl.penalty(gj.kl.k3, "loss", importance=gj.kl.importance.causal())',
    "B": 'gj.kl.penalty(gj.kl.k1, "to_go")',
    "C": 'gj.kl.penalty(gj.kl.k1, "to_go")',
}
"""What to move to: A where the KL term is in the loss, B and C where it is in the reward."""
SURROGATES = {"C": "gj.surrogates.sequence_importance_weighted()"}
"""What else to move to: C where the policy loss has one ratio a completion, which it keeps, without the clip."""
REDUCTION = "gj.reductions.constant_length(L)"
"""What both go with; L is the generation budget in tokens."""


class Row(NamedTuple):
    """One configuration.

    Attributes:
        library: which library.
        options: what selects it there.
        code: our constructor, as a Python expression of ``gj``.
        move_to: a key of `TERMS`.
        unclamped: the same without the library's plain clamp of the KL value; "": it has none.
    """

    library: str
    options: str
    code: str
    move_to: str
    unclamped: str = ""


TOKEN = "importance=gj.kl.importance.token()"
NONE = "importance=gj.kl.importance.none()"
NO_LIMITS = "kl_input_clamp_value=None, kl_output_clamp_value=None"
ROWS = (
    Row("TRL 1.16", "GRPO, `beta > 0`", "gj.compat.trl_grpo()", "A"),
    Row("TRL 1.16", "`use_bias_correction_kl=False`", f"gj.compat.trl_grpo({NONE})", "A"),
    Row("TRL 1.16", '`loss_type="dr_grpo"`', "gj.compat.trl_grpo(reduction=gj.reductions.constant_length(8))", "A"),
    Row("TRL 1.16", '`importance_sampling_level="sequence"`', "gj.compat.trl_gspo()", "A"),
    Row("TRL 1.16", '`loss_type="cispo"`', "gj.compat.trl_cispo()", "A"),
    Row("TRL 1.16", "RLOO", "gj.compat.trl_rloo()", "C"),
    Row("verl 0.9.1", "`use_kl_loss`", "gj.compat.verl_grpo()", "A", "gj.compat.verl_grpo(estimator=gj.kl.k3)"),
    Row("verl 0.9.1", "`kl_loss_type=k3+`", "gj.compat.verl_grpo_straight_through()", "A"),
    Row("verl 0.9.1", "`use_kl_in_reward`", "gj.compat.verl_kl_in_reward()", "B"),
    Row(
        "verl 0.9.1",
        "the same, `adv_estimator=rloo`",
        "gj.compat.verl_kl_in_reward(advantage=gj.advantages.leave_one_out())",
        "B",
    ),
    Row("OpenRLHF 0.11.2", "`rloo`", "gj.compat.openrlhf_rloo()", "B", "gj.compat.openrlhf_rloo(estimator=gj.kl.k1)"),
    Row(
        "OpenRLHF 0.11.2",
        "`reinforce_baseline` (closest)",
        "gj.compat.openrlhf_reinforce_plus_plus_baseline()",
        "B",
        "gj.compat.openrlhf_reinforce_plus_plus_baseline(estimator=gj.kl.k1)",
    ),
    Row(
        "OpenRLHF 0.11.2",
        "`group_norm`, `kl.use_loss`, k3",
        "gj.compat.openrlhf_grpo()",
        "A",
        "gj.compat.openrlhf_grpo(estimator=gj.kl.k3)",
    ),
    Row("OpenRLHF 0.11.2", "the same, `kl.unbiased_gradient`", "gj.compat.openrlhf_grpo_unbiased()", "A"),
    Row("NeMo-RL", "GRPO", "gj.compat.nemo_rl_grpo()", "A", f"gj.compat.nemo_rl_grpo({NO_LIMITS})"),
    Row(
        "NeMo-RL",
        "`use_on_policy_kl_approximation`",
        "gj.compat.nemo_rl_grpo_importance_weighted()",
        "A",
        f"gj.compat.nemo_rl_grpo_importance_weighted({NO_LIMITS})",
    ),
    Row("NeMo-RL", "GSPO", "gj.compat.nemo_rl_gspo()", "A", f"gj.compat.nemo_rl_grpo({NO_LIMITS})"),
    Row("NeMo-RL", "`disable_ppo_ratio`", "gj.compat.nemo_rl_reinforce()", "A", f"gj.compat.nemo_rl_grpo({NO_LIMITS})"),
    Row(
        "SkyRL",
        "`use_kl_loss`, `sequence_mean`",
        "gj.compat.skyrl_grpo()",
        "A",
        "gj.compat.skyrl_grpo(estimator=gj.kl.k3)",
    ),
    Row("slime", "`--use-kl-loss`", "gj.compat.slime_grpo()", "A"),
    Row("slime", "`--kl-loss-type k3`", "gj.compat.slime_grpo(estimator=gj.kl.k3)", "A"),
    Row("slime", "and `--use-unbiased-kl`", f"gj.compat.slime_grpo(estimator=gj.kl.k3, {TOKEN})", "A"),
    Row("slime", "`gspo`", "gj.compat.slime_gspo()", "A"),
    Row("slime", "`cispo`", "gj.compat.slime_cispo()", "A"),
    Row("open-instruct", "`dapo`, `kl_estimator=2`", "gj.compat.open_instruct_grpo()", "A"),
    Row("open-instruct", "`kl_estimator=3`", f"gj.compat.open_instruct_grpo(estimator=gj.kl.k1, {TOKEN})", "A"),
    Row("Tunix 0.1.7", "GRPO", "gj.compat.tunix_grpo()", "A"),
    Row("Tunix 0.1.7", '`kl_loss_mode="mse_kl"`', "gj.compat.tunix_grpo(estimator=gj.kl.k2)", "A"),
    Row("Tunix 0.1.7", '`kl_loss_mode="low_var_kl"`', "gj.compat.tunix_grpo(estimator=gj.kl.k3)", "A"),
    Row("Tunix 0.1.7", '`loss_algo="gspo-token"`', "gj.compat.tunix_gspo()", "A"),
)
"""All constructors, and the options that change what the KL term follows."""


def built(code: str) -> Objective:
    """The objective that an expression of ``gj`` stands for."""
    return eval(code, {"gj": gj})


def replacement(row: Row) -> Objective:
    """What to move to: the library's advantage and policy loss with the KL term and the reduction exchanged."""
    parts = built(row.code).parts
    surrogate, term = parts.surrogate, eval(TERMS[row.move_to], {"gj": gj})
    if row.move_to in SURROGATES:
        surrogate = eval(SURROGATES[row.move_to], {"gj": gj})
    return gj.objective(parts.advantage, surrogate, gj.reductions.constant_length(8), kl=term)
