"""A policy that is two tables of logits, its rollouts and batches, small enough to work by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax import advantages, kl
from grpo_jax.kl import controllers
from grpo_jax.losses import objective, reductions, surrogates
from grpo_jax.types import Batch, Prompts, Rollout, Scores
from grpo_jax.updates import adam, frozen, learner

compiled = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
)
"""jit that compiles in a third of the time; what it compiles runs a few steps of a tiny policy."""

VOCABULARY, PROMPT, GROUP, TOKENS = 5, 2, 3, 4


def policy_params(*, seed=0):
    """Logits by the prompt's last token and by position."""
    keys = jax.random.split(jax.random.key(seed))
    return {
        "prompt": jax.random.normal(keys[0], (VOCABULARY, VOCABULARY)),
        "position": jax.random.normal(keys[1], (TOKENS, VOCABULARY)),
    }


def distributions(params, rollout):
    logits = params["prompt"][rollout.prompts.tokens[:, -1]][:, None, None] + params["position"][None, None]
    return jnp.broadcast_to(jax.nn.log_softmax(logits), (*rollout.tokens.shape, VOCABULARY))


def score(params, rollout, *, entropy=False, ref_params=None):
    log_probs = distributions(params, rollout)
    chosen = jnp.take_along_axis(log_probs, rollout.tokens[..., None], axis=-1)[..., 0]
    own = jnp.where(rollout.mask, chosen, 0)
    found = Scores(own, -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1) if entropy else None)
    if ref_params is None:
        return found
    return found._replace(
        full_kl=jnp.sum(jnp.exp(log_probs) * (log_probs - distributions(ref_params, rollout)), axis=-1)
    )


def rollout_and_batch(*, prompts=4, seed=0):
    """Ragged completions and distinct rewards; the first group is degenerate."""
    random = np.random.default_rng(seed)
    shape = (prompts, GROUP, TOKENS)
    lengths = random.integers(1, TOKENS + 1, shape[:2])
    mask = jnp.asarray(np.arange(TOKENS) < lengths[..., None])
    rewards = jnp.asarray(random.normal(size=shape[:2]), jnp.float32).at[0].set(0.7)
    rollout = Rollout(
        Prompts(jnp.asarray(random.integers(0, VOCABULARY, (prompts, PROMPT))), jnp.ones((prompts, PROMPT), bool)),
        jnp.asarray(random.integers(0, VOCABULARY, shape)),
        mask,
        jnp.where(mask, jnp.asarray(-random.exponential(size=shape), jnp.float32), 0),
        jnp.ones(shape[:2], bool),
    )
    return rollout, Batch(mask, rewards)


OBJECTIVE = objective(
    advantages.leave_one_out(),
    surrogates.clipped(0.2, 0.28),
    reductions.constant_length(TOKENS),
    kl=kl.penalty(kl.k1, placement="to_go"),
)
REWARD_ONLY = objective(advantages.leave_one_out(), surrogates.reinforce(), reductions.constant_length(TOKENS))
FULL_KL = objective(*REWARD_ONLY.parts[:2], REWARD_ONLY.parts.reduction, kl=kl.full_vocabulary("loss"))


def build(*, parts=OBJECTIVE, optimizer=None, controller=None, reference=None, **kwargs):
    """A compiled learner of the table policy; what is not given is plain."""
    given = controllers.constant(0.1 if parts.needs_reference else 0.0) if controller is None else controller
    built = learner(score, parts, optimizer or adam(0.01), given, reference or frozen(), **kwargs)
    return built._replace(update=compiled(built.update))


def moved_state(built, *, seed=0):
    """A state whose reference is not where the policy is, so that the KL is not 0."""
    state = built.init(policy_params(seed=seed), key=jax.random.key(1))
    return state if state.ref_params is None else state._replace(ref_params=policy_params(seed=seed + 10))


def assert_same(one, other):
    """The same numbers bit for bit."""
    jax.tree.map(np.testing.assert_array_equal, one, other)


def assert_near(one, other, rtol=1e-5, atol=1e-7):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), one, other)
