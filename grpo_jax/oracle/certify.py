"""Certificates from a notebook: pass an estimator, a KL term or a whole objective."""

from collections.abc import Callable

import numpy as np
from rich.progress import track

from grpo_jax.advantages import leave_one_out
from grpo_jax.kl import Penalty, penalty
from grpo_jax.kl.importance import Importance
from grpo_jax.kl.penalty import Granularity, Placement
from grpo_jax.losses import Objective, objective, reductions, surrogates
from grpo_jax.models import Policy
from grpo_jax.oracle.certificate import Certificate
from grpo_jax.oracle.exact import CHUNK, gradients_of_groups, summed
from grpo_jax.oracle.instance import Instance, Tables, enumerated, random_instance, tables
from grpo_jax.oracle.judgement import Record, judge
from grpo_jax.oracle.space import Groups, multisets, ordered, sizes_in_words

Subject = Callable | Penalty | Objective
"""What can be certified: an estimator (a function of the log-ratio), a KL term, or an objective."""


def certify(
    subject: Subject,
    policy: Policy | Instance | None = None,
    *,
    placement: Placement = "to_go",
    granularity: Granularity = "token",
    importance: Importance | None = None,
    max_tokens: int = 3,
    end_ids: tuple[int, ...] = (0,),
    group_size: int = 2,
    beta: float = 1.0,
    seed: int = 0,
) -> Certificate:
    """Finds out which gradient something follows, exactly, by listing every group of completions of a small policy.

    ``certify(lambda u: jnp.tanh(u))`` is all it takes. What is differentiated is the objective that trains.

    Args:
        subject: an estimator, shipped or your own; a KL term from `grpo_jax.kl.penalty`; or an objective.
        policy: on which policy, with current policy, reference and sampler drawn by ``init``; or an instance that says
            all this. None: free logits at every prefix of three tokens.
        placement: of an estimator; see `grpo_jax.kl.penalty`.
        granularity: of an estimator.
        importance: of an estimator in the loss.
        max_tokens: longest completion, T; unless an instance is given.
        end_ids: tokens that end a completion; none: all have ``max_tokens``. Unless an instance is given.
        group_size: members of a group, G.
        beta: strength of the KL term, at least 1e-4; matters only where advantages or clipping are not linear.
        seed: of what is drawn; unless an instance is given.

    Raises:
        ValueError: too much to list, with the count, or a combination that has no meaning.
        TypeError: subject or policy is something else.
    """
    check_policy(policy, Policy, Instance, type(None))
    certified = as_objective(subject, placement, granularity, importance)
    if isinstance(policy, Instance):
        instance, sizes = policy, sizes_in_words(len(policy.rewards), (group_size,))
    else:
        listed = enumerated(policy, max_tokens, end_ids)
        sizes = sizes_in_words(len(listed.space.mask), (group_size,))
        instance = random_instance(listed, seed)
    records = [
        record(certified, tables(instance, off_policy), group_size, off_policy, beta) for off_policy in (False, True)
    ]
    return Certificate(name_of(certified), records[0], records[1], (*certified.notes, f"summed over {sizes}"))


def as_objective(
    subject: Subject,
    placement: Placement = "to_go",
    granularity: Granularity = "token",
    importance: Importance | None = None,
) -> Objective:
    """Returns an objective as it is, and an estimator or a KL term within the plainest objective there is.

    That has the leave-one-out advantage, the exact sequence weight and sums over tokens, so that nothing but the KL
    term itself decides what the KL term follows.

    Raises:
        ValueError: placement, granularity or importance for what has its own.
        TypeError: none of the three.
    """
    if isinstance(subject, Objective | Penalty):
        if (placement, granularity, importance) != ("to_go", "token", None):
            raise ValueError(
                f"certify: placement={placement!r}, granularity={granularity!r} or importance would have no effect on "
                "a KL term or an objective, which has its own; pass the estimator, or build the term with "
                "kl.penalty(estimator, placement, ...)"
            )
    check_subject(subject)
    if isinstance(subject, Objective):
        return subject
    term = subject
    if not isinstance(term, Penalty):
        term = penalty(term, placement, granularity, importance, allow_biased=True)
    return objective(
        leave_one_out(), surrogates.sequence_importance_weighted(), reductions.sequence_mean_of_token_sum(), kl=term
    )


def check_subject(subject: object) -> None:
    """Raises TypeError where something cannot be certified."""
    if not isinstance(subject, Objective | Penalty) and not callable(subject):
        raise TypeError(
            f"certify: {subject!r} cannot be certified; pass a function of the log-ratio, such as grpo_jax.kl.k3, a "
            "KL term of kl.penalty, or an objective"
        )


def check_policy(policy: object, *kinds: type) -> None:
    """Raises TypeError where something else stands in the policy's place."""
    if not isinstance(policy, kinds):
        raise TypeError(
            f"certify: policy is {policy!r}; give a policy, such as grpo_jax.models.prefix_tabular(3, 3), and the "
            "placement of an estimator by name: placement='loss'"
        )


def name_of(certified: Objective) -> str:
    """Returns what an objective is made of, in words."""
    parts = certified.parts
    term = "no KL term" if parts.kl is None else parts.kl.name
    return f"{term}; {parts.advantage.name}, {parts.surrogate.name}, {parts.reduction.name}, {parts.degenerate.name}"


def record(
    certified: Objective, evaluated: Tables, group_size: int = 2, off_policy: bool = False, beta: float = 1.0
) -> Record:
    """Returns what is known of an objective on evaluated tables.

    Args:
        certified: the objective.
        evaluated: an instance's tables.
        group_size: members of a group, G.
        off_policy: whether the tables are those of another policy's samples.
        beta: strength of the KL term, at least 1e-4.
    """
    groups = groups_of(certified, evaluated, group_size, beta)
    chunks = gradients_of_groups(certified, evaluated, groups, beta)
    count = -(-len(groups.members) // CHUNK)
    if count > 1:
        where = "off-policy" if off_policy else "on-policy"
        chunks = track(chunks, f"{len(groups.members):,} groups {where}", count, transient=True)
    return judge(certified, evaluated, summed(chunks, evaluated.jacobian.shape[-1]), group_size, off_policy)


def groups_of(certified: Objective, evaluated: Tables, group_size: int, beta: float = 1.0) -> Groups:
    """Returns all groups without regard to order, or, where the objective tells members apart, all ordered ones.

    Found out from the gradients of all groups, or of a random `CHUNK` of them where there are more.
    """
    count = len(evaluated.mask)
    groups = multisets(count, group_size)
    drawn = np.random.default_rng(0).permutation(len(groups.members))[:CHUNK]
    some = groups.members[drawn]

    def gradients(members: np.ndarray) -> np.ndarray:
        chunks = gradients_of_groups(certified, evaluated, Groups(members, groups.multiplicity[drawn]), beta)
        return np.concatenate([found for _, found in chunks], axis=1)

    here = gradients(some)
    for shuffled in (some[:, ::-1], np.roll(some, 1, axis=1)):
        if np.linalg.norm(gradients(shuffled) - here) > 1e-9 * np.linalg.norm(here):
            return ordered(count, group_size)
    return groups
