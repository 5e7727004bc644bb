"""From a configuration to the parts of a run, validated."""

import dataclasses
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import optax

from grpo_jax import kl, updates
from grpo_jax.advantages import Advantage
from grpo_jax.components.checkpoint import Checkpoint, build_checkpoint
from grpo_jax.components.choices import choose, known, named, refuse_idle, require
from grpo_jax.components.problems import Given, build_task, given_rewards, own_rewards
from grpo_jax.components.tables import (
    ADAPTIVE,
    ADVANTAGES,
    APART,
    DEGENERATE,
    ESTIMATORS,
    IMPORTANCE,
    MISMATCH,
    PREFIX_WEIGHTS,
    REDUCTIONS,
    REFERENCES,
    SCHEDULE_STEPS,
    SCHEDULES,
    SURROGATES,
)
from grpo_jax.config import BetaConfig, Config, ModelConfig, ObjectiveConfig, ReferenceConfig, UpdateConfig
from grpo_jax.kl import Penalty, controllers
from grpo_jax.kl.controllers import Controller
from grpo_jax.losses import Objective, mismatch, objective
from grpo_jax.models import ONE_DEVICE, Adapters, DecoderConfig, Places, Policy, decoder, lora
from grpo_jax.rewards import RewardFunction, overlong, together
from grpo_jax.rollouts import Strategy, categorical
from grpo_jax.tasks import Task
from grpo_jax.types import Params
from grpo_jax.updates import Reference


class Parts(NamedTuple):
    """What a configuration stands for, validated.

    Attributes:
        task: the problems.
        policy: the decoder.
        policy_on: ``(places) -> Policy``, the same decoder for another mesh; see ``build``.
        strategy: how tokens are chosen.
        rewards: those of the task first, then what is added to them.
        task_rewards: how many are the task's.
        reward_weights: a weight each.
        rewards_apart: whether the objective takes the rewards one by one instead of their sum.
        objective: the loss.
        controller: the rule for beta.
        reference: the reference policy.
        optimizer: the optimizer.
        max_tokens: the completion budget.
        adapters: what is trained in place of the policy's own parameters. None: those.
        load: ``(shardings) -> params`` of a pretrained model. None: the policy starts from random values.
        save: ``(folder, params)``, writes a model as the pretrained one was laid out. None: there was none.
    """

    task: Task
    policy: Policy
    policy_on: Callable[[Places], Policy]
    strategy: Strategy
    rewards: tuple[RewardFunction, ...]
    task_rewards: int
    reward_weights: tuple[float, ...]
    rewards_apart: bool
    objective: Objective
    controller: Controller
    reference: Reference
    optimizer: optax.GradientTransformation
    max_tokens: int
    adapters: Adapters | None
    load: Callable[[Any], Params] | None
    save: Callable[[Path, Params], None] | None


def build(
    config: Config,
    places: Places = ONE_DEVICE,
    checkpoint: Checkpoint | None = None,
    task: Task | None = None,
) -> Parts:
    """Returns what a configuration stands for.

    Args:
        config: the run.
        places: where arrays with groups live.
        checkpoint: stands in for the model that ``config.model.path`` names, which is then not read.
        task: stands in for the problems that ``config.task`` describes, which are then not read.

    Raises:
        ValueError: a value out of range, an unknown name, an option without effect, or parts that do not fit together.
    """
    if checkpoint is None and config.model.path is not None:
        checkpoint = build_checkpoint(config.model)
    given = given_rewards(config.reward)
    if task is None:
        task = build_task(config.task, None if checkpoint is None else checkpoint.tokenizer, given)
    if config.warm_start.steps and task.demonstration is None:
        raise ValueError(
            f"warm_start.steps={config.warm_start.steps} needs right completions to imitate, and {task.name} has none "
            "(a file has them in a column 'completion'); set warm_start.steps to 0"
        )
    rollout = config.rollout
    max_tokens = _budget(config, task)
    own = own_rewards(config.reward, given, task)
    task = task._replace(reward=together(*own))  # so that evaluations too are scored under the time limit
    functions, weights = _rewards(config, own, max_tokens)
    controller = build_controller(config.beta)
    _check_reference_is_used(config, controller)
    policy_on = partial(decoder, _shape(config.model, task) if checkpoint is None else checkpoint.config)
    policy = policy_on(places)
    parts = Parts(
        task=task,
        policy=policy,
        policy_on=policy_on,
        strategy=categorical(rollout.temperature, rollout.top_k, rollout.top_p),
        rewards=functions,
        task_rewards=len(own.functions),
        reward_weights=weights,
        rewards_apart=config.objective.advantage in APART,
        objective=build_objective(config.objective, max_tokens, weights, with_kl=not controller.always_zero),
        controller=controller,
        reference=build_reference(config.reference),
        optimizer=build_optimizer(config.update),
        max_tokens=max_tokens,
        adapters=_adapters(config, policy),
        load=None if checkpoint is None else checkpoint.load,
        save=None if checkpoint is None else checkpoint.save,
    )
    _check_ratio_can_move(config)
    _check_lag_is_corrected(config, parts.objective)
    return parts


