"""Every name that a configuration can hold, and the factory it stands for."""

from collections.abc import Callable

from grpo_jax import advantages, kl, updates
from grpo_jax.components.choices import Choice
from grpo_jax.kl import controllers, importance
from grpo_jax.losses import degenerate, mismatch, reductions, surrogates

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
"""Values of ``objective.advantage``."""
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
"""Values of ``objective.surrogate``."""
ESTIMATORS: dict[str, Callable] = {
    "k1": kl.k1,
    "k2": kl.k2,
    "k3": kl.k3,
    "abs": kl.absolute,
    "k3_k2": kl.straight_through(kl.k3, kl.k2),
}
"""Values of ``objective.kl`` that are functions of the log-ratio."""
IMPORTANCE = {
    "none": importance.none,
    "token": importance.token,
    "prefix": importance.prefix,
    "sequence": importance.sequence,
    "causal": importance.causal,
    "detached_sequence": importance.detached_sequence,
}
"""Values of ``objective.importance`` for those estimators."""
PREFIX_WEIGHTS = {"none": kl.no_weights, "prefix": kl.prefix_weights, "causal": kl.causal_weights}
"""Values of ``objective.importance`` for the full-vocabulary KL."""
DEGENERATE = {
    "keep": Choice(degenerate.keep, {}),
    "mask": Choice(degenerate.mask, {"denominator": "denominator"}),
    "smooth": Choice(degenerate.smooth, {"denominator": "denominator", "smooth_scale": "scale"}),
    "entropy_shaped": Choice(degenerate.entropy_shaped, {"shaping_alpha": "alpha", "shaping_threshold": "threshold"}),
}
"""Values of ``objective.degenerate``."""
REDUCTIONS = {
    "constant_length": Choice(reductions.constant_length, {"constant": "length"}),
    "token_mean": Choice(reductions.token_mean, {}),
    "sequence_mean_of_token_mean": Choice(reductions.sequence_mean_of_token_mean, {}),
    "sequence_mean_of_token_sum": Choice(reductions.sequence_mean_of_token_sum, {}),
}
"""Values of ``objective.reduction``."""
MISMATCH = {
    "none": Choice(lambda: None, {}),
    "truncated_token": Choice(mismatch.truncated_token, {"mismatch_cap": "cap"}),
    "truncated_sequence": Choice(mismatch.truncated_sequence, {"mismatch_cap": "cap"}),
    "masked_token": Choice(mismatch.masked_token, _BOUNDS),
    "masked_sequence": Choice(mismatch.masked_sequence, _BOUNDS),
}
"""Values of ``objective.mismatch``."""
ADAPTIVE = {
    "none": Choice(controllers.constant, {}),
    "proportional": Choice(controllers.proportional, {**_ADAPTIVE, "alpha": "alpha"}),
    "proportional_integral": Choice(controllers.proportional_integral, {**_ADAPTIVE, "horizon": "horizon"}),
    "clipped_proportional": Choice(controllers.clipped_proportional, {**_ADAPTIVE, "horizon": "horizon"}),
}
"""Values of ``beta.adaptive``; "none" is the constant."""
SCHEDULES = {
    "linear_warmup": Choice(controllers.linear_warmup, {"schedule_start": "start", "schedule_steps": "steps"}),
    "tight_then_loose": Choice(controllers.tight_then_loose, {"schedule_start": "start", "schedule_steps": "steps"}),
}
"""Values of ``beta.schedule`` but "none"."""
SCHEDULE_STEPS = {"linear_warmup": 100, "tight_then_loose": 500}
"""Updates that each schedule takes by default."""
REFERENCES = {
    "frozen": Choice(updates.frozen, {}),
    "copied_every": Choice(updates.copied_every, {"every": "steps"}),
    "ema": Choice(updates.ema, {"every": "every", "rate": "rate"}),
    "behaviour": Choice(updates.behaviour, {}),
}
"""Values of ``reference.kind``."""
