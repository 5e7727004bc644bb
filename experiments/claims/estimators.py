"""Article C, samples of the policy itself: what each estimator follows where it stands."""

import jax
import numpy as np

from experiments.claims.claim import APART, EXACT, Claim, Claims, verdict
from experiments.claims.instances import (
    NEAR,
    REDUCTION,
    TERMS,
    advantages_of,
    as_batch,
    compiled_gradient,
    distance,
    distances,
    drawn,
    five_actions,
    fours,
    full_kl,
    mean_of,
    record,
    relative,
    variance_ratios,
)
from experiments.claims.variance import value_moments
from grpo_jax import advantages, kl
from grpo_jax.losses import objective, reductions, surrogates
from grpo_jax.oracle import exactly, expectation, judge, multisets

TABLE = "exact, 15 completions of up to 3 tokens, three seeds"


def k1_in_loss(seeds: tuple[int, ...]) -> Claim:
    zero, reverse = distances("k1 loss", "zero", seeds), distances("k1 loss", "reverse", seeds)
    variance = min(record("k1 loss", seed).variance for seed in seeds)
    return Claim(
        "C",
        "k1 in the loss, unbiased in value, is unbiased in gradient",
        verdict(reverse.max() < EXACT),
        {"norm over that of grad KL(pi, p)": zero.max(), "distance to it": reverse.max(), "variance, least": variance},
        TABLE,
    )


def k1_in_reward(seeds: tuple[int, ...]) -> Claim:
    found = {name: distances(name, "reverse", seeds).max() for name in ("k1 reward", "k1 to go")}
    return Claim(
        "C",
        "k1 in the reward follows the gradient of KL(pi, p)",
        verdict(max(found.values()) < EXACT),
        {f"distance, {name}": value for name, value in found.items()},
        TABLE,
    )


def k3_in_reward_unbiased(seeds: tuple[int, ...]) -> Claim:
    far = distances("k3 reward", "reverse", seeds)
    pull = [distance(record("k3 reward", seed, step=NEAR), "zero") for seed in seeds]
    return Claim(
        "C",
        "k3 in the reward is unbiased",
        verdict(far.max() < EXACT),
        {
            "distance to grad KL(pi, p), least": far.min(),
            "most": far.max(),
            "pull near p, share of it, most": max(pull),
        },
        f"{TABLE}; near: reference .05 away",
    )


def k3_in_loss_term(seeds: tuple[int, ...]) -> Claim:
    score = distances("k1 loss", "zero", seeds)
    bias, forward = (distances("k3 loss, sequence", target, seeds) for target in ("reverse", "forward"))
    local = distances("k3 loss", "local_forward", seeds)
    return Claim(
        "C",
        "k3 in the loss is biased because it adds a term beta E[grad log pi]",
        verdict(score.min() > APART and bias.min() > APART),
        {
            "that term over grad KL(pi, p)": score.max(),
            "distance of k3 in the loss to it, least": bias.min(),
            "to grad KL(p, pi)": forward.max(),
            "per token, to grad KL(p, pi) at fixed prefixes": local.max(),
        },
        TABLE,
    )


def half_beta_in_each(seeds: tuple[int, ...]) -> Claim:
    half, whole = (distances(name, "reverse", seeds) for name in ("k3 both, beta/2", "k3 both"))
    return Claim(
        "C",
        "k3 in reward and loss needs beta/2 in each",
        verdict(half.max() < EXACT),
        {"distance to grad KL(pi, p), beta/2 in each": half.max(), "beta in each": whole.max()},
        TABLE,
    )


def k3_in_both(seeds: tuple[int, ...]) -> Claim:
    apart = [relative(mean_of("k3 both", s).kl - mean_of("k1 reward", s).kl, mean_of("k1 reward", s).kl) for s in seeds]
    spread = variance_ratios("k3 both", "k1 reward", seeds)
    return Claim(
        "C",
        "k3 in both reward and loss matches k1 in the reward",
        verdict(max(apart) < EXACT),
        {
            "distance of the expected gradients": max(apart),
            "its variance over that of k1 in the reward, least": min(spread),
        }
        | {"most": max(spread)},
        f"{TABLE}; beta in each",
    )


def k2_in_loss(seeds: tuple[int, ...]) -> Claim:
    plain = advantages.from_function(lambda rewards, mask: rewards, name="no_baseline", linear=True)
    pair = [
        objective(plain, surrogates.reinforce(), REDUCTION, kl=term)
        for term in (kl.penalty(kl.k2, "loss", "sequence"), kl.penalty(kl.k1, "reward"))
    ]
    apart = []
    for seed in seeds:
        known = drawn(seed)
        with exactly():
            scores, batch = as_batch(known, np.arange(len(known.mask))[None])
            one, other = (np.asarray(compiled_gradient(each)(scores, batch, 0.1)) for each in pair)
        apart.append(np.abs(one - other).max())
    means = distances("k2 loss, sequence", "reverse", seeds)
    return Claim(
        "C",
        "U^2/2 of whole sequences in the loss has, sample by sample, the gradient of k1 in the reward",
        verdict(max(apart) < EXACT and means.max() < EXACT),
        {"largest difference, any token": max(apart), "distance of the mean to grad KL(pi, p)": means.max()},
        f"{TABLE}; all completions, no baseline",
    )


