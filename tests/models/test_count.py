"""The two-parameter policy: its probabilities in a loop, and decoding that agrees with scoring."""

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.models.count import count_model
from grpo_jax.types import Prompts, Rollout

POLICY = count_model()
PROMPTS = Prompts(jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), bool))


def rollout(tokens):
    tokens = jnp.asarray(tokens, jnp.int32)[None]
    return Rollout(
        PROMPTS, tokens, jnp.ones(tokens.shape, bool), jnp.zeros(tokens.shape), jnp.ones((1, tokens.shape[1]), bool)
    )


def test_each_token_depends_on_the_number_of_ones_before_it():
    params = {"intercept": jnp.asarray(0.118), "slope": jnp.asarray(0.353)}
    tokens = [[1, 1, 0, 1], [0, 0, 0, 0]]
    found = POLICY.score(params, rollout(tokens), 2.0).log_probs[0]
    for row, completion in zip(found, tokens, strict=True):
        for t, token in enumerate(completion):
            one = 1 / (1 + np.exp(-(0.118 + 0.353 * sum(completion[:t])) / 2))
            np.testing.assert_allclose(row[t], np.log(one if token else 1 - one), rtol=0, atol=1e-6)


def test_decoding_and_scoring_agree():
    params = POLICY.init(key=jax.random.key(0))
    tokens = np.array([[1, 0, 1, 1], [0, 1, 0, 0]])
    scored = POLICY.score(params, rollout(tokens), 1.0).log_probs[0]
    prefix, cache = POLICY.prefill(params, PROMPTS), POLICY.empty_cache(1, 2, 4)
    logits = jnp.broadcast_to(prefix.logits[:, None], (1, 2, 2))
    for t in range(4):
        log_probs = jax.nn.log_softmax(logits)[0]
        np.testing.assert_allclose(log_probs[jnp.arange(2), tokens[:, t]], scored[:, t], rtol=0, atol=1e-6)
        logits, cache = POLICY.decode(
            params, prefix, cache, jnp.asarray(tokens[:, t])[None], jnp.full((1, 2), t), jnp.int32(t)
        )
