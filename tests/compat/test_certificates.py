"""Each constructor follows what it declares, exactly, where its clamps bind too; each argument changes something."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import advantages, compat, kl
from grpo_jax.losses import Objective, declaration, reductions
from grpo_jax.models import prefix_tabular
from grpo_jax.oracle import enumerated, exactly, expectation, judge, multisets, random_instance, tables

CONSTRUCTORS = {
    name: each
    for name in compat.__all__
    if inspect.signature(each := getattr(compat, name)).return_annotation is Objective
}
GROUP = 2
# Of the KL term alone, on-policy and off-policy, as far as the library's clamp lets it be.
ALONE = {
    "nemo_rl_grpo": ("none", "none"),
    "nemo_rl_grpo_importance_weighted": ("none", "none"),
    "nemo_rl_gspo": ("none", "none"),
    "nemo_rl_reinforce": ("none", "none"),
    "open_instruct_grpo": ("local_forward", "none"),
    "openrlhf_grpo": ("none", "none"),
    "openrlhf_grpo_unbiased": ("local_reverse", "none"),
    "openrlhf_reinforce_plus_plus_baseline": ("none", "none"),
    "openrlhf_rloo": ("none", "none"),
    "skyrl_grpo": ("none", "none"),
    "slime_cispo": ("zero", "none"),
    "slime_grpo": ("zero", "none"),
    "slime_gspo": ("zero", "none"),
    "trl_cispo": ("local_reverse", "sampler_local_reverse"),
    "trl_grpo": ("local_reverse", "sampler_local_reverse"),
    "trl_gspo": ("none", "none"),
    "trl_rloo": ("reverse", "none"),
    "tunix_grpo": ("zero", "none"),
    "tunix_gspo": ("zero", "none"),
    "verl_grpo": ("none", "none"),
    "verl_grpo_straight_through": ("local_reverse", "none"),
    "verl_kl_in_reward": ("reverse", "none"),
}
WITHIN = {
    "nemo_rl_grpo": (dict(kl_input_clamp_value=None, kl_output_clamp_value=None), "local_reverse", "none"),
    "nemo_rl_grpo_importance_weighted": (
        dict(kl_input_clamp_value=None, kl_output_clamp_value=None),
        "local_reverse",
        "sampler_local_reverse",
    ),
    "openrlhf_grpo": (dict(estimator=kl.k3), "local_forward", "none"),
    "openrlhf_reinforce_plus_plus_baseline": (dict(estimator=kl.k1), "reverse", "none"),
    "openrlhf_rloo": (dict(estimator=kl.k1), "reverse", "none"),
    "skyrl_grpo": (dict(estimator=kl.k3), "local_forward", "none"),
    "verl_grpo": (dict(estimator=kl.k3), "local_forward", "none"),
}
# What stands against the default of each parameter, by name; constructors with another meaning say so below.
OTHER = {
    "advantage": advantages.centred(),
    "cap": 1.1,
    "clip_ratio_c": 1.3,
    "delta": 1.3,
    "dual_clip": 1.3,
    "estimator": kl.k2,
    "importance": kl.importance.causal(),
    "kl_clamp_value": 0.05,
    "kl_input_clamp_value": 0.1,
    "kl_limit": 0.05,
    "kl_output_clamp_value": 0.05,
    "ratio_cap": 0.9,
    "ratio_clip_c": 1.3,
    "reduction": reductions.sequence_mean_of_token_sum(),
    "value": kl.k1,
}


def alone(built):
    """The declarations of the KL term with a linear advantage and a constant denominator."""
    parts = built.parts._replace(
        advantage=advantages.leave_one_out(), reduction=reductions.sequence_mean_of_token_sum()
    )
    return declaration.on_policy(parts).name, declaration.off_policy(parts).name


@functools.cache
def evaluated():
    """A policy of which some completions are beyond every clamp: tables on-policy and off-policy."""
    listed = enumerated(prefix_tabular(3, 3), 3)
    instance = random_instance(listed, 1)
    with exactly():
        far = jax.tree.map(lambda leaf: -12 * leaf, instance.ref_params)
    return [tables(instance._replace(ref_params=far), off_policy) for off_policy in (False, True)]


def test_the_reference_is_far_enough_for_every_clamp_to_bind():
    known = evaluated()[0]
    u = np.where(known.mask, np.asarray(known.scores.log_probs) - known.ref_log_probs, 0)
    assert u.min() < -2.611
    assert u.max() > 10


def test_every_constructor_is_declared_here():
    assert set(ALONE) == set(CONSTRUCTORS)
    assert set(WITHIN) <= set(CONSTRUCTORS)


@pytest.mark.parametrize("name", ALONE)
def test_the_kl_term_alone_declares_what_is_written(name):
    assert alone(CONSTRUCTORS[name]()) == ALONE[name]
    if name in WITHIN:
        arguments, on, off = WITHIN[name]
        assert alone(CONSTRUCTORS[name](**arguments)) == (on, off)


@pytest.mark.parametrize("name", ALONE)
def test_each_constructor_follows_what_it_declares(name):
    built = CONSTRUCTORS[name]()
    for known, off_policy in zip(evaluated(), (False, True), strict=True):
        groups = multisets(len(known.mask), GROUP)
        found = expectation(built, known, groups, reduction=built.parts.reduction)
        record = judge(built, known, found, GROUP, off_policy)
        assert record.agrees, record.sentence


def changed(name, parameter):
    """A value other than the parameter's default."""
    if parameter in ("clip_ratio_c", "dual_clip", "epsilon_c", "eps_clip_c"):
        return 1.3
    if parameter == "reduction" and name == "trl_gspo":
        return reductions.token_mean()
    return OTHER[parameter] if parameter in OTHER else 0.05


