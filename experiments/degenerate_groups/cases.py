"""The rules for groups of equal rewards, with two advantages, without and with a KL term."""

import functools

import grpo_jax as gj
from experiments.small_scale.campaign import Case
from grpo_jax.losses import Objective

BETA, SMALL = 0.3, 0.01
"""Per nat of a completion: enough to hold the policy; and so little that a KL term ought to be hardly seen."""
ADVANTAGES = {"RLOO": gj.advantages.leave_one_out(), "GRPO": gj.advantages.standardised()}
KEEP, SHAPED = "keep", "entropy shaped"
RULES = {
    KEEP: gj.degenerate.keep(),
    "mask": gj.degenerate.mask(),
    "smooth": gj.degenerate.smooth(0.5),
    SHAPED: gj.degenerate.entropy_shaped(0.1),
}
RESAMPLE = "resample"
"""Twice the prompts are sampled, and groups whose rewards differ are trained on first; the others fill up."""
ROUNDS = 2
FUSED = "fused"
"""k1 subtracted from the reward before the advantage: the same gradient with RLOO, a fault with GRPO."""


def cases() -> list[Case]:
    """Returns every rule with a KL term, and with less or none where that shows something.

    Fused with RLOO is left out: `exact` shows that its gradient is the same.
    """
    first, others = [(KEEP, 0.0), (KEEP, BETA)], [("mask", BETA), (RESAMPLE, BETA)]
    fault = [(KEEP, SMALL), (FUSED, SMALL), (FUSED, BETA)]
    last = [(SHAPED, 0.0), (SHAPED, BETA), ("smooth", BETA)]
    wanted = [("RLOO", [*first, *others]), ("GRPO", [*first, *fault, *others]), ("RLOO", last), ("GRPO", last)]
    return [_case(advantage, rule, beta) for advantage, named in wanted for rule, beta in named]


def _case(advantage: str, rule: str, beta: float) -> Case:
    labels = {"advantage": advantage, "rule": rule, "beta": beta}
    if rule == RESAMPLE:
        return Case(labels, objective_of(advantage, KEEP), beta, rounds=ROUNDS)
    return Case(labels, objective_of(advantage, rule), beta)


@functools.cache
def objective_of(advantage: str, rule: str) -> Objective:
    """Returns the objective; the KL term is k1 to go, which is added after the advantage, but for ``FUSED``."""
    after, before = gj.kl.penalty(gj.kl.k1), gj.kl.penalty(gj.kl.k1, "reward", allow_biased=True)
    return gj.objective(
        ADVANTAGES[advantage],
        gj.surrogates.reinforce(),
        gj.reductions.sequence_mean_of_token_sum(),
        kl=before if rule == FUSED else after,
        degenerate=RULES[KEEP if rule == FUSED else rule],
    )
