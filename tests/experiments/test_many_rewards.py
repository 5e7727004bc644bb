"""Three rewards of a completion, three penalties in them, and that the page says what was recorded."""

import jax
import jax.numpy as jnp
import numpy as np

import grpo_jax as gj
from experiments.many_rewards import cases, run
from experiments.many_rewards.rewards import three
from experiments.small_scale import sums
from tests.experiments.pages import check_page


def test_rewards_are_of_the_answer_the_form_and_what_is_left_of_the_budget():
    asked = sums.problems("sums", False, 1)
    answer = "".join(sums.SYMBOLS[t] for t in np.asarray(asked.right)[0][np.asarray(asked.right_mask)[0]])
    given = {answer: (1, 1, 1 - len(answer) / 5), "5.": (0, 0, 0.6), "12.": (0, 1, 0.4), "1-2.": (0, 0, 0.2)}
    given |= {"12345": (0, 0, 0.0)}
    tokens = np.full((1, len(given), sums.MAX_TOKENS), sums.END)
    mask = np.zeros(tokens.shape, bool)
    for row, text in enumerate(given):
        tokens[0, row, : len(text)] = [sums.SYMBOLS.index(symbol) for symbol in text]
        mask[0, row, : len(text)] = True
    shape = jnp.asarray(mask)
    rollout = gj.Rollout(asked.prompts, jnp.asarray(tokens), shape, jnp.zeros(shape.shape), jnp.any(shape, axis=-1))
    np.testing.assert_allclose(three(asked, rollout)[0], list(given.values()), atol=1e-6)


def test_a_penalty_in_each_of_three_rewards_is_one_of_three_times_the_beta():
    keys = jax.random.split(jax.random.key(0), 3)
    log_probs, ref_log_probs = (-jax.random.exponential(key, (2, 4, 3)) for key in keys[:2])
    rewards = jax.random.bernoulli(keys[2], 0.5, (2, 4, 3)).astype(jnp.float32)
    batch = gj.Batch(jnp.ones((2, 4, 3), bool), rewards, ref_log_probs=ref_log_probs)

    def gradient(penalties, beta):
        objective = cases.objective_of(cases.SUM, penalties)
        return jax.grad(lambda x: objective(gj.Scores(x), batch, beta)[0])(log_probs)

    np.testing.assert_allclose(gradient(3, 0.1), gradient(1, 0.3), rtol=1e-5, atol=1e-7)
    assert not np.allclose(gradient(3, 0.1), gradient(1, 0.1), rtol=0.05)


def test_the_page_has_the_recorded_runs():
    check_page(run, [case.name for case in cases.cases()])
