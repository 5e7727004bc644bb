"""Article A: groups whose rewards are all equal, what KL does to them, and what leaving them out costs."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims.claim import APART, EXACT, Claim, Claims, verdict
from experiments.claims.instances import (
    REDUCTION,
    compiled_gradient,
    cosine,
    five_actions,
    fours,
    relative,
)
from grpo_jax import advantages, kl
from grpo_jax.losses import Degenerate, Group, degenerate, objective, reductions, surrogates
from grpo_jax.oracle import expectation
from grpo_jax.oracle.exact import gradients_of_groups
from grpo_jax.testing import random_batch, random_scores
from grpo_jax.types import Batch, Scores

FIVE = "exact, all groups of 4 of five actions"


def five_built(advantage=None, term=None, rule: Degenerate | None = None):
    """An objective for the five actions."""
    advantage = advantage or advantages.leave_one_out()
    return objective(
        advantage, surrogates.reinforce(), REDUCTION, kl=term or kl.penalty(kl.k1), degenerate=rule or degenerate.keep()
    )


def moved_by(built, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """Norms of the gradient by the logits of each group, at beta 0 and at beta."""
    (_, (without, added)), *_ = gradients_of_groups(built, five_actions(), fours().groups, beta)
    return np.linalg.norm(without, axis=1), np.linalg.norm(without + beta * added, axis=1)


def kl_moves_equal_groups(seeds: tuple[int, ...]) -> Claim:
    built = five_built(advantages.standardised(), kl.penalty(kl.k3, "loss"))
    without, with_kl = (norms[~fours().live] for norms in moved_by(built, 0.04))
    return Claim(
        "A",
        "a group of equal rewards has advantage 0, yet moves the parameters through KL where beta > 0, and not where "
        "beta is 0",
        verdict(without.max() == 0 and with_kl.min() > 0),
        {
            "gradient norm at beta .04, least": with_kl.min(),
            "largest": with_kl.max(),
            "at beta 0, largest": without.max(),
        },
        f"{FIVE}; GRPO, k3 in the loss",
    )


def rloo_alike(seeds: tuple[int, ...]) -> Claim:
    _, with_kl = moved_by(five_built(advantages.leave_one_out(), kl.penalty(kl.k1, "reward")), 0.04)
    equal, varied = ~fours().live, fours().varied
    alike, differing = with_kl[equal & ~varied], with_kl[equal & varied]
    return Claim(
        "A",
        "RLOO, whose KL stands in the reward, moves on such groups as GRPO does",
        verdict(alike.min() > 0, alike.max() == 0 and differing.min() > 0, "where the completions differ"),
        {
            "gradient norm at beta .04, completions differ, least": differing.min(),
            "completions the same, largest": alike.max(),
        },
        f"{FIVE}; leave-one-out, k1 in the reward",
    )


def size_of_the_pull(seeds: tuple[int, ...]) -> Claim:
    batch = Batch(jnp.ones((1, 4, 1), bool), jnp.ones((1, 4)), ref_log_probs=jnp.full((1, 4, 1), -1.5))
    terms = kl.penalty(kl.k3, "loss"), kl.penalty(kl.k3, "loss", importance=kl.importance.token())
    built = [five_built(advantages.standardised(), term) for term in terms]
    scores = Scores(jnp.full((1, 4, 1), -1.0))
    plain, corrected = (4 * float(compiled_gradient(each)(scores, batch, 0.04)[0, 0, 0]) for each in built)
    agree = np.allclose([plain, corrected], [-0.04 * np.expm1(-0.5), 0.04 * 0.5], rtol=1e-5)
    return Claim(
        "A",
        "at log-ratio u the pull on each token of such a group is beta (1 - exp(-u)) for k3, beta u with the token's "
        "ratio",
        verdict(agree),
        {"k3": plain, "with the ratio": corrected},
        "rewards all 1, beta .04, log-probs -1 and -1.5 (huggingface/trl#5588)",
    )


def smooth_weight(seeds: tuple[int, ...]) -> Claim:
    theirs = float(article_weight(0.0))
    equal, apart = our_weight(np.array([[0.7] * 4, [0.0, 0, 1, 1]]))
    return Claim(
        "A",
        "the smooth weight sigmoid((std - 1e-6) * 1000) is 0 for a group of equal rewards",
        verdict(theirs == 0),
        {"its weight at std 0": theirs, "ours, tanh(std / .001)": equal, "ours at std .5": apart},
        "the formula, and degenerate.smooth()",
    )


def article_weight(std: np.ndarray | float) -> np.ndarray:
    """The weight that the article proposes, of groups with these stds."""
    return 1 / (1 + np.exp(-(np.asarray(std) - 1e-6) * 1000))


def our_weight(rewards: np.ndarray) -> np.ndarray:
    """The weight of `degenerate.smooth` of groups with rewards ``[M, G]``."""
    spread = np.ptp(rewards, axis=1)
    fields = np.asarray(rewards, np.float32), np.ones(rewards.shape, bool), np.asarray(spread, np.float32), spread == 0
    return np.asarray(jax.jit(jax.vmap(degenerate.smooth().weight))(Group(*map(jnp.asarray, fields))))


def hard_mask(seeds: tuple[int, ...]) -> Claim:
    dead, changed, rescaled = [], [], []
    built = [with_entropy(rule) for rule in (degenerate.keep(), degenerate.mask("all"), degenerate.mask("live"))]
    for seed in seeds:
        batch = random_batch(key=jax.random.key(seed))
        batch = batch._replace(rewards=batch.rewards.at[0].set(0.7), task_rewards=None)
        scores = random_scores(batch, key=jax.random.key(seed + 1000))
        kept, everyone, live = (np.asarray(compiled_gradient(each)(scores, batch, 0.1)) for each in built)
        dead.append(max(np.abs(everyone[0]).max(), np.abs(live[0]).max()))
        changed.append(np.abs(everyone[1:] - kept[1:]).max())
        rescaled.append(np.linalg.norm(live[1:]) / np.linalg.norm(kept[1:]))
    gone = max(dead) == 0
    return Claim(
        "A",
        "a hard mask gives groups of equal rewards a gradient of exactly 0, KL and entropy included, and leaves the "
        "others as they were",
        verdict(
            gone and max(changed) == 0 and np.allclose(rescaled, 1),
            gone and max(changed) == 0,
            "where the denominator counts all groups",
        ),
        {
            "masked, largest": max(dead),
            "others' change, largest": max(changed),
            "others' factor, live denominator": max(rescaled),
        },
        "three random batches of 3 groups, one of equal rewards, float32",
    )


def with_entropy(rule: Degenerate):
    """An objective with KL and entropy, and a rule for groups of equal rewards."""
    return objective(
        advantages.leave_one_out(),
        surrogates.clipped(),
        reductions.sequence_mean_of_token_sum(),
        kl=kl.penalty(kl.k3, "loss"),
        degenerate=rule,
        entropy_coefficient=0.01,
    )


def pull_is_a_defect(seeds: tuple[int, ...]) -> Claim:
    known, groups = five_actions(), fours().groups
    rules = degenerate.keep(), degenerate.mask("all"), degenerate.mask("live")
    kept, everyone, live = (expectation(five_built(rule=rule), known, groups) for rule in rules)
    # In one group alone the live denominator does not show; in a large batch it is the share of live groups.
    share = np.sum(fours().probabilities[fours().live])
    reverse = known.targets["reverse"]
    biases = [relative(each - reverse, reverse) for each in (kept.kl, everyone.kl, live.kl / share)]
    return Claim(
        "A",
        "the KL gradient of such groups is a defect, and masking it mends the objective",
        verdict(biases[1] < EXACT or biases[2] < EXACT),
        {"bias of the KL gradient, kept": biases[0], "masked": biases[1], "masked, live denominator": biases[2]},
        f"{FIVE}, against the gradient of KL(pi, p)",
    )


def pull_is_noise(seeds: tuple[int, ...]) -> Claim:
    (_, (_, added)), *_ = gradients_of_groups(five_built(), five_actions(), fours().groups, 1.0)
    equal, weights = ~fours().live, fours().probabilities
    mean, reverse = weights[equal] @ added[equal], five_actions().targets["reverse"]
    return Claim(
        "A",
        "the KL gradient of such groups is noise without a direction",
        verdict(relative(mean, reverse) < APART),
        {
            "their share of the expected KL gradient": relative(mean, reverse),
            "cosine with it": cosine(mean, reverse),
            "share of groups": np.sum(weights[equal]),
        },
        f"{FIVE}; k1 to go",
    )


CLAIMS: Claims = (
    kl_moves_equal_groups,
    rloo_alike,
    size_of_the_pull,
    smooth_weight,
    hard_mask,
    pull_is_a_defect,
    pull_is_noise,
)
