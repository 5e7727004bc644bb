"""The config boundary: the one place where names become functions.

Every choice stands in a table with the options it reads. An option that is set but not read by the choice made is an
error, so that nothing in a configuration is ever without effect.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import optax

from grpo_jax import advantages, kl, updates
from grpo_jax.advantages import Advantage
from grpo_jax.config import BetaConfig, Config, ObjectiveConfig, ReferenceConfig, UpdateConfig
from grpo_jax.kl import Penalty, controllers, importance
from grpo_jax.kl.controllers import Controller
from grpo_jax.losses import Objective, degenerate, mismatch, objective, reductions, surrogates
from grpo_jax.models import DecoderConfig, Policy, decoder
from grpo_jax.rewards import RewardFunction, overlong
from grpo_jax.rollouts import Strategy, categorical
from grpo_jax.tasks import Task, arithmetic
from grpo_jax.updates import Reference


class Choice(NamedTuple):
    """A factory and the options it reads, as field of the configuration -> argument of the factory."""

    factory: Callable
    reads: Mapping[str, str]


class Parts(NamedTuple):
    """What a configuration stands for, validated.

    Attributes:
        task: the problems.
        policy: the decoder.
        strategy: how tokens are chosen.
        rewards: the task's reward first, then what is added to it.
        reward_weights: a weight each.
        rewards_apart: whether the objective takes the rewards one by one instead of their sum.
        objective: the loss.
        controller: the rule for beta.
        reference: the reference policy.
        optimizer: the optimizer.
        max_tokens: the completion budget.
    """

    task: Task
    policy: Policy
    strategy: Strategy
    rewards: tuple[RewardFunction, ...]
    reward_weights: tuple[float, ...]
    rewards_apart: bool
    objective: Objective
    controller: Controller
    reference: Reference
    optimizer: optax.GradientTransformation
    max_tokens: int


_EPSILON = {"epsilon": "epsilon"}
_DDOF = {"ddof": "ddof", **_EPSILON}
_CLIP = {"clip_low": "low", "clip_high": "high"}
_BOUNDS = {"mismatch_low": "low", "mismatch_high": "high"}
_ADAPTIVE = {"target": "target", "floor": "floor", "ceiling": "ceiling", "statistic": "statistic"}

ADVANTAGES = {
    "leave_one_out": Choice(advantages.leave_one_out, {}),
    "centred": Choice(advantages.centred, {}),
    "standardised": Choice(advantages.standardised, _DDOF),
    "leave_one_out_standardised": Choice(advantages.leave_one_out_standardised, _EPSILON),
    "max_rl": Choice(advantages.max_rl, {}),
    "batch_whitened": Choice(advantages.batch_whitened, _DDOF),
    "separately_standardised": Choice(advantages.separately_standardised, _DDOF),
}
APART = ("separately_standardised",)
"""Advantages that take several rewards one by one."""
SURROGATES = {
    "clipped": Choice(surrogates.clipped, _CLIP),
    "dual_clipped": Choice(surrogates.dual_clipped, {**_CLIP, "dual_cap": "cap"}),
    "reinforce": Choice(surrogates.reinforce, {}),
    "importance_weighted": Choice(surrogates.importance_weighted, {}),
    "sequence_importance_weighted": Choice(surrogates.sequence_importance_weighted, {}),
    "cispo": Choice(surrogates.cispo, _CLIP),
    "gspo": Choice(surrogates.gspo, _CLIP),
    "gspo_token": Choice(surrogates.gspo_token, _CLIP),
    "sapo": Choice(surrogates.sapo, {"gate_positive": "positive", "gate_negative": "negative"}),
}
ESTIMATORS: dict[str, Callable] = {
    "k1": kl.k1,
    "k2": kl.k2,
    "k3": kl.k3,
    "abs": kl.absolute,
    "k3_k2": kl.straight_through(kl.k3, kl.k2),
}
IMPORTANCE = {
    "none": importance.none,
    "token": importance.token,
    "prefix": importance.prefix,
    "sequence": importance.sequence,
    "causal": importance.causal,
    "detached_sequence": importance.detached_sequence,
}
PREFIX_WEIGHTS = {"none": kl.no_weights, "prefix": kl.prefix_weights, "causal": kl.causal_weights}
DEGENERATE = {
    "keep": Choice(degenerate.keep, {}),
    "mask": Choice(degenerate.mask, {"denominator": "denominator"}),
    "smooth": Choice(degenerate.smooth, {"denominator": "denominator", "smooth_scale": "scale"}),
    "entropy_shaped": Choice(degenerate.entropy_shaped, {"shaping_alpha": "alpha", "shaping_threshold": "threshold"}),
}
REDUCTIONS = {
    "constant_length": Choice(reductions.constant_length, {"constant": "length"}),
    "token_mean": Choice(reductions.token_mean, {}),
    "sequence_mean_of_token_mean": Choice(reductions.sequence_mean_of_token_mean, {}),
    "sequence_mean_of_token_sum": Choice(reductions.sequence_mean_of_token_sum, {}),
}
MISMATCH = {
    "none": Choice(lambda: None, {}),
    "truncated_token": Choice(mismatch.truncated_token, {"mismatch_cap": "cap"}),
    "truncated_sequence": Choice(mismatch.truncated_sequence, {"mismatch_cap": "cap"}),
    "masked_token": Choice(mismatch.masked_token, _BOUNDS),
    "masked_sequence": Choice(mismatch.masked_sequence, _BOUNDS),
}
ADAPTIVE = {
    "none": Choice(controllers.constant, {}),
    "proportional": Choice(controllers.proportional, {**_ADAPTIVE, "alpha": "alpha"}),
    "proportional_integral": Choice(controllers.proportional_integral, {**_ADAPTIVE, "horizon": "horizon"}),
    "clipped_proportional": Choice(controllers.clipped_proportional, {**_ADAPTIVE, "horizon": "horizon"}),
}
SCHEDULES = {
    "linear_warmup": Choice(controllers.linear_warmup, {"schedule_start": "start", "schedule_steps": "steps"}),
    "tight_then_loose": Choice(controllers.tight_then_loose, {"schedule_start": "start", "schedule_steps": "steps"}),
}
_SCHEDULE_STEPS = {"linear_warmup": 100, "tight_then_loose": 500}
REFERENCES = {
    "frozen": Choice(updates.frozen, {}),
    "copied_every": Choice(updates.copied_every, {"every": "steps"}),
    "ema": Choice(updates.ema, {"every": "every", "rate": "rate"}),
    "behaviour": Choice(updates.behaviour, {}),
}


def build(config: Config) -> Parts:
    """Returns what a configuration stands for.

    Raises:
        ValueError: a value out of range, an unknown name, an option without effect, or parts that do not fit together.
    """
    task = arithmetic(config.task.operators, config.task.digits, config.task.held_out, config.task.seed)
    policy = decoder(DecoderConfig(vocabulary_size=task.tokenizer.vocabulary_size, **asdict(config.model)))
    rollout = config.rollout
    max_tokens = task.max_completion_tokens if rollout.max_tokens is None else rollout.max_tokens
    functions, weights = _rewards(config, task, max_tokens)
    controller = build_controller(config.beta)
    _check_reference_is_used(config, controller)
    return Parts(
        task=task,
        policy=policy,
        strategy=categorical(rollout.temperature, rollout.top_k, rollout.top_p),
        rewards=functions,
        reward_weights=weights,
        rewards_apart=config.objective.advantage in APART,
        objective=build_objective(config.objective, max_tokens, weights, with_kl=not controller.always_zero),
        controller=controller,
        reference=build_reference(config.reference),
        optimizer=build_optimizer(config.update),
        max_tokens=max_tokens,
    )


def build_objective(
    config: ObjectiveConfig, max_tokens: int, reward_weights: tuple[float, ...] = (1.0,), *, with_kl: bool = True
) -> Objective:
    """Returns the objective; ``with_kl`` is False where beta is 0 for ever, and then no reference is needed."""
    options = asdict(config)
    tolerance = {"tolerance": config.tolerance}
    constant = {"length": max_tokens} if config.reduction == "constant_length" and config.constant is None else {}
    delta = config.off_policy_delta
    return objective(
        advantage=_advantage(config, reward_weights),
        surrogate=_choose("objective.surrogate", config.surrogate, SURROGATES, options),
        reduction=_choose("objective.reduction", config.reduction, REDUCTIONS, options, constant),
        kl=_penalty(config, with_kl),
        degenerate=_choose("objective.degenerate", config.degenerate, DEGENERATE, options, tolerance),
        entropy_coefficient=config.entropy,
        mismatch=_choose("objective.mismatch", config.mismatch, MISMATCH, options),
        off_policy=None if delta is None else mismatch.off_policy_sequences(delta),
    )


def build_controller(config: BetaConfig) -> Controller:
    """Returns the rule for beta."""
    options = asdict(config)
    first = {"beta": config.value}
    reads = ADAPTIVE[_known("beta.adaptive", config.adaptive, ADAPTIVE)].reads
    _require("beta", config.adaptive, options, [name for name in ("target", "horizon") if name in reads])
    final = _choose("beta.adaptive", config.adaptive, ADAPTIVE, options, first)
    if config.schedule == "none":
        _refuse_idle("beta.schedule", "none", options, SCHEDULES, set())
        return final
    ends = "target" if config.schedule == "linear_warmup" else "end"
    schedule = _choose("beta.schedule", config.schedule, SCHEDULES, options, {ends: config.value})
    if config.adaptive == "none":
        return schedule
    steps = _SCHEDULE_STEPS[config.schedule] if config.schedule_steps is None else config.schedule_steps
    return controllers.then(schedule, steps, final)


def build_reference(config: ReferenceConfig) -> Reference:
    """Returns the reference policy."""
    options = asdict(config)
    if config.kind == "copied_every":
        _require("reference", config.kind, options, ["every"])
    return _choose("reference.kind", config.kind, REFERENCES, options)


def build_optimizer(config: UpdateConfig) -> optax.GradientTransformation:
    """Returns Adam behind a clip of the gradient's norm, with weight decay where there is some."""
    shared = {"warmup_steps": config.warmup_steps, "max_norm": config.max_norm}
    if config.weight_decay:
        return updates.adamw(config.learning_rate, weight_decay=config.weight_decay, **shared)
    return updates.adam(config.learning_rate, **shared)


