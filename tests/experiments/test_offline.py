"""The offline experiment's exact evaluation against plain loops, and that its page says what was recorded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.offline import mdp, run
from experiments.offline.forms import FORMS, objective_of
from experiments.offline.training import Plan
from experiments.small_scale import records, seeds

README = (run.HERE / "README.md").read_text(encoding="utf-8")
ROWS = records.recorded(run.HERE / "results.jsonl", ("form", "trajectories", "beta"))
KNOWN = mdp.world(3)


def policy(seed):
    logits = np.random.default_rng(seed).standard_normal((mdp.STEPS, mdp.STATES, mdp.ACTIONS))
    return jax.nn.log_softmax(jnp.asarray(logits, jnp.float32))


def forwards(known, log_probs):
    """Value and KL by pushing the distribution of states forwards, step by step, action by action."""
    value = kl = 0.0
    reached = np.asarray(known.start, float)
    for t in range(mdp.STEPS):
        following = np.zeros(mdp.STATES)
        for state, action in np.ndindex(mdp.STATES, mdp.ACTIONS):
            chance = reached[state] * np.exp(float(log_probs[t, state, action]))
            value += chance * float(known.rewards[state, action])
            kl += chance * float(log_probs[t, state, action] - known.behaviour[t, state, action])
            following += chance * np.asarray(known.successor[state, action], float)
        reached = following
    return value, kl


def test_value_and_kl_are_those_of_a_plain_loop_forwards():
    for ours in (policy(0), policy(1), KNOWN.behaviour):
        found = mdp.worth(KNOWN, ours)
        np.testing.assert_allclose((found.value, found.kl), forwards(KNOWN, ours), atol=2e-6)
    assert mdp.worth(KNOWN, KNOWN.behaviour).kl == 0


@pytest.mark.parametrize("beta", [0.1, 0.5])
def test_nothing_is_better_than_the_optimum_and_its_gradient_is_zero(beta):
    def regularised(logits):
        found = mdp.worth(KNOWN, jax.nn.log_softmax(logits))
        return found.value - beta * found.kl

    best = mdp.optimum(KNOWN, jnp.float32(beta))
    assert float(jnp.max(jnp.abs(jax.grad(regularised)(best)))) < 1e-6
    for seed in range(3):
        assert regularised(best) > regularised(best + 0.1 * policy(seed))


def test_the_behaviour_s_returns_have_the_exact_mean_and_a_standard_deviation_of_one():
    data = mdp.sample(KNOWN, 2000, key=jax.random.key(0))
    # Groups share their first state, so their means are what is independent.
    means = np.mean(np.asarray(data.returns), axis=1)
    value = float(mdp.worth(KNOWN, KNOWN.behaviour).value)
    assert abs(means.mean() - value) < 4 * means.std() / len(means) ** 0.5
    np.testing.assert_allclose(np.std(np.asarray(data.returns)), 1, rtol=0.03)
    assert np.all(np.asarray(data.states)[:, :, 0] == np.asarray(data.states)[:, :1, 0])


def test_each_form_follows_off_policy_what_the_page_says():
    for form in FORMS:
        assert f"| {form} | `{objective_of(form).off_policy_target.name}` |" in README


def test_the_page_has_the_recorded_runs():
    plan = Plan()
    counts = [groups * mdp.GROUP for groups in plan.sizes]
    assert set(ROWS) == {(form, count, beta) for form in FORMS for count in counts for beta in run.BETAS}
    assert all(len(row["gain"]) == plan.seeds >= 5 for row in ROWS.values())
    assert run.table(ROWS, run.TABULATED) in README
    assert (run.HERE / "figure.png").exists()


def test_no_beta_gains_in_any_form_as_the_page_says():
    found = []
    for (form, count, beta), row in ROWS.items():
        free = ROWS[form, count, 0.0]
        found += [seeds.mean_interval(records.last(row, "gain") - records.last(free, "gain"))] if beta else []
    below = sum(interval.high < 0 for interval in found)
    assert not any(interval.low > 0 for interval in found)
    assert f"Of {len(found)} comparisons" in README
    assert f"{below} lie below it" in README
