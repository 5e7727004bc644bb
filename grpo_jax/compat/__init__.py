"""The losses of other libraries, by name, as objectives of ours: for who comes from TRL, verl, OpenRLHF and others.

``gj.compat.verl_grpo()`` is what verl trains on, with its defaults, and can be trained with, compared and certified:
``gj.certify(gj.compat.verl_grpo())`` says which gradient its KL term follows. Each constructor says in its docstring
what it was read from, what to move to, and where the library does otherwise. beta is an argument of the objective, as
ever.

What differs from every one of them, on purpose:

1. Groups of equal rewards, and of fewer than two members, have advantage exactly 0; formulas as written leave float
   residue, or the raw reward.
2. Exponents beyond 20 nats go on as tangents, with a gradient; libraries clamp them (no gradient) or overflow.
3. A mean is over the batch that the objective is given and divided once: no micro-batch, device or epsilon shows in it.
4. The KL term is reduced as the policy loss is. Where a library does otherwise, that is said and not imitated.

What no constructor is offered for, because no part of ours does it: SkyRL's default reduction; corrections of the
sampler's numbers that spare the KL term; whitening with the KL inside (`openrlhf_reinforce_plus_plus_baseline` is the
closest); TRL's ``scale_rewards="batch"`` and VESPO; open-instruct's DPPO and TVPO.
"""

from grpo_jax.compat.nemo_rl import nemo_rl_grpo, nemo_rl_grpo_importance_weighted, nemo_rl_gspo, nemo_rl_reinforce
from grpo_jax.compat.open_instruct import open_instruct_grpo
from grpo_jax.compat.openrlhf import (
    openrlhf_grpo,
    openrlhf_grpo_unbiased,
    openrlhf_reinforce_plus_plus_baseline,
    openrlhf_rloo,
)
from grpo_jax.compat.parts import (
    at_sampling,
    cut,
    cut_term,
    geometric_mean,
    low_var_kl,
    own_ratio,
    sequence_clipped,
)
from grpo_jax.compat.skyrl import skyrl_grpo
from grpo_jax.compat.slime import slime_cispo, slime_grpo, slime_gspo
from grpo_jax.compat.trl import trl_cispo, trl_grpo, trl_gspo, trl_rloo
from grpo_jax.compat.tunix import tunix_grpo, tunix_gspo
from grpo_jax.compat.verl import verl_grpo, verl_grpo_straight_through, verl_kl_in_reward

__all__ = [
    "at_sampling",
    "cut",
    "cut_term",
    "geometric_mean",
    "low_var_kl",
    "nemo_rl_grpo",
    "nemo_rl_grpo_importance_weighted",
    "nemo_rl_gspo",
    "nemo_rl_reinforce",
    "open_instruct_grpo",
    "openrlhf_grpo",
    "openrlhf_grpo_unbiased",
    "openrlhf_reinforce_plus_plus_baseline",
    "openrlhf_rloo",
    "own_ratio",
    "sequence_clipped",
    "skyrl_grpo",
    "slime_cispo",
    "slime_grpo",
    "slime_gspo",
    "trl_cispo",
    "trl_grpo",
    "trl_gspo",
    "trl_rloo",
    "tunix_grpo",
    "tunix_gspo",
    "verl_grpo",
    "verl_grpo_straight_through",
    "verl_kl_in_reward",
]