def _advantage(config: ObjectiveConfig, weights: tuple[float, ...]) -> Advantage:
    apart = config.advantage in APART
    if apart and len(weights) < 2:
        raise ValueError(
            f"objective.advantage={config.advantage} is for several rewards, but the task's is the only one; set "
            "reward.overlong_cache, or choose standardised"
        )
    bound = {"weights": weights} if apart else {}
    return _choose("objective.advantage", config.advantage, ADVANTAGES, asdict(config), bound)


def _penalty(config: ObjectiveConfig, with_kl: bool) -> Penalty | None:
    options = ("placement", "granularity", "importance", "allow_biased")
    given = {name: getattr(config, name) for name in options if getattr(config, name) is not None}
    if config.kl == "none" or not with_kl:
        why = "objective.kl=none" if config.kl == "none" else "beta.value=0"
        for name in (*options, "kl_clamp", *(["kl"] if config.kl != "none" else [])):
            if getattr(config, name) is not None:
                raise ValueError(f"objective.{name} has no effect with {why}; leave it out, or give beta and a KL term")
        return None
    if config.kl == "full":
        if config.kl_clamp is not None or config.granularity is not None:
            name = "granularity" if config.kl_clamp is None else "kl_clamp"
            raise ValueError(f"objective.{name} has no effect with objective.kl=full; leave it out")
        if "importance" in given:
            given["importance"] = _named("objective.importance", given["importance"], PREFIX_WEIGHTS)()
        return kl.full_vocabulary(**given)
    name = "k1" if config.kl is None else config.kl
    estimator = ESTIMATORS[_known("objective.kl", name, ESTIMATORS)]
    estimator = estimator if config.kl_clamp is None else kl.clamped(estimator, config.kl_clamp)
    if "importance" in given:
        given["importance"] = _named("objective.importance", given["importance"], IMPORTANCE)()
    return kl.penalty(estimator, **given)


