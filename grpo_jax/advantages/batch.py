"""Advantages whose scale is that of the whole batch."""

import chex
from jaxtyping import Array, Bool, Float

from grpo_jax.advantages.advantage import AcrossBatch, Advantage, from_function
from grpo_jax.advantages.group import deviations, divided, standard_deviation
from grpo_jax.advantages.single import check_standardisation
from grpo_jax.statistics import masked


def batch_whitened(ddof: int = 1, epsilon: float | int = 1e-8) -> Advantage:
    r"""Builds the reward minus its group's mean, divided by the batch's standard deviation (REINFORCE++ baseline).

    .. math:: A_{pi} = \frac{r_{pi} - \bar r_p}{\mathrm{std}_{qj}(r_{qj} - \bar r_q) + \epsilon}

    One factor for all groups: unlike ``standardised`` it does not favour easy and hard prompts over even ones. The
    factor varies from batch to batch, and with it the weight of a KL term, which must not be inside.

    1. The batch mean, which the paper subtracts, is 0 already, since every group's deviations sum to 0. Not
       subtracting its rounding error keeps groups of equal rewards at exactly 0.
    2. Each completion counts once. Libraries that whiten over tokens let long completions count more, which makes the
       mean other than 0 and moves groups of equal rewards.

    Args:
        ddof: 1 for the sample's standard deviation, 0 for the population's.
        epsilon: added to the standard deviation outside the root, not negative.

    Raises:
        ValueError: ddof is neither 0 nor 1; epsilon is negative or not finite.

    References:
        Hu 2025, REINFORCE++, arXiv 2501.03262.
    """
    check_standardisation("batch_whitened", ddof, epsilon)
    return from_function(
        deviations,
        name=f"batch_whitened(ddof={ddof}, epsilon={epsilon:g})",
        reward_target="(G-1)/G * E[R], divided by the batch's std",
        across_batch=scaled_by_batch(ddof, epsilon),
    )


def scaled_by_batch(ddof: int, epsilon: float | int) -> AcrossBatch:
    """Builds the division of advantages, each group of which sums to 0, by the whole batch's standard deviation.

    Args:
        ddof: 1 for the sample's standard deviation, 0 for the population's.
        epsilon: added to the standard deviation outside the root, not negative.

    Returns:
        ``(advantages [P, G], mask [P, G]) -> [P, G]``; all 0 where the batch's standard deviation is 0.
    """

    def across_batch(advantages: Float[Array, "P G"], mask: Bool[Array, "P G"]) -> Float[Array, "P G"]:
        chex.assert_rank([advantages, mask], 2)
        chex.assert_type(mask, bool)
        safe = masked(advantages, mask)
        return divided(safe, standard_deviation(safe, mask, ddof), epsilon)

    return across_batch
