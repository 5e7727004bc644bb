"""Articles A and B: what baselines, normalisation and resampling do to the gradients of a group."""

import numpy as np

from experiments.claims.claim import EXACT, Claim, Claims, verdict
from experiments.claims.degenerate_groups import FIVE, five_built
from experiments.claims.instances import advantages_of, advantages_used, five_actions, fours, relative
from grpo_jax import advantages, kl
from grpo_jax.advantages import Advantage
from grpo_jax.oracle import expectation, multisets
from grpo_jax.oracle.exact import gradients_of_groups

SIZES = (2, 4, 16)
"""Members of a group, G."""


def fused_before_normalisation(seeds: tuple[int, ...]) -> Claim:
    fused = kl.penalty(kl.k1, "reward", allow_biased=True)
    cases = {
        "GRPO": five_built(advantages.standardised(), fused),
        "RLOO divided by the others' std": five_built(advantages.leave_one_out_standardised(), fused),
        "RLOO": five_built(advantages.leave_one_out(), fused),
        "GRPO, KL added after": five_built(advantages.standardised(), kl.penalty(kl.k1, "to_go")),
    }
    sizes = {name: [mean_size(built, beta) for beta in (0.1, 0.01, 0.001)] for name, built in cases.items()}
    # Proportional to beta would be a factor of 100.
    steep = {name: size[0] / size[2] for name, size in sizes.items()}
    normalised, proportional = list(steep.values())[:2], list(steep.values())[2:]
    numbers = {
        f"{name}, beta {beta:g}": size
        for name, row in sizes.items()
        for beta, size in zip((0.1, 0.01, 0.001), row, strict=True)
    }
    return Claim(
        "A, ours",
        "the defect is another one: KL subtracted from the reward before division by the std gives groups of equal "
        "rewards advantages of unit scale whatever beta is, in GRPO and in normalised RLOO alike",
        verdict(max(normalised) < 10 and np.allclose(proportional, 100)),
        numbers,
        f"{FIVE}; mean |A| over those of equal rewards and different actions",
    )


def mean_size(built, beta: float) -> float:
    """The mean |A| over the groups of equal rewards whose actions are not all the same."""
    chosen = ~fours().live & fours().varied
    used = advantages_used(built, five_actions(), fours().groups.members[chosen], beta)
    weights = fours().probabilities[chosen]
    return float(weights @ np.mean(np.abs(used), axis=1) / np.sum(weights))


def std_detects(seeds: tuple[int, ...]) -> Claim:
    rewards = np.full(16, 0.7, np.float32)
    mean = np.add.accumulate(rewards)[-1] / np.float32(16)
    std = np.sqrt(np.sum(np.square(rewards - mean)) / np.float32(15))
    naive = float(np.max(np.abs(rewards - mean)) / (std + np.float32(1e-8)))
    ours = np.abs(advantages_of(advantages.standardised(epsilon=1e-8), rewards, np.float32)).max()
    return Claim(
        "A",
        "groups of equal rewards are those whose std is 0",
        verdict(std == 0),
        {"std of .7 x 16": float(std), "|A| with epsilon 1e-8": naive, "max - min": np.ptp(rewards), "our |A|": ours},
        "float32, summed in order; advantages.standardised",
    )


def resampling(seeds: tuple[int, ...]) -> Claim:
    (_, (rewarded, added)), *_ = gradients_of_groups(five_built(), five_actions(), fours().groups, 1.0)
    live = fours().probabilities * fours().live
    conditional, targets = live / np.sum(live), five_actions().targets
    bias = relative(conditional @ added - targets["reverse"], targets["reverse"])
    # Two prompts drawn equally often, groups of four: what is left of them where groups of equal rewards are redrawn.
    hard, easy = (1 - p**4 - (1 - p) ** 4 for p in (0.5, 0.95))
    return Claim(
        "A, ours",
        "drawing again until the rewards of a group differ changes the speed alone",
        verdict(bias < EXACT),
        {
            "bias of the KL gradient": bias,
            "factor on the reward's": relative(conditional @ rewarded, targets["reward"]),
            "share of a prompt solved half the time, beside one solved 95 times in 100": hard / (hard + easy),
        },
        f"{FIVE}; the share: G = 4, both prompts drawn equally often",
    )


def factor(advantage: Advantage, size: int) -> tuple[float, float]:
    """By how much the expected gradient is that of -E[R], and the share of it that is not along it."""
    gradient, target = (
        expectation(five_built(advantage), five_actions(), multisets(5, size)).reward,
        five_actions().targets["reward"],
    )
    along = gradient @ target / (target @ target)
    return float(along), relative(gradient - along * target, target)


def leave_one_out(seeds: tuple[int, ...]) -> Claim:
    found = [factor(advantages.leave_one_out(), size) for size in SIZES]
    bias = max(abs(along - 1) + rest for along, rest in found)
    return Claim(
        "A",
        "the mean of the other members' rewards as the baseline (RLOO) leaves the gradient unbiased",
        verdict(bias < EXACT),
        {"bias": bias},
        "five actions, exact, all groups of 2, 4, 16",
    )


def own_reward_in_baseline(seeds: tuple[int, ...]) -> Claim:
    found = {size: factor(advantages.centred(), size) for size in SIZES}
    error = max(abs(along - (size - 1) / size) + rest for size, (along, rest) in found.items())
    return Claim(
        "B",
        "the reward minus the group's mean is an unbiased advantage",
        verdict(abs(found[16][0] - 1) < EXACT, error < EXACT, "up to a factor (G - 1)/G"),
        {f"factor at G = {size}": along for size, (along, _) in found.items()} | {"distance to (G - 1)/G": error},
        "five actions, exact, all groups",
    )


def divided_by_std(seeds: tuple[int, ...]) -> Claim:
    known = five_actions()
    success = known.probabilities @ known.rewards
    # The slope of 2 arcsin sqrt p by p is 1 / sqrt(p (1 - p)).
    limit = 1 / np.sqrt(success * (1 - success))
    ratios = {size: factor(advantages.standardised(ddof=0, epsilon=0), size)[0] / limit for size in SIZES}
    errors = [abs(each - 1) for each in ratios.values()]
    return Claim(
        "B",
        "division by the group's std follows 2 arcsin sqrt(success) in place of the success",
        verdict(max(errors) < EXACT, errors == sorted(errors, reverse=True) and errors[-1] < 0.05, "as G grows"),
        {f"gradient over that of 2 arcsin, G = {size}": each for size, each in ratios.items()},
        "five actions with 0/1 rewards, success .62652, exact, all groups",
    )


CLAIMS: Claims = (
    fused_before_normalisation,
    std_detects,
    resampling,
    leave_one_out,
    own_reward_in_baseline,
    divided_by_std,
)