def _check_reference_is_used(config: Config, controller: Controller) -> None:
    """Raises ValueError for a beta without a KL term, and for a reference that nothing reads."""
    if config.objective.kl == "none" and not controller.always_zero:
        raise ValueError(
            f"beta.value={config.beta.value} has no effect with objective.kl=none; set beta.value to 0, without "
            "schedule or adaptive rule, or leave objective.kl out"
        )
    if controller.always_zero and config.reference.kind != "frozen":
        raise ValueError(
            f"reference.kind={config.reference.kind} has no effect with beta.value=0, which needs no reference; leave "
            "it out, or give a positive beta.value"
        )


def _rewards(config: Config, task: Task, max_tokens: int) -> tuple[tuple[RewardFunction, ...], tuple[float, ...]]:
    cache, weight = config.reward.overlong_cache, config.reward.overlong_weight
    if cache is None:
        if weight is not None:
            raise ValueError(f"reward.overlong_weight={weight} has no effect without reward.overlong_cache; set both")
        return (task.reward,), (1.0,)
    if weight is not None and not weight > 0:
        raise ValueError(f"reward.overlong_weight is {weight}; give a positive number, or leave overlong_cache out")
    return (task.reward, overlong(max_tokens, cache)), (1.0, 1.0 if weight is None else weight)


def _choose(
    place: str,
    name: str,
    table: Mapping[str, Choice],
    options: Mapping[str, Any],
    bound: Mapping[str, Any] | None = None,
) -> Any:
    choice = table[_known(place, name, table)]
    _refuse_idle(place, name, options, table, set(choice.reads))
    given = {argument: options[field] for field, argument in choice.reads.items() if options[field] is not None}
    return choice.factory(**(bound or {}), **given)


def _refuse_idle(
    place: str, name: str, options: Mapping[str, Any], table: Mapping[str, Choice], read: set[str]
) -> None:
    """Raises ValueError for an option of some choice in the table that is set but not read by the one made."""
    section = place.split(".")[0]
    for field in sorted({field for choice in table.values() for field in choice.reads} - read):
        if options[field] is not None:
            readers = [other for other, choice in table.items() if field in choice.reads]
            raise ValueError(
                f"{section}.{field}={options[field]!r} has no effect with {place}={name}; leave it out, or choose "
                f"{place} from {', '.join(readers)}"
            )


def _require(section: str, name: str, options: Mapping[str, Any], fields: list[str]) -> None:
    for field in fields:
        if options[field] is None:
            raise ValueError(f"{section}.{field} is missing: {name} has no default for it; set --{section}.{field}")


def _known(place: str, name: str, table: Mapping[str, Any]) -> str:
    if name not in table:
        raise ValueError(f"{place} is {name!r}; choose one of {', '.join(table)}")
    return name


def _named(place: str, name: str, table: Mapping[str, Callable]) -> Callable:
    return table[_known(place, name, table)]
