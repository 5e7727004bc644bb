# %% [markdown]
# # 1. Verify an estimator
#
# Does the KL term in your loss pull the policy towards its reference? Nobody has to be believed: with few outcomes the
# expected gradient is a sum, and `jax.grad` takes it exactly. First three actions by hand, then sequences of two tokens
# by hand, then the same with the library, which does it to the very objective that trains.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import grpo_jax as gj

jax.config.update("jax_enable_x64", True)
np.set_printoptions(precision=6, suppress=True)

# %% [markdown]
# ## Three actions
#
# The policy is a softmax of three logits, the reference is `p`. Two quantities are worth following: the reverse KL,
# KL(π‖p), and the forward KL, KL(p‖π).

# %%
logits = jnp.array([0.2, -0.3, 0.5])
p = jnp.array([0.5, 0.3, 0.2])


def reverse(logits):
    log_pi = jax.nn.log_softmax(logits)
    return jnp.sum(jnp.exp(log_pi) * (log_pi - jnp.log(p)))


def forward(logits):
    return jnp.sum(p * (jnp.log(p) - jax.nn.log_softmax(logits)))


print(f"KL(pi||p) = {reverse(logits):.6f} nats")
print("gradient of the reverse KL", jax.grad(reverse)(logits))
print("gradient of the forward KL", jax.grad(forward)(logits))
np.testing.assert_allclose(reverse(logits), 0.166746, atol=5e-7)
np.testing.assert_allclose(jax.grad(reverse)(logits), [-0.188597, -0.112169, 0.300767], atol=1e-6)
np.testing.assert_allclose(jax.grad(forward)(logits), [-0.16175, -0.094841, 0.25659], atol=1e-6)

# %% [markdown]
# An estimator is a function k(u) of the log-ratio u = log π − log p of a *sampled* action. Training code uses it in one
# of two ways, and each is a different expected gradient:
#
# - **in the loss**: k(u) is differentiated, and the sampling is not: Σ sg(π) k(u);
# - **in the reward**: k(u) is a number that weighs the score: Σ sg(π k(u)) log π.
#
# `sg` is `stop_gradient`: samples are drawn, nothing flows back into the drawing.

# %%
sg = jax.lax.stop_gradient


def in_loss(k):
    def expected(logits):
        log_pi = jax.nn.log_softmax(logits)
        return jnp.sum(sg(jnp.exp(log_pi)) * k(log_pi - jnp.log(p)))

    return jax.jit(jax.grad(expected))(logits)


def in_reward(k):
    def expected(logits):
        log_pi = jax.nn.log_softmax(logits)
        return jnp.sum(sg(jnp.exp(log_pi) * k(log_pi - jnp.log(p))) * log_pi)

    return jax.jit(jax.grad(expected))(logits)


estimators = {"k1": lambda u: u, "k2": lambda u: u**2 / 2, "k3": lambda u: jnp.exp(-u) - 1 + u}
gradients = {f"{name} in loss": in_loss(k) for name, k in estimators.items()}
gradients |= {f"{name} in reward": in_reward(k) for name, k in estimators.items()}
for name, gradient in gradients.items():
    print(f"{name:13}", gradient)

# %% [markdown]
# Read off the numbers: **k1 in the loss pulls nowhere** (its gradient is the bare score, whose mean is 0), k2 in the
# loss and k1 in the reward follow the reverse KL, **k3 in the loss follows the forward KL**, and k3 in the reward what
# is left of the reverse KL when the forward one is taken away: hardly anything.

# %%
to_reverse, to_forward = jax.grad(reverse)(logits), jax.grad(forward)(logits)
for name, expected in {
    "k1 in loss": jnp.zeros(3),
    "k2 in loss": to_reverse,
    "k3 in loss": to_forward,
    "k1 in reward": to_reverse,
    "k3 in reward": to_reverse - to_forward,
}.items():
    np.testing.assert_allclose(gradients[name], expected, atol=1e-15)
assert np.linalg.norm(gradients["k2 in reward"] - to_reverse) > 0.5 * np.linalg.norm(to_reverse)

# %%
figure, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
drawn = {"reverse KL (exact)": to_reverse, "forward KL (exact)": to_forward, **gradients}
colours = ["black", "grey", *plt.get_cmap("tab10").colors]
for number, ((name, gradient), colour) in enumerate(zip(drawn.items(), colours, strict=False)):
    axes.bar(np.arange(3) + (number - 3.5) * 0.1, gradient, 0.1, label=name, color=colour)
axes.axhline(0, color="black", linewidth=0.8)
axes.set_xticks(range(3), ["logit of action 0", "logit of action 1", "logit of action 2"])
axes.set_ylabel("expected gradient [nats per unit of logit]")
axes.grid(axis="y", alpha=0.3)
axes.set_axisbelow(True)
axes.set_title("One policy, six ways to write a KL penalty (k1 in loss: no bar, its gradient is 0)")
figure.legend(loc="outside right upper", fontsize="small")
plt.show()

# %% [markdown]
# ## Two tokens
#
# In a sequence there is one more way to be wrong. A token also decides which prefix comes next, and with it how much KL
# the *later* tokens will cost. The reward-to-go keeps that effect; charging each token only for itself loses it. Two
# tokens of two letters make four sequences and three prefixes (nothing, "0", "1"), with two logits each.

# %%
table = jnp.array([[0.3, -0.4], [1.0, 0.2], [-0.8, 1.1]])
ref_table = jnp.array([[-0.2, 0.1], [0.4, 0.5], [1.2, -0.9]])
first, second = jnp.array([0, 0, 1, 1]), jnp.array([0, 1, 0, 1])


