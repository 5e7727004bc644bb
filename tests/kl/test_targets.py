"""What a KL term follows, found from the estimator itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import kl
from grpo_jax.kl import targets
from grpo_jax.kl.targets import Target

MIXTURE = kl.mixture((0.5, kl.k1), (0.5, kl.k3))
STRAIGHT = kl.straight_through(kl.k3, kl.k2)


@pytest.mark.parametrize(
    ("estimator", "placement", "granularity", "name"),
    [
        (kl.k1, "loss", "token", "zero"),
        (kl.k1, "loss", "sequence", "zero"),
        (kl.k1, "reward", "token", "reverse"),
        (kl.k1, "to_go", "token", "reverse"),
        (kl.k1, "own_token", "token", "local_reverse"),
        (kl.k2, "loss", "sequence", "reverse"),
        (kl.k2, "loss", "token", "local_reverse"),
        (kl.k3, "loss", "sequence", "forward"),
        (kl.k3, "loss", "token", "local_forward"),
        (kl.k3, "reward", "token", "reverse - local_forward"),
        (kl.k3, "reward", "sequence", "reverse - forward"),
        (kl.k2, "reward", "token", "none"),
        (kl.k1, "both", "token", "reverse"),
        (kl.k3, "both", "token", "reverse"),
        (kl.k3, "both", "sequence", "reverse"),
        (MIXTURE, "both", "token", "reverse"),
        (STRAIGHT, "loss", "token", "local_reverse"),
        (STRAIGHT, "loss", "sequence", "reverse"),
        (MIXTURE, "loss", "token", "0.5 local_forward"),
        (MIXTURE, "loss", "sequence", "0.5 forward"),
        (kl.absolute, "loss", "token", "none"),
        (jnp.tanh, "loss", "token", "none"),
    ],
)
def test_on_policy_table(estimator, placement, granularity, name):
    assert kl.penalty(estimator, placement, granularity, allow_biased=True).target.name == name


@pytest.mark.parametrize(
    ("estimator", "granularity", "importance", "on_policy", "off_policy"),
    [
        (kl.k1, "token", "none", "zero", "none"),
        (kl.k3, "token", "none", "local_forward", "none"),
        (kl.k1, "token", "token", "local_reverse", "sampler_local_reverse"),
        (kl.k3, "token", "token", "local_reverse", "sampler_local_reverse"),
        (kl.k2, "token", "token", "none", "none"),
        (kl.k3, "token", "prefix", "local_reverse", "local_reverse"),
        (kl.k3, "token", "causal", "reverse", "reverse"),
        (kl.k1, "token", "causal", "reverse", "reverse"),
        (kl.k3, "token", "sequence", "reverse", "reverse"),
        (kl.k3, "sequence", "sequence", "reverse", "reverse"),
        (kl.k2, "sequence", "detached_sequence", "reverse", "reverse"),
        (kl.k3, "sequence", "detached_sequence", "forward", "forward"),
    ],
)
def test_importance_table(estimator, granularity, importance, on_policy, off_policy):
    correction = getattr(kl.importance, importance)()
    term = kl.penalty(estimator, "loss", granularity, correction, allow_biased=True)
    assert (term.target.name, term.loss_off_policy.name) == (on_policy, off_policy)


def test_a_users_estimator_is_declared_like_a_shipped_one():
    def forward_only(u):
        return jnp.expm1(-u)

    term = kl.penalty(forward_only, "own_token", allow_biased=True)
    assert term.target.name == "- local_forward"
    assert kl.penalty(lambda u: 2 * u + 0.25 * (jnp.exp(-u) - 1)).target.name == "2 reverse - 0.25 local_forward"


def test_a_return_of_an_estimator_that_is_not_zero_at_zero_is_said_to_push_on_length():
    for estimator in (lambda u: u + 1, lambda u: u + jnp.exp(-u)):
        term = kl.penalty(estimator, "to_go", allow_biased=True)
        assert term.target.name == "none"
        assert "length" in term.target.none
    assert kl.penalty(lambda u: u + 1, "reward", "sequence").target.name == "reverse"


def test_a_clamp_leaves_the_loss_and_spoils_the_reward():
    assert kl.penalty(kl.clamped(kl.k3), "loss").target.name == "local_forward"
    assert kl.penalty(kl.clamped(kl.k2), "loss").target.name == "local_reverse"
    assert kl.penalty(kl.clamped(kl.k1), "to_go").target.name == "none"
    assert kl.penalty(kl.clamped(kl.k1), "reward", "sequence").target.name == "none"


def test_declarations_do_not_depend_on_tracing_or_precision():
    def traced(x):
        term = kl.penalty(kl.k3, "both")
        assert term.target.name == "reverse"
        return x

    jax.jit(traced)(jnp.zeros(()))
    with jax.enable_x64(True):
        assert kl.penalty(kl.k3, "both").target == kl.penalty(kl.k3, "both").target
        assert kl.penalty(kl.k1).target.name == "reverse"


def test_sums_of_targets_cancel_and_keep_their_reason():
    assert Target(reverse=1.0, slope=1.0).plus(Target(reverse=-1.0, local_forward=2.0)).name == "2 local_forward"
    unknown = Target(slope=1.0).without("a reason")
    assert Target(reverse=1.0).plus(unknown).none == unknown.plus(Target(reverse=1.0)).none == "a reason"
    assert Target(reverse=1.0, local_reverse=-0.5).coefficients == {"reverse": 1, "local_reverse": -0.5}
    moved = targets.at_sampler_prefixes(Target(local_reverse=1.0, local_forward=2.0))
    assert moved.coefficients == {"sampler_local_reverse": 1, "sampler_local_forward": 2}


@pytest.mark.parametrize("estimator", [jnp.log, jnp.sqrt, lambda u: 1 / u, lambda u: u * jnp.nan])
def test_an_estimator_that_is_not_finite_everywhere_is_refused(estimator):
    with pytest.raises(ValueError, match="not finite"):
        kl.penalty(estimator, "loss", allow_biased=True)


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (jnp.cumsum, "returned shape"),
        (jnp.sum, r"returned shape \(\)"),
        (lambda u: jnp.reshape(u, (-1,))[:1], "returned shape"),
        (lambda u: u - jnp.mean(u), "depends on the log-ratios beside it"),
        (lambda u: u - jnp.flip(jnp.atleast_1d(u)).reshape(u.shape), "depends on the log-ratios beside it"),
        (lambda u: None, "returned a "),
        (lambda u: u > 0, "returned bool"),
        (lambda u: u + 0j, "returned complex"),
        (np.tanh, "cannot be traced"),
        (lambda u: u if u > 0 else -u, "cannot be traced"),
    ],
)
@pytest.mark.parametrize("placement", ["loss", "to_go"])
def test_what_is_no_function_of_each_log_ratio_by_itself_is_refused(estimator, message, placement):
    with pytest.raises(ValueError, match=message):
        kl.penalty(estimator, placement, allow_biased=True)