LOG_PROBS = jnp.array([-0.4, -1.6, -1.0])
OLD = jnp.array([-1.0, -1.0, -1.2])
REF = jnp.array([-1.4, -0.7, -1.2])
MASK = jnp.ones(3, bool)
REWARDS = jnp.array([1.0, 0.0, 0.5, 0.0])


def outcome(built):
    """What an objective's parts make of one completion and one group, ratios beyond the bounds on either side."""
    parts, u = built.parts, LOG_PROBS - REF
    spread = parts.advantage.compute(REWARDS, REWARDS >= 0)
    if parts.advantage.across_batch is not None:
        spread = parts.advantage.across_batch(spread[None], spread[None] < 9)[0]
    both = [(LOG_PROBS, OLD), (OLD, LOG_PROBS)]
    losses = [parts.surrogate.loss(*pair, sign * jnp.ones(3), MASK) for pair in both for sign in (1.0, -1.0)]
    uneven = jnp.array([[[True, True, True], [False, False, True]]])
    reduced = parts.reduction.reduce(jnp.arange(6.0).reshape(1, 2, 3), uneven)

    def penalty(u):
        tokens = kl.Tokens(u, LOG_PROBS - OLD, MASK)
        part = parts.kl.loss or parts.kl.sequence_cost or parts.kl.token_cost
        return part(tokens)

    value, slope = jax.jvp(penalty, (u,), (jnp.ones(3),))
    return np.concatenate([np.ravel(x) for x in (spread, *losses, reduced.compute(), value, slope)])


@pytest.mark.parametrize("name", ALONE)
def test_each_argument_changes_something(name):
    default = outcome(CONSTRUCTORS[name]())
    assert len(CONSTRUCTORS[name]().notes) >= 2
    for parameter in inspect.signature(CONSTRUCTORS[name]).parameters:
        other = {parameter: changed(name, parameter)}
        assert np.abs(outcome(CONSTRUCTORS[name](**other)) - default).max() > 1e-6, other


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: compat.cut(kl.k3, 0.0), "limit is 0.0"),
        (lambda: compat.cut(kl.k3, None, -1.0), "input_limit is -1.0"),
        (lambda: compat.low_var_kl(-1.0), "limit is -1.0"),
        (lambda: compat.own_ratio(kl.k3, 0.0), "limit is 0.0"),
        (lambda: compat.own_ratio(kl.k3, None, 0.0), "input_limit is 0.0"),
        (lambda: compat.cut_term(kl.penalty(kl.k1), 1.0), "is not in the loss"),
        (lambda: compat.at_sampling(kl.penalty(kl.k3, "loss")), "charges nothing"),
        (lambda: compat.sequence_clipped(1.0, 0.2), "low must be in"),
        (lambda: compat.openrlhf_grpo_unbiased(ratio_cap=0.0), "cap is 0.0"),
    ],
)
def test_values_out_of_range_are_refused(build, words):
    with pytest.raises(ValueError, match=words):
        build()


def test_a_cut_without_limits_changes_nothing():
    u = jnp.linspace(-4.0, 4.0, 9)
    np.testing.assert_array_equal(compat.cut(kl.k2, None)(u), kl.k2(u))
    term = kl.penalty(kl.k2, "loss")
    assert compat.cut_term(term, None) is term
