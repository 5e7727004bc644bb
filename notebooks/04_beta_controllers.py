# %% [markdown]
# # 4. Controllers of beta
#
# β decides how far the policy goes from its reference, but what one knows beforehand is rather a KL than a β. A
# controller reads the KL after every update and sets β for the next. Here all six rules steer the same small policy
# towards the same KL; then four ways to get it wrong.

# %%
import functools

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import grpo_jax as gj
from grpo_jax.kl import controllers

# %% [markdown]
# ## The plant
#
# A policy with free logits at every prefix, four prompts, up to three out of four tokens, a reward for token 3, k1 to
# go. The learner is the library's; its controller here does nothing but say the β that it was told, so that one
# compiled update serves every rule.

# %%
VOCABULARY, LENGTH, PROMPTS, GROUP, SEEDS, STEPS = 4, 3, 4, 16, 8, 500
TARGET = 0.5  # nats per sequence
policy = gj.models.prefix_tabular(VOCABULARY, LENGTH, contexts=PROMPTS)
prompts = gj.Prompts(jnp.arange(PROMPTS)[:, None], jnp.ones((PROMPTS, 1), bool))
generate = gj.rollouts.sampler(policy, gj.rollouts.categorical(), GROUP, LENGTH, end_ids=(0,), pad_id=0)
told = controllers.Controller(
    init=lambda: jnp.float32(1.0),
    beta=lambda state: state,
    update=lambda state, kl, samples: state,
    statistic="nats_per_sequence",
    description="the beta it is told",
)
objective = gj.objective(
    gj.advantages.leave_one_out(),
    gj.surrogates.reinforce(),
    gj.reductions.sequence_mean_of_token_sum(),
    kl=gj.kl.penalty(gj.kl.k1),
)
learner = gj.updates.learner(
    functools.partial(policy.score, temperature=1.0), objective, gj.updates.adam(0.03), told, gj.updates.frozen()
)


@jax.jit
@jax.vmap
def plant(state, beta, key):
    rollout = generate(state.params, prompts, key=key)
    rewards = jnp.mean((rollout.tokens == 3) & rollout.mask, axis=-1)
    return learner.update(state._replace(controller=beta), rollout, gj.Batch(rollout.mask, rewards))


def run(controller, states=None, steps=STEPS, fed=None):
    """Runs the plant under a controller, every seed with its own; returns states, beta and KL [steps, SEEDS]."""
    beta, update = jax.jit(jax.vmap(controller.beta)), jax.jit(jax.vmap(controller.update, in_axes=(0, 0, None)))
    fed = fed or controller.statistic.replace("nats", "kl")  # kl_per_sequence, kl_per_token: what the learner feeds
    memory = jax.vmap(lambda _: controller.init())(jnp.arange(SEEDS))
    states, rows = start if states is None else states, []
    for step in range(steps):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(2), step), SEEDS)
        states, metrics = plant(states, beta(memory), keys)
        rows.append((beta(memory), metrics["kl_per_sequence"]))
        memory = update(memory, metrics[fed], float(PROMPTS * GROUP))
    betas, kls = np.moveaxis(np.asarray(rows), 1, 0)
    return states, betas, kls


start = jax.vmap(lambda key: learner.init(policy.init(key=jax.random.key(0)), key=key))(
    jax.random.split(jax.random.key(1), SEEDS)
)

# %% [markdown]
# ## Six rules
#
# Two do not look at the KL; four do. Every controller says in words what it does, and in which unit its KL is.

# %%
unit = {"statistic": "nats_per_sequence"}
gentle = controllers.proportional(0.1, TARGET, 0.02, **unit)
rules = {
    "constant": controllers.constant(0.1),
    "linear warm-up": controllers.linear_warmup(0.1, start=0.001, steps=100),
    "proportional": gentle,
    "proportional-integral": controllers.proportional_integral(
        0.1, TARGET, horizon=50, proportional_gain=0.02, integral_gain=0.002, **unit
    ),
    "clipped proportional": controllers.clipped_proportional(0.1, TARGET, horizon=1000, **unit),
    "tight, then loose, then proportional": controllers.then(controllers.tight_then_loose(1.0, 0.2, 200), 200, gentle),
}
for name, controller in rules.items():
    print(f"{name}: {controller.description}")
found = {name: run(controller)[1:] for name, controller in rules.items()}


# %%
def draw(axes, runs, what, label):
    for name, run_of in runs.items():
        values = run_of[what]
        axes.plot(values.mean(1), label=name)
        axes.fill_between(range(len(values)), values.min(1), values.max(1), alpha=0.2)
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)


figure, (top, bottom) = plt.subplots(2, 1, figsize=(9, 6), layout="constrained", sharex=True)
draw(top, found, 1, "KL [nats per sequence]")
top.axhline(TARGET, color="black", linestyle=":", label="target")
draw(bottom, found, 0, "beta")
bottom.set_yscale("log")
bottom.set_xlabel("update")
top.set_title(f"One target for all: mean and range over {SEEDS} seeds")
figure.legend(*top.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize="small")
plt.show()

# %%
ends = {name: (kls[-100:].mean(), kls.mean(1).max(), betas[-100:].mean()) for name, (betas, kls) in found.items()}
for name, (end, peak, beta) in ends.items():
    print(f"{name:36} KL at the end {end:.2f}, at its peak {peak:.2f}; beta at the end {beta:.3f}")
