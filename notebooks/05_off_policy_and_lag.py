# %% [markdown]
# # 5. Off-policy and lag
#
# An asynchronous trainer learns from completions that an older policy sampled. Which KL terms still follow what they
# did, how much variance does it cost to keep the promise, and does it matter in training?

# %%
import functools

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import grpo_jax as gj

np.set_printoptions(precision=4, suppress=True)

# %% [markdown]
# ## By hand
#
# Three actions again (notebook 1), but sampled by an older policy μ: the expectation is over μ, the gradient by π.

# %%
logits, old_logits, p = jnp.array([0.2, -0.3, 0.5]), jnp.array([0.6, -0.1, 0.0]), jnp.array([0.5, 0.3, 0.2])
mu = jax.nn.softmax(old_logits)


def expected_gradient(loss):
    """The gradient of sum_y mu(y) loss(u, ratio)."""

    def expected(logits):
        log_pi = jax.nn.log_softmax(logits)
        return jnp.sum(mu * loss(log_pi - jnp.log(p), jnp.exp(log_pi) / mu))

    return jax.jit(jax.grad(expected))(logits)


by_hand = {
    "k1": expected_gradient(lambda u, ratio: u),
    "k3": expected_gradient(lambda u, ratio: gj.kl.k3(u)),
    "ratio * k1": expected_gradient(lambda u, ratio: ratio * u),
    "ratio * k3": expected_gradient(lambda u, ratio: ratio * gj.kl.k3(u)),
}
for name, gradient in by_hand.items():
    print(f"{name:10} in loss", np.asarray(gradient))
reverse = np.array([-0.188597, -0.112169, 0.300767])
np.testing.assert_allclose(by_hand["ratio * k1"], reverse, atol=2e-6)
np.testing.assert_allclose(by_hand["ratio * k3"], reverse, atol=2e-6)
assert by_hand["k1"] @ reverse < 0

# %% [markdown]
# Weighted by the differentiable ratio π/μ both give the reverse KL exactly; unweighted, k1 in the loss even points the
# **wrong way**. In a sequence the question is: the ratio of what? The token's own ratio corrects the choice of the
# token, not the prefix it stands on.
#
# ## Certificates

# %%
weights = gj.kl.importance


def build(surrogate, kl):
    return gj.objective(gj.advantages.leave_one_out(), surrogate, gj.reductions.sequence_mean_of_token_sum(), kl=kl)


to_go = gj.kl.penalty(gj.kl.k1)
exact_weight = gj.surrogates.sequence_importance_weighted()
configurations = {
    "k1 to go, no ratio": build(gj.surrogates.reinforce(), to_go),
    "k1 to go, clipped ratio": build(gj.surrogates.clipped(), to_go),
    "k1 to go, sequence ratio": build(exact_weight, to_go),
    "k3 in loss, no ratio": build(exact_weight, gj.kl.penalty(gj.kl.k3, "loss")),
    "k3 in loss, token ratio": build(exact_weight, gj.kl.penalty(gj.kl.k3, "loss", importance=weights.token())),
    "k3 in loss, prefix ratio": build(exact_weight, gj.kl.penalty(gj.kl.k3, "loss", importance=weights.prefix())),
    "k3 in loss, causal ratio": build(exact_weight, gj.kl.penalty(gj.kl.k3, "loss", importance=weights.causal())),
}
certificates = {name: gj.certify(objective) for name, objective in configurations.items()}
print(f"{'':26}{'on-policy':15}{'off-policy':23}{'distance':>9}{'variance':>9}")
for name, each in certificates.items():
    distance = "" if each.off.distance is None else f"{each.off.distance:.0e}"
    print(f"{name:26}{each.on.declared:15}{each.off.declared:23}{distance:>9}{each.off.variance:9.2f}")
    assert each.agrees

# %% [markdown]
# Each line is proved on a policy of three tokens (`distance` is that to the declared gradient). Without a ratio, or
# with a clipped one, a KL term follows **no objective** off-policy. The token ratio (DeepSeek-V3.2's correction)
# follows the local KL, at the prefixes of the *sampler*. Prefix and causal ratios, and the sequence ratio on the whole
# objective, keep what they promise.

