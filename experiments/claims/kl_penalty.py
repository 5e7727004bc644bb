"""Article B: the estimators' signs and clamps, and what else its advice rests on."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims.claim import EXACT, Claim, Claims, verdict
from experiments.claims.instances import REDUCTION, advantages_of, built, drawn, single
from grpo_jax import advantages, kl
from grpo_jax.losses import objective, reductions, surrogates
from grpo_jax.models import position_tabular
from grpo_jax.oracle import enumerated, exactly, expectation, multisets

SPREADS = (1e-6, 1e-5, 1e-4)
"""Standard deviations of the log-ratio, nats: those of a run's first updates."""


def k3_never_negative(seeds: tuple[int, ...]) -> Claim:
    plain, safe = jax.jit(lambda u: jnp.exp(-u) + u - 1), jax.jit(kl.k3)
    shares, means, ours = [], [], []
    for seed in seeds:
        draws = np.random.default_rng(seed).standard_normal(100_000)
        for spread in SPREADS:
            u = jnp.asarray(spread * draws, jnp.float32)
            values = np.asarray(plain(u), np.float64)
            shares.append(np.mean(values < 0))
            means.append(np.mean(values) / (spread**2 / 2))
            ours.append(np.min(safe(u)))
    return Claim(
        "B",
        "k3 is never negative",
        verdict(max(shares) == 0, min(ours) >= 0, "if computed with expm1"),
        {
            "share below 0 with exp, least": min(shares),
            "share, most": max(shares),
            "mean over the true one with exp, most": max(means),
            "least value with expm1": min(ours),
        },
        "100,000 float32 log-ratios of std 1e-6, 1e-5, 1e-4, three seeds; exp(-u) + u - 1, and kl.k3",
    )


def clamping_k3(seeds: tuple[int, ...]) -> Claim:
    plain = jax.jit(jax.grad(lambda u: jnp.clip(kl.k3(u), -10, 10)))
    ours = jax.jit(jax.grad(kl.clamped(kl.k3, 10.0)))
    with exactly():
        low, high = -4.0, 0.0
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if plain(jnp.float64(middle)) == 0 else (low, middle)
        pulls = float(plain(jnp.float64(-3.0))), float(ours(jnp.float64(-3.0)))
    return Claim(
        "B",
        "clamping each token's k3 to +-10 tames single samples and leaves the penalty in place",
        verdict(pulls[0] != 0),
        {"no gradient beyond log(p/pi)": -high, "gradient at log(p/pi) = 3": pulls[0], "of kl.clamped there": pulls[1]},
        "bisection on jax.grad, float64",
    )


def overflow(seeds: tuple[int, ...]) -> Claim:
    largest = float(np.log(np.finfo(np.float32).max))
    value, slope = jax.jit(jax.value_and_grad(kl.k3))(jnp.float32(-100))
    with np.errstate(over="ignore"):
        naive = np.exp(np.float32(100))
    return Claim(
        "B",
        "the log-ratio has to be bounded before it is exponentiated",
        verdict(np.isinf(naive) and np.isfinite(value) and np.isfinite(slope)),
        {"exp overflows float32 beyond": largest, "our k3 at u = -100": value, "its derivative": slope},
        "float32",
    )


def kl_averaged_first(seeds: tuple[int, ...]) -> Claim:
    effect, kept = [], []
    for seed in seeds:
        rewards, cost = np.random.default_rng(seed).standard_normal((2, 8))
        plain, averaged, each = (
            advantages_of(advantages.leave_one_out(), rewards - charged)
            for charged in (0, 0.1 * np.mean(cost), 0.1 * cost)
        )
        effect.append(np.abs(averaged - plain).max())
        kept.append(np.abs(each - plain).max())
    return Claim(
        "B",
        "a KL that is averaged over the group before it is subtracted from the rewards does nothing",
        verdict(max(effect) < EXACT < min(kept)),
        {"largest change of an advantage, averaged": max(effect), "each its own, least": min(kept)},
        "groups of 8, beta .1, leave-one-out, three seeds",
    )


