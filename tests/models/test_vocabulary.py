"""Scores from a head taken some columns at a time: those from all of it, in value and gradient, for less memory."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.models import DecoderConfig, decoder
from grpo_jax.models.vocabulary import LEAST, chunk_of, read_columns
from grpo_jax.types import Prompts, Rollout

SHAPE, WIDTH, SIZE = (2, 3, 5), 8, 60
KEYS = jax.random.split(jax.random.key(0), 5)
HEADS = {of: jax.random.normal(key, (WIDTH, SIZE)) for of, key in zip(("ours", "theirs"), KEYS, strict=False)}
HIDDEN = {of: 3 * jax.random.normal(key, (*SHAPE, WIDTH)) for of, key in zip(HEADS, KEYS[2:], strict=False)}
TOKENS = jax.random.randint(KEYS[4], SHAPE, 0, SIZE)


def found_by(columns, parts=1, heads=HEADS, scale=1.0):
    """A weighted sum of all scores, its gradient for heads and hidden states, and the scores."""

    def total(heads, hidden):
        scores = read_columns(heads, 0.7, entropy=True, columns=columns, parts=parts)(hidden, TOKENS)
        weights = jnp.arange(1.0, 1 + TOKENS.size).reshape(SHAPE) / TOKENS.size
        kl = 0 if scores.full_kl is None else scores.full_kl
        return jnp.sum(weights * (scores.log_probs + 0.3 * scores.entropy + 0.2 * kl)), scores

    hidden = {of: scale * HIDDEN[of] for of in heads}
    return jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))(heads, hidden)


WHOLE = found_by(SIZE)


@pytest.mark.parametrize(("columns", "parts"), [(20, 1), (7, 1), (1, 1), (4, 3), (6, 7)])
def test_columns_change_nothing(columns, parts):
    """They divide the vocabulary, or do not; parts divide it, or do not."""
    compare = lambda one, other: np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)  # noqa: E731
    jax.tree.map(compare, found_by(columns, parts), WHOLE)


@pytest.mark.parametrize("scale", [0.0, 5.0])
def test_flat_and_sharp_distributions_lose_nothing(scale):
    """Logits up to a few hundred, each rounded by some 2e-5: the same entropies near 0 and log-probs far below it."""
    compare = lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-4)  # noqa: E731
    (_, scores), gradient = found_by(7, scale=scale)
    (_, expected), expected_gradient = found_by(SIZE, scale=scale)
    jax.tree.map(compare, scores, expected)
    largest = max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(expected_gradient))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=3e-5 * largest), gradient, expected_gradient)


def test_what_is_not_asked_for_is_not_returned():
    scores = read_columns({"ours": HEADS["ours"]}, 1.0, entropy=False, columns=7)(HIDDEN, TOKENS)
    assert scores.entropy is None
    assert scores.full_kl is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((64, 32, 49_152, 2**23), (32, 4096)),
        ((64, 32, 16, 2**23), (32, 16)),
        ((64, 1024, 151_936, 2**23), (128, LEAST)),
        ((2**14, 8, 151_936, 2**23), (1, LEAST)),
    ],
)
def test_fewer_columns_come_before_fewer_positions(arguments, expected):
    assert chunk_of(*arguments) == expected


def test_a_decoder_never_holds_all_its_logits():
    groups, members, length, size = 2, 4, 64, 16 * LEAST
    prompts = Prompts(jnp.zeros((groups, 4), jnp.int32), jnp.ones((groups, 4), bool))
    mask = jnp.ones((groups, members, length), bool)
    rollout = Rollout(prompts, jnp.zeros(mask.shape, jnp.int32), mask, jnp.zeros(mask.shape), mask[..., 0])
    config = DecoderConfig(size, layers=1, width=64, heads=2, kv_heads=1, head_dim=8, hidden=16)
    params = decoder(config).init(key=jax.random.key(0))

    def compiled(logits):
        policy = decoder(dataclasses.replace(config, logits_per_chunk=logits))
        total = lambda params: jnp.sum(policy.score(params, rollout, 1.0).log_probs)  # noqa: E731
        return jax.jit(jax.grad(total)).lower(params).compile()

    whole, chunked = compiled(mask.size * size), compiled(mask.size * LEAST)
    compare = lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)  # noqa: E731
    jax.tree.map(compare, chunked(params), whole(params))
    logits = 4 * mask.size * size
    used = lambda found: found.memory_analysis().temp_size_in_bytes  # noqa: E731
    assert used(whole) > logits
    assert used(chunked) < logits / 2
