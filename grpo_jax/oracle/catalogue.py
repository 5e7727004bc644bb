"""Everything that is shipped, composed in every way that is accepted: what the certificates cover."""

import itertools
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from grpo_jax import advantages, kl
from grpo_jax.kl import Penalty
from grpo_jax.kl import importance as corrections
from grpo_jax.kl.estimators import name_of
from grpo_jax.losses import Objective, degenerate, mismatch, objective, reductions, surrogates


class Configuration(NamedTuple):
    """An objective to certify.

    Attributes:
        objective: the objective.
        group_size: members of a group, G.
        rewards: rewards of each completion, K; 1: ``[N]``.
    """

    objective: Objective
    group_size: int
    rewards: int = 1


ESTIMATORS = (
    kl.k1,
    kl.k2,
    kl.k3,
    kl.absolute,
    kl.straight_through(kl.k3, kl.k2),
    kl.mixture((0.3, kl.k1), (0.5, kl.k3)),
    kl.clamped(kl.k3, 0.5),
)
"""One of each shipped estimator; the clamp is low enough to be met."""
PLACEMENTS = ("loss", "reward", "to_go", "own_token", "both")
"""Where a KL term may act."""
GRANULARITIES = ("token", "sequence")
"""What a KL term may estimate."""
IMPORTANCE = (
    corrections.none(),
    corrections.token(),
    corrections.prefix(),
    corrections.sequence(),
    corrections.causal(),
    corrections.detached_sequence(),
)
"""Every shipped importance correction."""
PREFIX_WEIGHTS = (kl.no_weights(), kl.prefix_weights(), kl.causal_weights())
"""Every shipped weight of the exact KL."""
REDUCTIONS = (
    reductions.sequence_mean_of_token_sum(),
    reductions.constant_length(4),
    reductions.sequence_mean_of_token_mean(),
    reductions.token_mean(),
)
"""Every shipped reduction."""
ADVANTAGES = (
    advantages.leave_one_out(),
    advantages.centred(),
    advantages.standardised(),
    advantages.leave_one_out_standardised(),
    advantages.max_rl(),
    advantages.batch_whitened(),
    advantages.weighted_sum((0.5, 0.5), advantages.leave_one_out()),
    advantages.separately_standardised((0.5, 0.5)),
)
"""One of each shipped advantage."""
SEVERAL_REWARDS = ("weighted_sum", "separately_standardised")
"""How the names of those begin that take two rewards."""
DEGENERATE = (
    degenerate.keep(),
    degenerate.mask("all"),
    degenerate.mask("live"),
    degenerate.smooth(),
    degenerate.smooth(0.3, "live"),
    degenerate.entropy_shaped(),
)
"""Every shipped rule for degenerate groups."""
SURROGATES = (
    surrogates.sequence_importance_weighted(),
    surrogates.reinforce(),
    surrogates.importance_weighted(),
    surrogates.clipped(),
    surrogates.dual_clipped(),
    surrogates.cispo(),
    surrogates.gspo(),
    surrogates.gspo_token(),
    surrogates.sapo(),
)
"""Every shipped surrogate; the first corrects for another sampler exactly."""
MISMATCH = (
    mismatch.truncated_token(),
    mismatch.truncated_sequence(),
    mismatch.masked_token(),
    mismatch.masked_sequence(),
)
"""Every shipped correction between sampler and trainer."""


def terms(named: Collection[str] | None = None) -> Iterator[Callable[[], Penalty]]:
    """Yields a builder of every combination of estimator, placement, granularity and importance, sensible or not.

    Args:
        named: only those of estimators with these names, "full" among them; None: all.
    """
    chosen = [each for each in ESTIMATORS if named is None or name_of(each) in named]
    for estimator, placement, granularity, importance in itertools.product(
        chosen, PLACEMENTS, GRANULARITIES, IMPORTANCE
    ):
        yield lambda e=estimator, p=placement, g=granularity, i=importance: kl.penalty(e, p, g, i, allow_biased=True)
    placements = ("loss", "reward", "to_go", "both") if named is None or "full" in named else ()
    for placement, weights in itertools.product(placements, PREFIX_WEIGHTS):
        yield lambda p=placement, w=weights: kl.full_vocabulary(p, w, allow_biased=True)


def kl_product(named: Collection[str] | None = None) -> tuple[list[Configuration], list[str]]:
    """Returns estimator x placement x granularity x importance x reduction, and why the rest is refused."""
    accepted, refused = [], []
    for build in terms(named):
        try:
            term = build()
        except ValueError as error:
            refused.append(str(error))
            continue
        for reduction in REDUCTIONS:
            built = objective(ADVANTAGES[0], SURROGATES[0], reduction, kl=term, degenerate=DEGENERATE[0])
            accepted.append(Configuration(built, 2))
    return accepted, refused


def group_product() -> tuple[list[Configuration], list[str]]:
    """Returns advantage x degenerate rule x placement, with groups of three, and why the rest is refused."""
    placed = (
        kl.penalty(kl.k1, "reward", allow_biased=True),
        kl.penalty(kl.k1, "to_go"),
        kl.penalty(kl.k1, "own_token"),
        kl.penalty(kl.k2, "loss", "sequence"),
        kl.penalty(kl.k3, "both"),
    )
    accepted, refused = [], []
    for advantage, rule, term in itertools.product(ADVANTAGES, DEGENERATE, placed):
        try:
            built = objective(advantage, SURROGATES[0], REDUCTIONS[0], kl=term, degenerate=rule)
        except ValueError as error:
            refused.append(str(error))
            continue
        accepted.append(Configuration(built, 3, 2 if advantage.name.startswith(SEVERAL_REWARDS) else 1))
    return accepted, refused


def covering() -> tuple[list[Configuration], list[str]]:
    """Returns surrogates, mismatch corrections and the entropy bonus, each with every way in which a KL term acts."""
    placed = (
        kl.penalty(kl.k1, "reward"),
        kl.penalty(kl.k1, "to_go"),
        kl.penalty(kl.k1, "own_token"),
        kl.penalty(kl.k3, "loss", "token", IMPORTANCE[3]),
        kl.full_vocabulary("both"),
    )
    accepted, refused = [], []
    plain, first = {"mismatch": None, "entropy_coefficient": 0.0}, SURROGATES[0]
    rest = [(surrogate, plain) for surrogate in SURROGATES[1:]]
    rest += [(first, {**plain, "mismatch": correction}) for correction in MISMATCH]
    rest += [(first, {**plain, "entropy_coefficient": 0.1})]
    for (surrogate, options), term in itertools.product(rest, placed):
        try:
            built = objective(ADVANTAGES[0], surrogate, REDUCTIONS[0], kl=term, degenerate=DEGENERATE[0], **options)
        except ValueError as error:
            refused.append(str(error))
            continue
        accepted.append(Configuration(built, 2))
    return accepted, refused
