# %% [markdown]
# # 3. Degenerate groups
#
# When all completions of a prompt get the same reward, their advantages are 0, and yet with β > 0 the group moves the
# parameters: the KL term does not ask for rewards. Some call that a bug and mask it, others call it the regulariser.
# Here is the effect, what the library offers against it, and what each remedy costs, exactly.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import grpo_jax as gj

jax.config.update("jax_enable_x64", True)

# %% [markdown]
# ## The effect
#
# One token, five actions, groups of four. Four prompts: all wrong, mixed, all right, and rewards that hardly differ.

# %%
logits = np.array([0.96, -0.26, -1.08, -1.17, -0.46])
ref_logits = np.array([1.10, -0.12, -0.71, -0.83, -0.48])
log_pi, log_p = jax.nn.log_softmax(logits), jax.nn.log_softmax(ref_logits)

actions = np.array([[1, 2, 4, 1], [0, 1, 2, 3], [0, 3, 3, 0], [0, 1, 2, 3]])
groups = {
    "all wrong": [0, 0, 0, 0],
    "mixed": [1, 0, 0, 1],
    "all right": [1, 1, 1, 1],
    "hardly differ": [0.5] * 3 + [0.501],
}
entropy = -jnp.sum(jnp.exp(log_pi) * log_pi)
scores = gj.Scores(log_pi[actions][..., None], entropy=jnp.full((4, 4, 1), entropy))
batch = gj.Batch(
    mask=jnp.ones((4, 4, 1), bool),
    rewards=jnp.array(list(groups.values()), float),
    ref_log_probs=log_p[actions][..., None],
)


def build(rule, advantage=None, kl=None):
    return gj.objective(
        advantage or gj.advantages.leave_one_out(),
        gj.surrogates.reinforce(),
        gj.reductions.sequence_mean_of_token_sum(),
        kl=kl or gj.kl.penalty(gj.kl.k1),
        degenerate=rule,
    )


def norms(rule, beta):
    """The norm of the gradient by the log-probabilities, group by group [4]."""
    return np.linalg.norm(gj.losses.log_prob_gradient(build(rule), scores, batch, beta)[..., 0], axis=1)


keep = gj.degenerate.keep()
without, with_kl = norms(keep, 0.0), norms(keep, 0.1)
for name, *sizes in zip(groups, without, with_kl, strict=True):
    print(f"{name:14} gradient at beta 0: {sizes[0]:.4f}   at beta 0.1: {sizes[1]:.4f}")
assert not without[[0, 2]].any()
assert with_kl[[0, 2]].all()

# %% [markdown]
# ## Three layers
#
# 1. **Hard mask**, `degenerate.mask("all" or "live")`: the gradient of a degenerate group is exactly 0, KL and entropy
#    included. `live` also takes its tokens out of the denominator.
# 2. **Smooth weight**, `degenerate.smooth(scale)`: tanh(std / scale), exactly 0 at std 0. A shifted sigmoid, as it has
#    been proposed, is 0.49975 there and masks nothing.
# 3. **Give it something to learn**: `degenerate.entropy_shaped(alpha)` gives such groups advantages from their entropy;
#    `rollout.resample_rounds` replaces them by other prompts before the update.
#
# In a run: `--objective.degenerate mask --objective.denominator live`, `--objective.degenerate smooth`,
# `--objective.degenerate entropy_shaped`, `--rollout.resample-rounds 3`. A group is degenerate by the spread of its
# *raw* rewards: a standard deviation in floating point is not 0 for sixteen times 0.7.

# %%
rules = {
    "keep (default)": keep,
    "mask": gj.degenerate.mask("all"),
    "smooth(0.001)": gj.degenerate.smooth(1e-3),
    "entropy_shaped(0.1)": gj.degenerate.entropy_shaped(0.1),
}
by_rule = {name: norms(rule, 0.1) for name, rule in rules.items()}
assert not by_rule["mask"][[0, 2]].any()
assert not by_rule["smooth(0.001)"][[0, 2]].any()
assert by_rule["mask"][1] == by_rule["keep (default)"][1]
assert 0 < by_rule["smooth(0.001)"][3] < by_rule["keep (default)"][3]

stds = np.linspace(0, 0.005, 201)
sigmoid = 1 / (1 + np.exp(-(stds - 1e-6) * 1000))
assert round(sigmoid[0], 5) == 0.49975

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
for number, (name, sizes) in enumerate(by_rule.items()):
    left.bar(np.arange(4) + (number - 1.5) * 0.2, sizes, 0.2, label=name)
left.set_xticks(range(4), list(groups))
left.set_ylabel("norm of the gradient\nby the log-probabilities")
left.set_yscale("log")
left.set_title("What a group contributes at beta 0.1 (no bar: exactly 0)")
left.legend(fontsize="small")
right.plot(stds, np.tanh(stds / 1e-3), label="smooth(0.001): tanh(std / 0.001)")
right.plot(stds, sigmoid, label="sigmoid((std - 1e-6) * 1000)", linestyle="--")
right.set_xlabel("standard deviation of a group's rewards")
right.set_ylabel("weight of the group")
right.set_ylim(0, 1.02)
right.set_title("Smooth weights")
right.legend(fontsize="small")
plt.show()

# %% [markdown]
# Informative groups are untouched. (Entropy shaping does nothing for the wrong ones here: it charges tokens for what
# they lack of the most uncertain token's entropy, and there is only one token.)
#
# ## The price
#
# A mask hides the prompts that are too easy or too hard from the KL term: what is left is another average. How far off
# is its gradient? The oracle sums over all groups of four; actions 0 and 3 are the right ones.