def token_log_probs(table):
    """Log-probability of both tokens of the four sequences [4, 2]."""
    log_probs = jax.nn.log_softmax(table)
    return jnp.stack([log_probs[0, first], log_probs[1 + first, second]], axis=1)


def whole_sequences(table):
    ratios = token_log_probs(table) - token_log_probs(ref_table)
    return jnp.sum(jnp.exp(token_log_probs(table).sum(1)) * ratios.sum(1))


def charged(costs):
    """The expected policy-gradient loss in which token t pays costs(u)[t]."""

    def expected(table):
        log_probs = token_log_probs(table)
        paid = sg(costs(log_probs - token_log_probs(ref_table)))
        return jnp.sum(sg(jnp.exp(log_probs.sum(1)))[:, None] * paid * log_probs)

    return jax.jit(jax.grad(expected))(table)


to_go = charged(lambda u: jnp.cumsum(u[:, ::-1], axis=1)[:, ::-1])
own_token = charged(lambda u: u)
truth = jax.jit(jax.grad(whole_sequences))(table)
print("reverse KL of sequences\n", truth)
print("k1, reward to go\n", to_go)
print("k1, own token only\n", own_token)
np.testing.assert_allclose(to_go, truth, atol=1e-15)
np.testing.assert_allclose(own_token[1:], truth[1:], atol=1e-15)
assert own_token[0, 0] * truth[0, 0] < 0

# %% [markdown]
# At the last token both agree. At the first one the cost of the token alone has the **wrong sign** here: it follows the
# *local* KL, which holds every prefix fixed.
#
# ## The same with the library
#
# `gj.oracle` lists the completions of any small policy and differentiates the real objective. On our four sequences it
# finds what we found by hand.

# %%
listed = gj.oracle.enumerated(gj.models.prefix_tabular(vocabulary_size=2, max_tokens=2), max_tokens=2, end_ids=())
params, ref_params = {"logits": table[None]}, {"logits": ref_table[None]}
instance = gj.oracle.Instance(listed, params, ref_params, ref_params, rewards=np.array([0.0, 1.0, 1.0, 0.0]))
targets = gj.oracle.tables(instance).targets
np.testing.assert_allclose(targets["reverse"], truth.ravel(), atol=1e-15)
np.testing.assert_allclose(targets["local_reverse"], own_token.ravel(), atol=1e-15)

objective = gj.objective(
    gj.advantages.leave_one_out(),
    gj.surrogates.reinforce(),
    gj.reductions.sequence_mean_of_token_sum(),
    kl=gj.kl.penalty(gj.kl.k1, placement="to_go"),
)
pairs = gj.oracle.ordered(4, group_size=2)


@jax.jit
def gradient_of_what_trains(beta):
    return jax.grad(gj.oracle.expected_loss(objective, instance, pairs, beta))(params)["logits"][0]


with gj.oracle.exactly():
    added = gradient_of_what_trains(1.0) - gradient_of_what_trains(0.0)
print("what beta adds to the gradient of the loss that trains\n", added)
np.testing.assert_allclose(added, truth, atol=1e-14)

# %% [markdown]
# A certificate does all this in a line, on a richer policy (three tokens, up to three long, ending whenever it likes),
# on-policy and off-policy, and compares with what the library declares.

# %%
certificate = gj.certify(gj.kl.k3, placement="loss")
assert certificate.agrees
assert certificate.on.declared == "local_forward"
assert certificate.on.distance < 1e-12
assert "local_forward" in str(certificate)
print(certificate)

# %%
configurations = {
    "k1 in loss": gj.kl.penalty(gj.kl.k1, "loss", allow_biased=True),
    "k1 to go": gj.kl.penalty(gj.kl.k1, "to_go"),
    "k1 own token": gj.kl.penalty(gj.kl.k1, "own_token"),
    "k2 in loss, sequence": gj.kl.penalty(gj.kl.k2, "loss", "sequence"),
    "k3 in loss, sequence": gj.kl.penalty(gj.kl.k3, "loss", "sequence"),
    "k3 in reward": gj.kl.penalty(gj.kl.k3, "reward", allow_biased=True),
    "k3 in both": gj.kl.penalty(gj.kl.k3, "both"),
}
records = {name: gj.certify(term).on for name, term in configurations.items()}
records = {"k3 in loss": certificate.on, **records}
assert all(record.agrees for record in records.values())
names = ["zero", "reverse", "local_reverse", "forward", "local_forward"]
distances = np.array([[record.distances[name] for name in names] for record in records.values()])

figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
image = axes.imshow(np.log10(np.maximum(distances, 1e-16)), vmin=-16, vmax=0, cmap="viridis", aspect="auto")
for (row, column), distance in np.ndenumerate(distances):
    text = "follows it" if distance < 1e-12 else f"{distance:.2f}"
    axes.text(column, row, text, ha="center", va="center", color="white" if distance < 1e-3 else "black")
axes.set_xticks(range(len(names)), [name.replace("_", " ") for name in names])
axes.set_yticks(range(len(records)), list(records))
axes.set_title("Relative distance of the expected gradient to that of each objective")
figure.colorbar(image, label="log10 of the relative distance")
plt.show()

# %% [markdown]
# Every row but one has exactly one dark cell, at rounding error: an estimator is not biased in the void, it follows
# *something* exactly. The exception is k3 in the reward, which follows a difference of two.

# %%
follows = (distances < 1e-12).sum(axis=1)
assert dict(zip(records, follows, strict=True)) == {name: int(name != "k3 in reward") for name in records}
assert records["k3 in reward"].declared == "reverse - local_forward"