# %%
kept = {name for name, each in certificates.items() if each.on.declared == each.off.declared}
assert kept == {"k1 to go, sequence ratio", "k3 in loss, prefix ratio", "k3 in loss, causal ratio"}
assert certificates["k3 in loss, token ratio"].off.declared == "sampler_local_reverse"

figure, axes = plt.subplots(figsize=(9, 3.8), layout="constrained")
places = np.arange(len(certificates))
for offset, behaviour in ((-0.2, "on"), (0.2, "off")):
    values = [getattr(each, behaviour).distances["reverse"] for each in certificates.values()]
    axes.barh(places + offset, np.maximum(values, 1e-17), 0.4, label=f"{behaviour}-policy")
axes.set_yticks(places, list(certificates))
axes.invert_yaxis()
axes.set_xscale("log")
axes.set_xlim(1e-17, 1e2)
axes.axvline(1e-12, color="grey", linestyle=":")
axes.set_xlabel("relative distance of the KL term's gradient to that of KL(π‖p) (left of the dotted line: exact)")
axes.set_title("What another policy's samples do to a KL term")
axes.legend(fontsize="small")
plt.show()

# %% [markdown]
# ## Lag
#
# Now a training run whose sampler is 0, 1, 2, 5 or 10 updates behind, with a deliberately high learning rate. All
# completions can be listed, so at each update the variance of the sequence weight w = π(y)/μ(y), and with it the
# effective sample size (E w)² / E w² = 1 / (1 + Var w), are exact.

# %%
VOCABULARY, LENGTH, PROMPTS, GROUP, SEEDS, STEPS, BETA = 4, 4, 2, 8, 16, 150, 0.2
LAGS = np.array([0, 1, 2, 5, 10])
policy = gj.models.prefix_tabular(VOCABULARY, LENGTH, contexts=PROMPTS)
score = functools.partial(policy.score, temperature=1.0)
prompts = gj.Prompts(jnp.arange(PROMPTS)[:, None], jnp.ones((PROMPTS, 1), bool))
sampler = gj.rollouts.sampler(policy, gj.rollouts.categorical(), GROUP, LENGTH, end_ids=(0,), pad_id=0)
space = gj.oracle.completions(VOCABULARY, LENGTH, end_ids=(0,))
tokens, mask = (jnp.broadcast_to(x, (PROMPTS, *x.shape)) for x in (space.tokens, space.mask))
everything = gj.Rollout(prompts, tokens, mask, jnp.zeros(mask.shape), jnp.ones(mask.shape[:2], bool))


def reward(rollout):
    """The share of the budget filled with token 3."""
    return jnp.mean((rollout.tokens == 3) & rollout.mask, axis=-1)


def everywhere(function):
    """Compiles a function and maps it over lags and seeds [LAGS, SEEDS, ...]."""
    return jax.jit(jax.vmap(jax.vmap(function)))


@everywhere
def generate(params, key):
    return sampler(params, prompts, key=key)


@everywhere
def exact(params, ref_params, sampler_params):
    """What is trained for, E[R] - beta KL(pi||p), and the variance of the sequence weight; means over prompts."""
    ours, theirs, sampled = (
        jnp.sum(score(each, everything).log_probs, axis=-1) for each in (params, ref_params, sampler_params)
    )
    regularised = jnp.sum(jnp.exp(ours) * (reward(everything) - BETA * (ours - theirs)), axis=1)
    variance = jnp.sum(jnp.exp(2 * ours - sampled), axis=1) - 1
    return jnp.stack([regularised.mean(), variance.mean()])


def curves(surrogate):
    """Trains with every lag and seed [STEPS, LAGS, SEEDS, 2]."""
    learner = gj.updates.learner(
        score,
        build(surrogate, to_go),
        gj.updates.adam(0.15),
        gj.kl.controllers.constant(BETA),
        gj.updates.frozen(),
    )

    @everywhere
    def update(state, rollout):
        batch = gj.Batch(rollout.mask, reward(rollout), old_log_probs=rollout.log_probs)
        return learner.update(state, rollout, batch)[0]

    keys = jax.random.split(jax.random.key(1), (STEPS, 1, SEEDS))
    keys = jnp.broadcast_to(keys, (STEPS, len(LAGS), SEEDS))
    states = everywhere(lambda key: learner.init(policy.init(key=jax.random.key(0)), key=key))(keys[0])
    history, rows = [], []
    for step in range(STEPS):
        history.append(states.params["logits"])
        past = [history[max(step - lag, 0)][number] for number, lag in enumerate(LAGS)]
        sampler_params = {"logits": jnp.stack(past)}
        rows.append(exact(states.params, states.ref_params, sampler_params))
        states = update(states, generate(sampler_params, keys[step]))
    return np.asarray(rows)


