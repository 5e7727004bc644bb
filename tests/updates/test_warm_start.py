import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from grpo_jax.types import Prompts
from grpo_jax.updates import adam, demonstrations, warm_start
from tests.updates.builders import TOKENS, VOCABULARY, assert_near, assert_same, compiled, policy_params, score

PROMPTS = Prompts(jnp.array([[0, 1], [2, 3], [1, 4]]), jnp.ones((3, 2), bool))
ANSWERS = jnp.array([[1, 2, 3, 0], [3, 4, 0, 0], [0, 0, 0, 0]])
MASK = jnp.array([[True] * 4, [True, True, False, False], [True, False, False, False]])


@pytest.fixture(scope="module")
def examples():
    return demonstrations(PROMPTS, ANSWERS, MASK)


@pytest.fixture(scope="module")
def started():
    return {n: compiled(warm_start(score, optax.sgd(1.0), micro_batches=n).step) for n in (1, 2)}


@pytest.fixture(scope="module")
def state():
    return warm_start(score, optax.sgd(1.0)).init(policy_params())


def test_demonstrations_are_groups_of_one(examples):
    assert examples.tokens.shape == examples.mask.shape == (3, 1, TOKENS)
    assert examples.finished.all()
    np.testing.assert_array_equal(examples.tokens[:, 0], ANSWERS)


def test_the_loss_is_the_mean_over_tokens_of_minus_the_log_probability(examples, started, state):
    _, metrics = started[1](state, examples)
    logits = np.asarray(state.params["prompt"])[[1, 3, 4]][:, None] + np.asarray(state.params["position"])[None]
    losses = []
    for row, answer, mask in zip(logits, ANSWERS, MASK, strict=True):
        for scores, token, kept in zip(row, answer, mask, strict=True):
            if kept:
                losses.append(np.log(np.exp(scores).sum()) - scores[token])
    assert len(losses) == 7
    np.testing.assert_allclose(metrics["loss"], np.mean(losses), rtol=1e-5)
    assert metrics["rejected"] == 0.0


def test_steps_make_the_demonstrations_likely(examples):
    init, step = warm_start(score, adam(0.5))
    state, step = init(policy_params()), compiled(step)
    for _ in range(40):
        state, metrics = step(state, examples)
    assert metrics["loss"] < 0.1 < np.log(VOCABULARY)
    assert state.step == 40


def test_masked_tokens_change_nothing(examples, started, state):
    other = examples._replace(tokens=jnp.where(examples.mask, examples.tokens, 4))
    assert_same(started[1](state, other)[0].params, started[1](state, examples)[0].params)


def test_any_split_gives_the_same_step(examples, started, state):
    whole, split = started[1](state, examples), started[2](state, examples)
    assert_near(split[0].params, whole[0].params, rtol=1e-5, atol=1e-6)
    assert_near(split[1], whole[1], rtol=1e-5)


def test_a_step_that_is_not_finite_changes_nothing_but_two_counters(examples, started, state):
    broken = state._replace(params=jax.tree.map(lambda leaf: leaf * jnp.inf, state.params))
    new, metrics = started[1](broken, examples)
    assert metrics["rejected"] == 1.0
    assert (new.step, new.rejected) == (1, 1)
    assert_same(new.params, broken.params)
    assert started[1](new._replace(params=state.params), examples)[0].rejected == 0


def test_a_policy_without_parameters_and_no_micro_batch_are_refused():
    with pytest.raises(ValueError, match="no trainable parameters"):
        warm_start(score, adam(0.1)).init({})
    with pytest.raises(ValueError, match="micro_batches must be at least 1, got 0"):
        warm_start(score, adam(0.1), micro_batches=0)