def unbiased_in_value(seeds: tuple[int, ...]) -> Claim:
    biases = {}
    for name, estimator in (("k1", kl.k1), ("k3", kl.k3), ("k2", kl.k2)):
        # By the chain rule the exact KLs of all next tokens on the way sum to that of the sequences.
        exact = [float(drawn(s).probabilities @ full_kl(drawn(s))) for s in seeds]
        found = [value_moments(estimator, seed)[0] for seed in seeds]
        biases[name] = [abs(value / truth - 1) for value, truth in zip(found, exact, strict=True)]
    return Claim(
        "C",
        "k1 and k3 are unbiased in value, k2 is not",
        verdict(max(biases["k1"] + biases["k3"]) < EXACT and min(biases["k2"]) > APART),
        {"relative bias of k1": max(biases["k1"]), "k3": max(biases["k3"]), "k2, least": min(biases["k2"])}
        | {"k2, most": max(biases["k2"])},
        TABLE,
    )


def full_kl_in_loss(seeds: tuple[int, ...]) -> Claim:
    reverse, local = (distances("full loss", target, seeds) for target in ("reverse", "local_reverse"))
    inert = [distance(record("full reward", seed, step=NEAR), "zero") for seed in seeds]
    return Claim(
        "C, ours",
        "the exact KL over the vocabulary in the loss follows the gradient of KL(pi, p) of whole sequences",
        verdict(reverse.max() < EXACT),
        {
            "distance to it, least": reverse.min(),
            "distance at fixed prefixes": local.max(),
            "full in the reward, near p, share of the pull, most": max(inert),
        },
        TABLE,
    )


def one_penalty_for_several_rewards(seeds: tuple[int, ...]) -> Claim:
    weights, beta = (0.5, 0.5), 0.1
    several = {
        "linear": advantages.weighted_sum(weights, advantages.leave_one_out()),
        "standardised": advantages.separately_standardised(weights),
    }
    apart = {name: [] for name in several}
    for seed in seeds:
        draws = np.random.default_rng(seed)
        rewards, cost = draws.standard_normal((8, 2)), beta * draws.standard_normal(8)
        shared = advantages_of(advantages.leave_one_out(), cost)
        for name, advantage in several.items():
            each, none = (advantages_of(advantage, r) for r in (rewards - cost[:, None], rewards))
            apart[name].append(np.abs(each - (none - shared)).max())
    return Claim(
        "C",
        "k1 subtracted from each of several rewards is one penalty, subtracted once from their weighted sum",
        verdict(
            max(apart["linear"] + apart["standardised"]) < EXACT,
            max(apart["linear"]) < EXACT,
            "where the advantage is linear",
        ),
        {
            "largest difference of an advantage, leave-one-out": max(apart["linear"]),
            "each standardised, least": min(apart["standardised"]),
        },
        "groups of 8, two rewards of weight .5, beta .1, three seeds",
    )


def length_push(seeds: tuple[int, ...]) -> Claim:
    mean = reductions.sequence_mean_of_token_mean()
    term = TERMS["k1 loss"]()
    whole = objective(advantages.leave_one_out(), surrogates.sequence_importance_weighted(), mean, kl=term)
    found = []
    for seed in seeds:
        known = drawn(seed)
        found.append(
            judge(whole, known, expectation(whole, known, multisets(len(known.mask), 2), reduction=mean), 2, False)
        )
    length, reverse = ([distance(each, target) for each in found] for target in ("length", "reverse"))
    return Claim(
        "C, ours",
        "divided by each completion's length, k1 in the loss pushes on the length alone, whatever the reference is",
        verdict(max(length) < EXACT),
        {"distance to grad E[1/|y|]": max(length), "to grad KL(pi, p), least": min(reverse)},
        TABLE,
    )


def loss_of_zero(seeds: tuple[int, ...]) -> Claim:
    known, members = five_actions(), fours().groups.members[fours().live]
    whole = objective(advantages.leave_one_out(), surrogates.importance_weighted(), REDUCTION)
    with exactly():
        scores, batch = as_batch(known, members)
        loss = abs(float(jax.jit(whole)(scores, batch, 0.0)[0]))
        slope = np.asarray(compiled_gradient(whole)(scores, batch, 0.0))[..., 0]
    counted = np.zeros(5)
    np.add.at(counted, members, slope)
    norm = np.linalg.norm(counted - np.sum(counted) * known.probabilities)
    return Claim(
        "C, ours",
        "where the loss is 0 nothing is learnt",
        verdict(not (loss < EXACT < norm)),
        {"loss": loss, "norm of its gradient by the logits": float(norm)},
        "on-policy ratios of 1, leave-one-out, all groups of 4 of five actions with differing rewards",
    )


CLAIMS: Claims = (
    k1_in_loss,
    k1_in_reward,
    k3_in_reward_unbiased,
    k3_in_loss_term,
    half_beta_in_each,
    k3_in_both,
    k2_in_loss,
    unbiased_in_value,
    full_kl_in_loss,
    one_penalty_for_several_rewards,
    length_push,
    loss_of_zero,
)
