"""What an objective follows: as it declares, and as listing every completion of a small policy shows."""

from typing import NamedTuple

from grpo_jax.components import build_controller, build_objective
from grpo_jax.config import Config
from grpo_jax.losses import Objective
from grpo_jax.oracle import certify
from grpo_jax.report.recorded import RecordedRun


class Facts(NamedTuple):
    """What is known of a run's objective.

    Attributes:
        term: its KL term in words.
        on: the gradient that the term declares to follow while the policy itself samples.
        off: the same where an older policy samples.
        reasons: why nothing is declared, a sentence each; empty where something is.
        notes: what else the objective declares.
        certificate: the certificate as text; "" where there is none.
        verdict: of the certificate, or why there is none.
    """

    term: str
    on: str
    off: str
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    certificate: str
    verdict: str


def facts(run: RecordedRun) -> Facts:
    """Returns what is known of a run's objective, its certificate included.

    A run that was started with an objective of its own says in its summary what that follows, and no more is known.
    """
    objective, own = _objective(run.config), own_target(run)
    if own is not None:
        why = "the run had an objective of its own, which its folder does not describe"
        return Facts("an objective of its own", own, "not known", (), (), "", f"No certificate: {why}.")
    kl = objective.parts.kl
    if kl is None:
        return Facts("no KL term", "none", "none", (), objective.notes, "", "No KL term, so nothing to certify.")
    certificate, verdict = _certified(objective)
    on, off = objective.target, objective.off_policy_target
    reasons = tuple(dict.fromkeys(target.none for target in (on, off) if target.none))
    return Facts(kl.name, on.name, off.name, reasons, objective.notes, certificate, verdict)


def own_target(run: RecordedRun) -> str | None:
    """Returns what a run's KL term followed, where that is not what its configuration says; else None."""
    declared = run.summary.get("kl_follows")
    return None if declared == _objective(run.config).target.name else declared


def _objective(config: Config) -> Objective:
    # The length divides the loss and the number of rewards joins them: neither changes what the KL term follows.
    with_kl = not build_controller(config.beta).always_zero
    return build_objective(config.objective, config.rollout.max_tokens or 1, with_kl=with_kl)


def _certified(objective: Objective) -> tuple[str, str]:
    try:
        found = certify(objective)
    except ValueError as error:  # too much to list, or nothing that enumeration can say
        return "", f"No certificate: {error}."
    return repr(found), found.verdict
