"""Certificates as a notebook's reader meets them: of an estimator, a KL term, an objective; printed, saved, drawn."""

import dataclasses
import importlib
import json

import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import kl
from grpo_jax.advantages import Advantage, centred, from_function, leave_one_out
from grpo_jax.losses import degenerate, mismatch, objective, reductions, surrogates
from grpo_jax.models import Policy, position_tabular
from grpo_jax.models.count import count_model
from grpo_jax.oracle import certify, enumerated, random_instance, tables
from grpo_jax.oracle.certify import check_policy, check_subject, groups_of

QUICK = {"max_tokens": 2}


def with_target(term, **coefficients):
    """The term with another declaration planted in it."""
    target = kl.Target(slope=1.0, **coefficients)
    return term._replace(target=target, loss_off_policy=target, cost_target=target)


def test_a_function_of_the_log_ratio_gets_a_certificate():
    found = certify(lambda u: jnp.tanh(u))
    assert found.on.declared == found.off.declared == "none"
    assert found.agrees
    assert "follows no objective, as declared" in found.verdict
    assert 0 < found.off.effective_sample_size < 1
    assert found.on.effective_sample_size == pytest.approx(1)
    assert found.on.variance < found.off.variance


@pytest.mark.parametrize(
    ("estimator", "where", "follows"),
    [
        (kl.k1, {"placement": "reward"}, "reverse"),
        (kl.k1, {"placement": "to_go"}, "reverse"),
        (kl.k2, {"placement": "loss", "granularity": "sequence"}, "reverse"),
        (kl.k3, {"placement": "both"}, "reverse"),
        (kl.k3, {"placement": "loss", "importance": kl.importance.sequence()}, "reverse"),
        (kl.k3, {"placement": "loss", "importance": kl.importance.causal()}, "reverse"),
        (kl.k3, {"placement": "loss", "granularity": "sequence"}, "forward"),
        (kl.k1, {"placement": "loss"}, "zero"),
    ],
)
def test_the_well_known_placements_follow_what_they_are_known_to(estimator, where, follows):
    found = certify(estimator, **QUICK, **where)
    assert found.on.distances[follows] < 1e-12
    assert found.on.declared == follows
    assert found.agrees


@pytest.mark.parametrize(
    ("subject", "options", "message"),
    [
        (kl.penalty(kl.k1), {"placement": "reward"}, "no effect"),
        (kl.penalty(kl.k3, "loss"), {"importance": kl.importance.causal()}, "no effect"),
        (kl.k1, {"seed": -1}, "seed is -1; give 0 or more"),
        (kl.k1, {"beta": 1e-5}, "rounding would drown"),
        (kl.k1, {"beta": float("inf")}, "beta is inf"),
    ],
)
def test_options_that_cannot_be_met_are_refused_with_the_remedy(subject, options, message):
    with pytest.raises(ValueError, match=message):
        certify(subject, **QUICK, **options)


def test_what_is_no_subject_and_what_is_no_policy_is_said():
    with pytest.raises(TypeError, match="'k3' cannot be certified"):
        check_subject("k3")
    with pytest.raises(TypeError, match="placement='loss'"):
        check_policy("loss", Policy)


def test_a_wrong_declaration_is_called_wrong():
    found = certify(with_target(kl.penalty(kl.k3, "loss"), reverse=1.0), **QUICK)
    assert not found.on.agrees
    assert "WRONG: it declares reverse" in found.verdict
    assert "local_forward" in found.on.sentence


def test_a_missing_declaration_is_not_excused_where_a_known_target_is_followed():
    term = kl.penalty(kl.k1)
    found = certify(term._replace(target=term.target.without("nobody knows")), **QUICK)
    assert not found.on.agrees
    assert "declares nothing (nobody knows), yet" in found.on.sentence


def test_a_term_that_is_zero_is_said_to_be_zero_also_where_nothing_is_declared():
    found = certify(kl.penalty(lambda u: 0 * u, "loss", allow_biased=True), **QUICK)
    assert found.on.sentence.startswith("pulls nowhere, as declared")
    assert found.off.sentence.startswith("is 0 on this policy, exactly: it pulls nowhere. Nothing is declared of it (")
    assert not found.off.wrong