adaptive = [name for name, controller in rules.items() if controller.adaptive]
assert all(abs(ends[name][0] - TARGET) < 0.1 * TARGET for name in adaptive)
assert all(ends[name][0] > 6 * TARGET for name in ("constant", "linear warm-up"))
assert all(0.25 < ends[name][2] < 0.32 for name in adaptive)
assert all(ends[name][1] > 3.5 * TARGET for name in adaptive[:3])
assert ends["tight, then loose, then proportional"][1] < 0.6 * min(ends[name][1] for name in adaptive[:3])

# %% [markdown]
# The schedules end wherever their β leads: nearly seven times too far. The four that look end within a tenth of the
# target, at much the same β (about 0.27), which nobody had to know. But three of them first let the KL go to about
# four times the target: they start from a β that is too small and react to what has already happened. Starting
# **tight** and loosening avoids that.
#
# ## Four ways to get it wrong
#
# 1. **Gain**: α = 0.2 suits a target of .05 nats per token. Per sequence errors are in whole nats, β changes by a third
#    in an update, and the policy, which answers tens of updates later, makes it swing from one bound to the other.
# 2. **Units**: a target per sequence, fed the mean per token. No error message, just another KL.
# 3. **Sign**: β falls when the KL is too large. It runs away.
# 4. **Wind-up**: the article's integral has no bound. Starting far from the reference it saves up error that it then
#    has to live through.


# %%
def backwards(controller):
    """The same rule with the error's sign turned round."""
    return controller._replace(update=lambda state, kl, samples: controller.update(state, 2 * TARGET - kl, samples))


def unbounded_integral(beta, target, horizon, gain, integral_gain, floor=1e-6, ceiling=10.0):
    """The rule as published: the sum of errors is never limited."""

    def update(state, kl, samples):
        beta, total = state
        total = total + kl - target
        factor = 1 + gain * (kl - target) / target + integral_gain * total / (horizon * target)
        return jnp.clip(beta * factor, floor, ceiling), total

    def init():
        return jnp.float32(beta), jnp.float32(0.0)

    return controllers.Controller(init, lambda state: state[0], update, "nats_per_sequence", "no limit", adaptive=True)


far, _, far_kls = run(controllers.constant(1e-3), steps=200)
print(f"the policy that wind-up starts from is {far_kls[-1].mean():.1f} nats per sequence away")
gains = {"proportional_gain": 0.02, "integral_gain": 0.002}
right = found["proportional"]
failures = {
    "gain": {"alpha 0.2": run(controllers.proportional(0.1, TARGET, 0.2, **unit))[1:], "alpha 0.02": right},
    "units": {"fed nats per token": run(gentle, fed="kl_per_token")[1:], "fed nats per sequence": right},
    "sign": {"backwards": run(backwards(gentle))[1:], "forwards": right},
    "wind-up": {
        "integral unlimited": run(unbounded_integral(0.1, TARGET, 10, *gains.values()), far)[1:],
        "integral limited": run(controllers.proportional_integral(0.1, TARGET, 10, **gains, **unit), far)[1:],
    },
}

figure, panels = plt.subplots(2, 4, figsize=(13, 5), layout="constrained", sharex=True)
for (kind, runs), axes in zip(failures.items(), panels.T, strict=True):
    draw(axes[0], runs, 1, "KL [nats per sequence]")
    draw(axes[1], runs, 0, "beta")
    axes[0].axhline(TARGET, color="black", linestyle=":")
    axes[0].set_title(kind)
    axes[0].legend(fontsize="small")
    axes[1].set_yscale("log")
    axes[1].set_xlabel("update")
figure.suptitle(f"Four failures (blue) and the same done right (orange); dotted: the target; {SEEDS} seeds")
plt.show()

# %%
late = {kind: {name: kls[-200:] for name, (_, kls) in runs.items()} for kind, runs in failures.items()}
for kind, runs in late.items():
    words = [f"{name} {kls.mean():.2f} ± {kls.mean(1).std():.2f}" for name, kls in runs.items()]
    print(f"{kind}: KL over the last 200 updates:", "; ".join(words))
swinging = failures["gain"]["alpha 0.2"][0]
assert swinging.min() < 1e-5
assert swinging.max() > 5
assert late["gain"]["alpha 0.2"].mean(1).std() > 5 * late["gain"]["alpha 0.02"].mean(1).std()
assert late["units"]["fed nats per token"].mean() > 2 * TARGET
assert late["sign"]["backwards"].mean() > 5 * TARGET
stuck = {name: int((kls.mean(1) < 0.2 * TARGET).sum()) for name, (_, kls) in failures["wind-up"].items()}
print("updates with a KL below a fifth of the target after the excursion:", stuck)
assert stuck["integral unlimited"] > 1.5 * stuck["integral limited"]

# %% [markdown]
# What the library does about it: a controller **names its unit** and the learner feeds it that statistic; a gain that
# is not positive is **refused**; the integral is **limited** to half of what the proportional term can take back, and
# does not grow while β rests on a bound; no β leaves its bounds. The gain remains yours: the larger the target in nats,
# and the slower the policy, the smaller.

# %%
try:
    controllers.proportional(0.1, TARGET, alpha=-0.02)
except ValueError as error:
    print(error)
else:
    raise AssertionError("accepted")