def _adapters(config: Config, policy: Policy) -> Adapters | None:
    model = config.model
    if model.lora_rank is None:
        for name in ("lora_alpha", "lora_targets"):
            if getattr(model, name) is not None:
                raise ValueError(f"model.{name} has no effect without model.lora_rank; set that, or leave it out")
        return None
    if model.path is None:
        raise ValueError(f"model.lora_rank={model.lora_rank} adapts a pretrained model; name one with model.path")
    if config.warm_start.steps:
        raise ValueError(
            f"model.lora_rank={model.lora_rank} with warm_start.steps={config.warm_start.steps}: a warm start trains "
            "the whole model; set warm_start.steps to 0"
        )
    shapes = jax.eval_shape(lambda: policy.init(key=jax.random.key(0)))
    chosen = {} if model.lora_targets is None else {"targets": tuple(model.lora_targets.split(","))}
    return lora(shapes, policy.logical_axes(), model.lora_rank, model.lora_alpha, **chosen)


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
        surrogate=choose("objective.surrogate", config.surrogate, SURROGATES, options),
        reduction=choose("objective.reduction", config.reduction, REDUCTIONS, options, constant),
        kl=_penalty(config, with_kl),
        degenerate=choose("objective.degenerate", config.degenerate, DEGENERATE, options, tolerance),
        entropy_coefficient=config.entropy,
        mismatch=choose("objective.mismatch", config.mismatch, MISMATCH, options),
        off_policy=None if delta is None else mismatch.off_policy_sequences(delta),
    )


def build_controller(config: BetaConfig) -> Controller:
    """Returns the rule for beta."""
    options = asdict(config)
    first = {"beta": config.value}
    reads = ADAPTIVE[known("beta.adaptive", config.adaptive, ADAPTIVE)].reads
    require("beta", config.adaptive, options, [name for name in ("target", "horizon") if name in reads])
    final = choose("beta.adaptive", config.adaptive, ADAPTIVE, options, first)
    if config.schedule == "none":
        refuse_idle("beta.schedule", "none", options, SCHEDULES, set())
        return final
    ends = "target" if config.schedule == "linear_warmup" else "end"
    schedule = choose("beta.schedule", config.schedule, SCHEDULES, options, {ends: config.value})
    if config.adaptive == "none":
        return schedule
    steps = SCHEDULE_STEPS[config.schedule] if config.schedule_steps is None else config.schedule_steps
    return controllers.then(schedule, steps, final)


def build_reference(config: ReferenceConfig) -> Reference:
    """Returns the reference policy."""
    options = asdict(config)
    if config.kind == "copied_every":
        require("reference", config.kind, options, ["every"])
    return choose("reference.kind", config.kind, REFERENCES, options)


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
            f"objective.advantage={config.advantage} is for several rewards, but the task's is the only one; name "
            "several in reward.functions, set reward.overlong_cache, or choose standardised"
        )
    bound = {"weights": weights} if apart else {}
    return choose("objective.advantage", config.advantage, ADVANTAGES, asdict(config), bound)


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
            given["importance"] = named("objective.importance", given["importance"], PREFIX_WEIGHTS)()
        return kl.full_vocabulary(**given)
    name = "k1" if config.kl is None else config.kl
    estimator = ESTIMATORS[known("objective.kl", name, ESTIMATORS)]
    estimator = estimator if config.kl_clamp is None else kl.clamped(estimator, config.kl_clamp)
    if "importance" in given:
        given["importance"] = named("objective.importance", given["importance"], IMPORTANCE)()
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


def _check_ratio_can_move(config: Config) -> None:
    """Raises ValueError for a bound on the ratio where every ratio is 1."""
    if config.update.updates_per_rollout > 1 or config.rollout.lag:
        return
    for field in ("clip_low", "clip_high", "dual_cap", "gate_positive", "gate_negative"):
        if getattr(config.objective, field) is not None:
            raise ValueError(
                f"objective.{field} has no effect with update.updates_per_rollout=1: the policy that sampled is the "
                "one that is updated, so every ratio is 1; leave it out, or take 2 or more updates or a rollout.lag"
            )


def _check_lag_is_corrected(config: Config, built: Objective) -> None:
    """Raises ValueError where completions of an older policy would count as the current one's."""
    surrogate = built.parts.surrogate
    if not config.rollout.lag or surrogate.corrects != "nothing" or config.objective.allow_biased:
        return
    raise ValueError(
        f"rollout.lag={config.rollout.lag} with objective.surrogate={config.objective.surrogate}: {surrogate.name} has "
        "no ratio to the policy that sampled, so neither reward nor KL term would follow anything, and runs collapse; "
        "use sequence_importance_weighted (exact), importance_weighted, clipped or cispo, or rollout.lag=0. With a KL "
        "term, objective.allow_biased=true studies it"
    )


def _shape(config: ModelConfig, task: Task) -> DecoderConfig:
    ours = {field.name for field in dataclasses.fields(DecoderConfig)}
    fields = {name: value for name, value in asdict(config).items() if name in ours}
    return DecoderConfig(vocabulary_size=task.tokenizer.vocabulary_size, **fields)


def _budget(config: Config, task: Task) -> int:
    found = task.max_completion_tokens if config.rollout.max_tokens is None else config.rollout.max_tokens
    if found is None:
        raise ValueError(
            f"rollout.max_tokens is missing: {task.name} does not know how long an answer is; set --rollout.max-tokens"
        )
    return found


def _rewards(config: Config, own: Given, max_tokens: int) -> tuple[tuple[RewardFunction, ...], tuple[float, ...]]:
    cache, weight = config.reward.overlong_cache, config.reward.overlong_weight
    if cache is None:
        if weight is not None:
            raise ValueError(f"reward.overlong_weight={weight} has no effect without reward.overlong_cache; set both")
        return own.functions, own.weights
    if weight is not None and not weight > 0:
        raise ValueError(f"reward.overlong_weight is {weight}; give a positive number, or leave overlong_cache out")
    charge = overlong(max_tokens, cache)
    return (*own.functions, charge), (*own.weights, 1.0 if weight is None else weight)
