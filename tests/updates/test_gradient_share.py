import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from grpo_jax.losses import degenerate, objective
from grpo_jax.updates import gradient_share
from tests.updates.builders import OBJECTIVE, REWARD_ONLY, compiled, policy_params, rollout_and_batch, score

PARAMS = policy_params()


def scored_batch(**kwargs):
    """Group 0 is degenerate."""
    rollout, batch = rollout_and_batch(**kwargs)
    return rollout, batch._replace(ref_log_probs=score(policy_params(seed=9), rollout).log_probs)


@pytest.fixture(scope="module")
def share():
    return compiled(gradient_share(score, OBJECTIVE, micro_batches=2))


def test_the_share_is_the_norm_of_the_degenerate_groups_gradient_over_the_whole_ones(share):
    rollout, batch = scored_batch(prompts=5)

    def total(params, valid):
        prepared = OBJECTIVE.prepare(batch._replace(valid=valid[:, None] & jnp.ones(batch.rewards.shape, bool)))
        return OBJECTIVE.accumulate(score(params, rollout), prepared, 0.3)[0].total

    groups = jnp.arange(5)
    gradient = compiled(jax.grad(total))
    expected = optax.tree.norm(gradient(PARAMS, groups == 0)) / optax.tree.norm(gradient(PARAMS, groups >= 0))
    found = share(PARAMS, rollout, batch, 0.3)
    assert 0 < expected < 1
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_the_share_grows_with_beta_from_exactly_zero(share):
    rollout, batch = scored_batch()
    shares = [float(share(PARAMS, rollout, batch, beta)) for beta in (0.0, 0.01, 0.1, 1.0)]
    assert shares[0] == 0.0
    assert shares == sorted(shares)
    assert shares[-1] > shares[1] > 0


def test_the_share_is_one_when_every_group_is_degenerate_and_zero_when_none_is(share):
    rollout, batch = scored_batch()
    np.testing.assert_allclose(
        share(PARAMS, rollout, batch._replace(rewards=jnp.ones_like(batch.rewards)), 0.3), 1.0, rtol=1e-6
    )
    distinct = batch._replace(rewards=jnp.broadcast_to(jnp.arange(3.0)[None], batch.rewards.shape))
    assert share(PARAMS, rollout, distinct, 0.3) == 0.0


def test_no_gradient_at_all_gives_zero_and_not_nan(share):
    rollout, batch = scored_batch()
    assert share(PARAMS, rollout, batch._replace(rewards=jnp.ones_like(batch.rewards)), 0.0) == 0.0


def test_masked_groups_carry_nothing():
    parts = objective(
        *OBJECTIVE.parts[:2], OBJECTIVE.parts.reduction, kl=OBJECTIVE.parts.kl, degenerate=degenerate.mask()
    )
    assert compiled(gradient_share(score, parts))(PARAMS, *scored_batch(), 0.3) == 0.0


def test_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match="micro_batches must be at least 1, got 0"):
        gradient_share(score, REWARD_ONLY, micro_batches=0)