def test_many_groups_are_counted_while_they_are_summed(monkeypatch):
    module, shown = importlib.import_module("grpo_jax.oracle.certify"), []
    alone = certify(kl.k2, **QUICK)
    for owner in (module, importlib.import_module("grpo_jax.oracle.exact")):
        monkeypatch.setattr(owner, "CHUNK", 3)
    monkeypatch.setattr(module, "track", lambda chunks, *words, **options: shown.append(words) or chunks)
    counted = certify(kl.k2, **QUICK)
    groups = int(alone.notes[-1].split(", ")[1].split()[0])
    assert shown == [(f"{groups} groups {where}-policy", -(-groups // 3)) for where in ("on", "off")]
    np.testing.assert_allclose(counted.on.variance, alone.on.variance, rtol=1e-12)


def test_members_told_apart_are_found_out_from_some_of_the_groups(monkeypatch):
    for module in ("certify", "exact"):
        monkeypatch.setattr(importlib.import_module(f"grpo_jax.oracle.{module}"), "CHUNK", 4)
    evaluated = tables(random_instance(enumerated(position_tabular(3, 1), 1, ())))
    first = Advantage("first", lambda rewards, mask: jnp.array([1.0, 0.0]) * rewards, True, "E[R] / 2")
    for advantage, count in ((first, 9), (leave_one_out(), 6)):
        built = objective(advantage, surrogates.reinforce(), reductions.sequence_mean_of_token_sum())
        assert len(groups_of(built, evaluated, 2).members) == count


def test_coefficients_that_a_declaration_rounds_still_agree_and_others_do_not():
    thirds = kl.penalty(kl.mixture((1 / 3, kl.k1), (1 / 7, kl.k3)), "both")
    assert certify(thirds, **QUICK).agrees
    assert not certify(with_target(thirds, reverse=0.4763), **QUICK).on.agrees


def test_the_scale_of_reduction_and_self_included_mean_belongs_to_the_declaration():
    built = objective(
        centred(),
        surrogates.sequence_importance_weighted(),
        reductions.constant_length(7),
        kl=kl.penalty(kl.k1, "reward"),
    )
    found = certify(built, **QUICK)
    assert found.agrees
    assert found.on.distances["reverse"] < 1e-12
    assert found.on.reward_distance < 1e-12


def test_an_advantage_that_does_not_follow_the_reward_it_declares_is_called_wrong():
    def squared(rewards, mask):
        return jnp.square(rewards) - jnp.mean(jnp.square(rewards))

    liar = from_function(squared, linear=False, reward_target="E[R]")
    built = objective(liar, surrogates.reinforce(), reductions.sequence_mean_of_token_sum(), kl=kl.penalty(kl.k1))
    found = certify(built, **QUICK)
    assert not found.on.agrees
    assert "WRONG: its reward term" in found.on.sentence


def test_an_objective_that_tells_members_apart_is_summed_over_ordered_groups():
    first = Advantage("first", lambda rewards, mask: jnp.array([1.0, 0.0]) * rewards, True, "E[R] / 2")
    built = objective(
        first,
        surrogates.sequence_importance_weighted(),
        reductions.sequence_mean_of_token_sum(),
        kl=kl.penalty(kl.k1, "reward"),
    )
    found = certify(built, **QUICK)
    halved = certify(
        objective(
            Advantage("half", lambda rewards, mask: 0.5 * rewards, True, "E[R] / 2"),
            surrogates.sequence_importance_weighted(),
            reductions.sequence_mean_of_token_sum(),
            kl=kl.penalty(kl.k1, "reward"),
        ),
        **QUICK,
    )
    for name, distance in halved.on.distances.items():
        np.testing.assert_allclose(found.on.distances[name], distance, rtol=1e-9)
    assert found.on.variance > 1.2 * halved.on.variance


def test_masking_and_mismatch_correction_take_the_promise_back():
    masked = objective(
        leave_one_out(),
        surrogates.reinforce(),
        reductions.sequence_mean_of_token_sum(),
        kl=kl.penalty(kl.k1),
        degenerate=degenerate.mask(),
    )
    found = certify(masked, **QUICK)
    assert found.on.declared == "none"
    assert found.on.agrees
    corrected = objective(
        leave_one_out(),
        surrogates.reinforce(),
        reductions.sequence_mean_of_token_sum(),
        kl=kl.penalty(kl.k1),
        mismatch=mismatch.truncated_sequence(1e9),
    )
    found = certify(corrected, **QUICK)
    assert found.on.distances["reverse"] < 1e-12
    # A bound that is never reached leaves the exact weight.
    assert found.off.distances["reverse"] < 1e-12
    assert not found.off.agrees


def test_without_a_kl_term_there_is_only_the_reward():
    built = objective(leave_one_out(), surrogates.clipped(), reductions.sequence_mean_of_token_sum())
    found = certify(built, **QUICK)
    assert found.on.estimator == "none"
    assert found.on.distances["zero"] == 0
    assert found.on.agrees


def test_other_policies_seeds_and_instances():
    fixed = certify(kl.k1, count_model(), max_tokens=4, end_ids=())
    assert fixed.on.distances["reverse"] < 1e-12
    assert fixed.on.distances["length"] is None
    drawn = random_instance(enumerated(max_tokens=2), seed=5)
    one, same, other = certify(kl.k3, drawn), certify(kl.k3, seed=5, **QUICK), certify(kl.k3, seed=6, **QUICK)
    assert one.on == same.on
    assert one.on.distances["reverse"] != other.on.distances["reverse"]
    with pytest.raises(ValueError, match=r"completions.*Monte Carlo.*certify_sampled"):
        certify(kl.k1, max_tokens=14)


def test_it_prints_saves_and_draws(tmp_path):
    found = certify(kl.k3, placement="loss", **QUICK)
    text = str(found)
    assert "k3 in loss, token" in text
    assert "local_forward" in text
    assert repr(found) == text
    assert "summed over 7 completions, 28 groups of 2" in text
    path = tmp_path / "k3.json"
    records = json.loads(found.to_json(path))
    assert json.loads(path.read_text()) == records
    assert [record["behaviour"] for record in records] == ["on", "off"]
    assert records[0]["distances"]["local_forward"] < 1e-12
    assert set(records[0]) == set(found.on._fields)
    picture = tmp_path / "k3.png"
    axes = found.plot(picture).axes[0]
    assert picture.stat().st_size > 5000
    assert axes.get_yscale() == "log"
    assert [tick.get_text().replace("\n", "_") for tick in axes.get_xticklabels()] == list(found.on.distances)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.name = "another"
