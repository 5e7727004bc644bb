"""Every composition that is accepted follows what it declares, on three random policies, on-policy and off-policy.

Two full products and a covering of the rest; each refused combination is refused for a reason that is known here.
"""

import inspect

import pytest

from grpo_jax import advantages, kl
from grpo_jax.kl import estimators, importance
from grpo_jax.losses import degenerate, mismatch, objective, reductions, surrogates
from grpo_jax.oracle import catalogue, sweep, undeclared
from tests.references import tabular

SEEDS = (0, 1, 2)
# What divides a member's deviation here is independent of that member: on each single prompt the direction is that of
# E[R], and only the weight of a prompt among others is another.
PER_PROMPT = "leave_one_out_standardised"


@pytest.fixture(scope="module")
def instances():
    return sweep.evaluated(SEEDS)


def utility_is_another(record):
    """Whether what an advantage declares in place of a known multiple of E[R] is found, by a margin."""
    if not record.other_utility:
        return True
    if record.advantage.startswith(PER_PROMPT):
        return record.reward_angle < 1e-12
    return record.reward_angle > 1e-5


def certify_all(configurations, instances, capsys, what):
    """Certifies all, prints how many, and returns the sentences of those that are not as declared."""
    wrong, positive, negative = [], 0, 0
    for configuration, records in sweep.sweep(configurations, instances):
        wrong += undeclared(configuration.objective)
        assert len(records) == 2 * len(SEEDS)
        for record in records:
            positive += record.distance is not None
            negative += record.distance is None
            if not record.agrees or (record.distance or 0) > 1e-12 or not utility_is_another(record):
                wrong.append(f"{record.behaviour}-policy {record}")
    with capsys.disabled():
        print(
            f"\n{what}: {len(configurations)} combinations certified, {positive} exact and {negative} negative findings"
        )
    return wrong


def test_every_kl_term_follows_what_it_declares_under_every_reduction(instances, capsys):
    accepted, refused = catalogue.kl_product()
    assert len(accepted) + len(catalogue.REDUCTIONS) * len(refused) == len(catalogue.REDUCTIONS) * len(
        list(catalogue.terms())
    )
    reasons = ("in the reward the surrogate's", "no token of its own", "weighs single tokens", "causal weights already")
    assert [reason for reason in refused if not any(known in reason for known in reasons)] == []
    assert certify_all(accepted, instances, capsys, "KL term") == []


def test_every_advantage_follows_what_it_declares_under_every_degenerate_rule(instances, capsys):
    accepted, refused = catalogue.group_product()
    assert len(accepted) + len(refused) == len(catalogue.ADVANTAGES) * len(catalogue.DEGENERATE) * len(
        catalogue.PLACEMENTS
    )
    assert [reason for reason in refused if "scales by the whole batch" not in reason] == []
    assert certify_all(accepted, instances, capsys, "group") == []


def test_every_surrogate_and_correction_follows_what_it_declares(instances, capsys):
    accepted, refused = catalogue.covering()
    assert [reason for reason in refused if "one advantage per completion" not in reason] == []
    assert certify_all(accepted, instances, capsys, "rest") == []


def planted(term, **declared):
    target = kl.Target(**declared)
    term = term._replace(target=target, loss_off_policy=target, cost_target=target)
    built = objective(
        catalogue.ADVANTAGES[0],
        catalogue.SURROGATES[0],
        catalogue.REDUCTIONS[0],
        kl=term,
        degenerate=catalogue.DEGENERATE[0],
    )
    return catalogue.Configuration(built, 2)


@pytest.mark.parametrize(
    ("declared", "caught"),
    [
        ({"reverse": 1.0, "slope": 1.0}, 6),
        ({"local_forward": 1.0001, "slope": 1.0}, 6),
        ({"constant": 1.0}, 6),
        ({"local_forward": 1.0, "slope": 1.0}, 3),
        ({"none": "no reason"}, 3),
        ({}, 7),
    ],
)
def test_a_wrong_or_missing_declaration_planted_in_the_table_is_caught(declared, caught, instances, capsys):
    # k3 in the loss follows local_forward on-policy, and no objective off-policy.
    wrong = certify_all([planted(kl.penalty(kl.k3, "loss"), **declared)], instances, capsys, "planted")
    assert len(wrong) == caught


def test_an_advantage_without_a_declaration_fails(instances, capsys):
    silent = advantages.from_function(lambda rewards, mask: rewards)
    built = objective(silent, catalogue.SURROGATES[0], catalogue.REDUCTIONS[0], kl=kl.penalty(kl.k1))
    wrong = certify_all([catalogue.Configuration(built, 2)], instances, capsys, "silent")
    assert wrong == ["advantage <lambda> has no reward_target"]


def factories(module, returned):
    """Public functions of a module, or of its file, that build the given thing."""
    functions = vars(module).items()
    return {
        name
        for name, value in functions
        if inspect.isfunction(value)
        and not name.startswith("_")
        and inspect.signature(value).return_annotation is returned
    }


def heads(parts):
    return {part.name.split("(")[0] for part in parts}


def test_the_catalogue_holds_everything_that_is_shipped():
    assert factories(importance, importance.Importance) == heads(catalogue.IMPORTANCE)
    assert factories(reductions, reductions.Reduction) == heads(catalogue.REDUCTIONS)
    assert factories(surrogates, surrogates.Surrogate) == heads(catalogue.SURROGATES)
    assert factories(degenerate, degenerate.Degenerate) == heads(catalogue.DEGENERATE)
    assert factories(advantages, advantages.Advantage) - {"from_function"} == heads(catalogue.ADVANTAGES)
    assert len(factories(mismatch, mismatch.Mismatch)) == len(catalogue.MISMATCH)
    shipped = {"k1", "k2", "k3", "absolute"} | factories(estimators, estimators.Estimator)
    named = {estimators.name_of(each).split("(")[0] for each in catalogue.ESTIMATORS}
    assert named == shipped - {"mixture"} | {"0.3 k1 + 0.5 k3"}


def test_lengths_vary_in_the_instances_so_that_divided_means_can_be_told_apart(instances):
    for _, tables in instances[1]:
        assert set(tables.mask.sum(axis=1)) == set(tabular.LENGTHS)
