"""Tabular policies: the tree of prefixes, and agreement of decoding, scoring and enumeration."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.models import position_tabular, prefix_tabular
from grpo_jax.types import Prompts, Rollout

V, T = 3, 3
POLICIES = {"prefix": prefix_tabular(V, T, contexts=2), "position": position_tabular(V, T, contexts=2)}
COMPLETIONS = np.array(list(itertools.product(range(V), repeat=T)), np.int32)


def every_completion(mask=None):
    """Two groups, one per context, of all V^T completions."""
    tokens = jnp.broadcast_to(COMPLETIONS[None], (2, *COMPLETIONS.shape))
    prompts = Prompts(jnp.array([[9, 2], [3, 7]], jnp.int32), jnp.array([[False, True], [True, False]]))
    mask = jnp.ones(tokens.shape, bool) if mask is None else mask
    return Rollout(prompts, tokens, mask, jnp.zeros(tokens.shape), mask[..., -1]).check()


def row_of(kind, prefix):
    """Index of a prefix's row, by counting prefixes in order of length, then alphabetically."""
    if kind == "position":
        return len(prefix)
    ordered = [p for length in range(T) for p in itertools.product(range(V), repeat=length)]
    return ordered.index(tuple(prefix))


@pytest.mark.parametrize("kind", POLICIES)
def test_scores_are_the_tables_rows_at_each_prefix(kind):
    policy = POLICIES[kind]
    params, ref = policy.init(key=jax.random.key(0)), policy.init(key=jax.random.key(1))
    scores = jax.jit(lambda p, q: policy.score(p, every_completion(), 0.7, entropy=True, ref_params=q))(params, ref)
    tables = [np.asarray(jax.nn.log_softmax(np.float64(which["logits"]) / 0.7)) for which in (params, ref)]
    for context, row in ((0, 0), (1, 1)):
        for g, t in itertools.product(range(len(COMPLETIONS)), range(T)):
            ours, theirs = (table[context, row_of(kind, COMPLETIONS[g, :t])] for table in tables)
            assert scores.log_probs[row, g, t] == pytest.approx(ours[COMPLETIONS[g, t]], abs=1e-5)
            assert scores.entropy[row, g, t] == pytest.approx(-np.exp(ours) @ ours, abs=1e-5)
            assert scores.full_kl[row, g, t] == pytest.approx(np.exp(ours) @ (ours - theirs), abs=1e-5)


@pytest.mark.parametrize("kind", POLICIES)
def test_probabilities_of_all_completions_sum_to_one(kind):
    params = POLICIES[kind].init(key=jax.random.key(2))
    log_probs = POLICIES[kind].score(params, every_completion(), 1.0).log_probs
    np.testing.assert_allclose(jnp.exp(log_probs.sum(-1)).sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize("kind", POLICIES)
def test_decoding_step_by_step_gives_the_scores(kind):
    policy, rollout = POLICIES[kind], every_completion()
    params = policy.init(key=jax.random.key(3))
    prefix = policy.prefill(params, rollout.prompts)
    np.testing.assert_array_equal(prefix.lengths, [1, 1])
    logits, cache = prefix.logits[:, None], policy.empty_cache(2, len(COMPLETIONS), T)
    logits, log_probs = jnp.broadcast_to(logits, (2, len(COMPLETIONS), V)), []
    for t in range(T):
        log_probs.append(np.take_along_axis(jax.nn.log_softmax(logits), rollout.tokens[..., t, None], -1)[..., 0])
        logits, cache = policy.decode(
            params, prefix, cache, rollout.tokens[..., t], jnp.full(logits.shape[:2], t), jnp.int32(t)
        )
    np.testing.assert_allclose(np.stack(log_probs, -1), policy.score(params, rollout, 1.0).log_probs, atol=1e-6)


@pytest.mark.parametrize("kind", POLICIES)
def test_masked_tokens_change_neither_value_nor_gradient(kind):
    policy, params = POLICIES[kind], POLICIES[kind].init(key=jax.random.key(4))
    mask = jnp.broadcast_to(jnp.arange(T) < 2, (2, len(COMPLETIONS), T))
    clean = every_completion(mask)
    dirty = clean._replace(tokens=jnp.where(mask, clean.tokens, 10**6))
    total = lambda params, rollout: policy.score(params, rollout, 1.0).log_probs.sum()  # noqa: E731
    value_and_grad = jax.value_and_grad(total)
    jax.tree.map(np.testing.assert_array_equal, value_and_grad(params, clean), value_and_grad(params, dirty))


def test_the_expected_score_is_exactly_zero_by_enumeration():
    policy, params = POLICIES["prefix"], POLICIES["prefix"].init(key=jax.random.key(5))

    def total_probability(params):
        return jnp.exp(policy.score(params, every_completion(), 1.0).log_probs.sum(-1)).sum()

    np.testing.assert_allclose(jax.grad(total_probability)(params)["logits"], 0, atol=1e-6)


def test_logical_axes_name_every_dimension():
    for policy in POLICIES.values():
        axes, params = policy.logical_axes(), policy.init(key=jax.random.key(0))
        assert {name: len(names) for name, names in axes.items()} == {name: leaf.ndim for name, leaf in params.items()}


@pytest.mark.parametrize(
    ("arguments", "named"), [((0, 2), "vocabulary_size"), ((3, 0), "max_tokens"), ((3, 2, 0), "con")]
)
@pytest.mark.parametrize("build", [prefix_tabular, position_tabular])
def test_counts_below_one_are_refused(build, arguments, named):
    with pytest.raises(ValueError, match=named):
        build(*arguments)


def test_a_table_too_large_to_enumerate_is_refused():
    with pytest.raises(ValueError, match="2\\^24"):
        prefix_tabular(50, 100)