trained = {
    "no ratio": curves(gj.surrogates.reinforce()),
    "clipped ratio (0.2)": curves(gj.surrogates.clipped(0.2)),
    "sequence ratio": curves(exact_weight),
}

# %%
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 3.9), layout="constrained")
variance = np.maximum(trained["sequence ratio"][..., 1], 0)  # at lag 0 rounding leaves -1e-7
sizes = 1 / (1 + variance)
left.errorbar(
    LAGS, variance.mean((0, 2)), variance.mean(0).std(1), marker="o", capsize=3, label="variance of the weight"
)
left.errorbar(
    LAGS, sizes.mean((0, 2)), sizes.mean(0).std(1), marker="s", capsize=3, label="effective sample size / samples"
)
left.set_xlabel("lag of the sampler [updates]")
left.set_ylabel("exact, mean over the run")
left.set_title("Sequence weight against lag")
left.legend(fontsize="small")
for name, values in trained.items():
    late = values[-50:, ..., 0].mean(0)
    middle.errorbar(LAGS, late.mean(1), late.std(1) / np.sqrt(SEEDS), marker="o", capsize=3, label=name)
    curve = values[:, -1, :, 0]
    error = curve.std(1) / np.sqrt(SEEDS)
    right.plot(curve.mean(1))
    right.fill_between(range(STEPS), curve.mean(1) - error, curve.mean(1) + error, alpha=0.25)
middle.set_xlabel("lag of the sampler [updates]")
middle.set_ylabel("E[R] - beta KL(π‖p), last 50 updates")
middle.set_title("Training against lag")
right.set_xlabel("update")
right.set_ylabel("E[R] - beta KL(π‖p)")
right.set_title("Training at lag 10")
for axes in (left, middle, right):
    axes.grid(alpha=0.3)
figure.suptitle(f"Mean over {SEEDS} seeds; bars left: standard deviation, elsewhere: standard error")
figure.legend(*middle.get_legend_handles_labels(), loc="outside lower right", ncols=3, fontsize="small")
plt.show()

# %%
late = {name: values[-50:, ..., 0].mean((0, 2)) for name, values in trained.items()}
print("lag                     ", *(f"{lag:8}" for lag in LAGS))
print("variance of the weight  ", *(f"{value:8.3f}" for value in variance.mean((0, 2))))
print("effective sample size   ", *(f"{value:8.3f}" for value in sizes.mean((0, 2))))
for name, values in late.items():
    print(f"{name:24}", *(f"{value:8.3f}" for value in values))
assert np.all(np.diff(variance.mean((0, 2))) > 0)
assert np.all(np.diff(sizes.mean((0, 2))) < 0)
np.testing.assert_allclose(variance[0], 0, atol=1e-5)
assert np.ptp([values[0] for values in late.values()]) < 0.01
assert late["no ratio"][1] > late["no ratio"][0] - 0.01
assert late["no ratio"][2] < min(late["clipped ratio (0.2)"][2], late["sequence ratio"][2])
assert late["no ratio"][-1] < 0.8 * late["no ratio"][0]
assert late["clipped ratio (0.2)"][-1] > late["sequence ratio"][-1] > 0.95 * late["sequence ratio"][0]

# %% [markdown]
# One update of lag costs next to nothing. From two on the run without a ratio falls behind, and at ten it has lost
# about a third of what it had. The sequence ratio keeps its target and pays in variance. The clipped ratio follows no
# objective off-policy and yet does best here: it stops pushing where the policy has moved too far, and this learning
# rate can use a brake. Exactness is what can be *proved*; which bias is worth its variance is an experiment, and this
# is how to run it.