def reference_is_the_policy(seeds: tuple[int, ...]) -> Claim:
    pairs = [jax.jit(jax.value_and_grad(each))(jnp.zeros(())) for each in (kl.k1, kl.k2, kl.k3)]
    # In the loss k1's slope is the constant that pulls nowhere; in the reward its value is what pulls.
    found, slopes = [float(value) for value, _ in pairs], [float(slope) for _, slope in pairs[1:]]
    return Claim(
        "B",
        "with the policy itself as the reference the KL stays at 0 and so does its gradient",
        verdict(not any(found) and not any(slopes)),
        {
            "largest value of k1, k2, k3 at u = 0": max(map(abs, found)),
            "largest slope of k2, k3": max(map(abs, slopes)),
        },
        "the estimators at log-ratio 0",
    )


def entropy_bonus(seeds: tuple[int, ...]) -> Claim:
    beta, eta, reference = 0.01, 0.001, np.log([0.5, 0.3, 0.2])
    whole = objective(
        advantages.leave_one_out(), surrogates.reinforce(), REDUCTION, kl=kl.penalty(kl.k1), entropy_coefficient=eta
    )
    raised = single(reference * beta / (beta + eta), reference)
    found = expectation(whole, raised, multisets(3, 2), beta)
    kl_there = float(raised.probabilities @ (raised.scores.log_probs - raised.ref_log_probs)[:, 0])
    at_rest = np.linalg.norm(found.reward + beta * found.kl)
    return Claim(
        "B",
        "an entropy bonus beside the KL penalty holds the policy away from its reference",
        verdict(at_rest < EXACT and kl_there > EXACT),
        {"KL at rest, no reward": kl_there, "gradient there": at_rest},
        "three actions, beta .01, entropy .001: at rest pi is p^(beta/(beta + eta)), normalised",
    )


def temperature(seeds: tuple[int, ...]) -> Claim:
    policy, rollout = position_tabular(2, 1), enumerated(position_tabular(2, 1), 1, ()).rollout
    params = {"logits": jnp.array([[[2.0, 0.0]]])}
    score = jax.jit(policy.score)
    left_out, applied = (float(score(params, rollout, t).log_probs[0, 0, 0]) for t in (1.0, 0.6))
    return Claim(
        "B",
        "the sampling temperature may be left out of the log-probabilities that are trained on",
        verdict(np.isclose(left_out, applied, rtol=1e-3)),
        {"log-prob at temperature .6": applied, "left out": left_out},
        "logits (2, 0), token 0; Policy.score",
    )


def one_learning_rate(seeds: tuple[int, ...]) -> Claim:
    chosen = {
        "constant length 3": reductions.constant_length(3),
        "token mean": reductions.token_mean(),
        "sequence mean of token mean": reductions.sequence_mean_of_token_mean(),
    }
    groups, factors = multisets(len(drawn(seeds[0]).mask), 2), {}
    for name, reduction in chosen.items():
        norms = []
        for seed in seeds:
            known = drawn(seed)
            sums, other = (
                expectation(built("k1 to go"), known, groups, reduction=each).reward for each in (REDUCTION, reduction)
            )
            norms.append(np.linalg.norm(other) / np.linalg.norm(sums))
        factors[name] = float(np.mean(norms))
    return Claim(
        "B",
        "one learning rate serves every way of averaging the token losses",
        verdict(all(np.isclose(factor, 1, rtol=0.1) for factor in factors.values())),
        {f"gradient norm over that of sums, {name}": factor for name, factor in factors.items()},
        "exact, 15 completions of up to 3 tokens, mean of three seeds",
    )


CLAIMS: Claims = (
    k3_never_negative,
    clamping_k3,
    overflow,
    kl_averaged_first,
    reference_is_the_policy,
    entropy_bonus,
    temperature,
    one_learning_rate,
)