# %%
rewards = np.array([1.0, 0.0, 0.0, 1.0, 0.0])
listed = gj.oracle.enumerated(gj.models.position_tabular(5, 1), max_tokens=1, end_ids=())
all_groups = gj.oracle.multisets(5, group_size=4)
priced = {name: build(rule) for name, rule in {**rules, "mask(live)": gj.degenerate.mask("live")}.items()}
del priced["entropy_shaped(0.1)"]


def prices(easier):
    """Chances of success and of a degenerate group, and each rule's relative error of the KL gradient.

    Policy and reference both prefer the right actions by ``easier`` more.
    """
    params, ref_params = ({"logits": (each + easier * rewards)[None, None]} for each in (logits, ref_logits))
    tables = gj.oracle.tables(gj.oracle.Instance(listed, params, ref_params, params, rewards))
    weights = np.prod(tables.probabilities[all_groups.members], axis=1) * all_groups.multiplicity
    degenerate = np.sum(weights[np.ptp(rewards[all_groups.members], axis=1) == 0])
    target = tables.targets["reverse"]
    errors = {}
    for name, objective in priced.items():
        found = gj.oracle.expectation(objective, tables, all_groups).kl
        # Alone in its batch, a live group is divided by itself; in a large batch by the share of live groups.
        found = found / (1 - degenerate) if name == "mask(live)" else found
        errors[name] = np.linalg.norm(found - target) / np.linalg.norm(target)
    return np.sum(tables.probabilities * rewards), degenerate, errors


success, degenerate, errors = prices(0.0)
print(f"P(success) {success:.5f}, P(degenerate group) {degenerate:.5f}")
for name, error in errors.items():
    print(f"{name:15} KL gradient off by {error:.1%}")
np.testing.assert_allclose([success, degenerate], [0.62652, 0.17353], atol=5e-6)
np.testing.assert_allclose([errors["mask"], errors["mask(live)"]], [0.130, 0.144], atol=5e-4)
assert errors["keep (default)"] < 1e-12

# %%
found = [prices(easier) for easier in np.linspace(-4, 4, 17)]
figure, axes = plt.subplots(figsize=(8, 3.8), layout="constrained")
for name in ("keep (default)", "mask", "mask(live)"):
    axes.plot([each[0] for each in found], [each[2][name] for each in found], marker=".", label=name)
axes.plot([each[0] for each in found], [each[1] for each in found], "k:", label="share of degenerate groups")
axes.set_xlabel("probability of success of the prompt")
axes.set_ylabel("relative error of the KL gradient")
axes.set_title("What masking costs, exactly, in groups of four (dotted: the share of groups it drops)")
axes.grid(alpha=0.3)
axes.legend(fontsize="small")
plt.show()
easiest = found[-1]
assert easiest[1] > 0.9
assert easiest[2]["mask"] > 0.9

# %% [markdown]
# With 17 % of the groups masked, the KL gradient is off by 13.0 %, or 14.4 % when only live groups count (resampling
# until all groups are live is the same average). On an easy prompt nearly all of it is gone: the better the policy, the
# less holds it back. `keep` has no price, and is the default.
#
# ## The real defect: KL inside a standardised reward
#
# If k1 is subtracted from the reward *before* the group is divided by its standard deviation, a group of equal rewards
# consists of nothing but β u, and is blown up to unit scale **whatever β is**.

# %%
member_rewards = rewards[all_groups.members]
tables = gj.oracle.tables(
    gj.oracle.Instance(listed, *[{"logits": x[None, None]} for x in (logits, ref_logits, logits)], rewards)
)
u = (tables.scores.log_probs - tables.ref_log_probs)[all_groups.members, 0]
differ = (np.ptp(member_rewards, axis=1) == 0) & (np.ptp(all_groups.members, axis=1) > 0)
weights = (np.prod(tables.probabilities[all_groups.members], axis=1) * all_groups.multiplicity)[differ]


def mean_size(advantages):
    return np.sum(weights * np.mean(np.abs(advantages), axis=1)) / np.sum(weights)


def fused(advantage, beta):
    shaped = jnp.asarray((member_rewards - beta * u)[differ])
    return mean_size(jax.vmap(advantage.compute)(shaped, jnp.ones(shaped.shape, bool)))


betas = [1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001]
sizes = {
    "fused, then standardised": [fused(gj.advantages.standardised(), beta) for beta in betas],
    "fused, then leave-one-out": [fused(gj.advantages.leave_one_out(), beta) for beta in betas],
    "standardised, then k1 to go": [mean_size(beta * u[differ]) for beta in betas],
}
print("beta 0.1, 0.01, 0.001:", {name: np.round(np.array(values)[[2, 4, 6]], 4) for name, values in sizes.items()})
np.testing.assert_allclose(np.array(sizes["fused, then standardised"])[[2, 4, 6]], [0.760, 0.701, 0.398], atol=5e-4)
np.testing.assert_allclose(np.array(sizes["fused, then leave-one-out"])[[2, 4, 6]], [0.0113, 0.0011, 0.0001], atol=5e-5)

figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
for name, values in sizes.items():
    axes.loglog(betas, values, marker="o", label=name)
axes.set_xlabel("beta")
axes.set_ylabel("mean |advantage|")
axes.set_title("Groups of equal rewards: how large the KL makes their advantages")
axes.grid(alpha=0.3, which="both")
axes.legend(fontsize="small")
plt.show()

# %% [markdown]
# At β = 0.001 the fused advantage is still 0.4: thousands of times the pull that was asked for. So the library refuses
# the combination and says what to use instead.

# %%
try:
    build(keep, gj.advantages.standardised(), gj.kl.penalty(gj.kl.k1, "reward"))
except ValueError as error:
    print(error)
else:
    raise AssertionError("accepted")
assert sizes["fused, then standardised"][-1] > 1000 * sizes["standardised, then k1 to go"][-1]
