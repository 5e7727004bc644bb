"""The KL term: an estimator, a placement and an importance correction, with the gradient they follow.

Placements, for a completion whose estimates are k_1..k_T (token) or one k(U) (sequence):

| placement | what happens |
|---|---|
| ``loss`` | beta * sum_t k_t is added to the loss and differentiated path-wise |
| ``reward`` | beta * sum_t k_t is subtracted from the task reward, before the group's baseline |
| ``to_go`` | beta * sum_{j>=t} k_j is subtracted from the advantage of token t, after any normalisation |
| ``own_token`` | beta * k_t is subtracted from the advantage of token t alone, with no effect on earlier tokens |
| ``both`` | ``loss`` and ``to_go`` together, beta in each |

Nothing but the path-wise term is differentiated: the objective detaches every reward and advantage.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from grpo_jax.arguments import check_built
from grpo_jax.kl import importance as corrections
from grpo_jax.kl import targets
from grpo_jax.kl.estimators import Estimator, name_of
from grpo_jax.kl.importance import Importance
from grpo_jax.kl.targets import Target

Placement = Literal["loss", "reward", "to_go", "own_token", "both"]
Granularity = Literal["token", "sequence"]


class Tokens(NamedTuple):
    """What a KL term sees of one completion.

    Attributes:
        log_ratios: log pi - log p per token ``[T]``, nats; 0 where masked.
        policy_ratios: log pi - log pi_old per token ``[T]``; 0 where masked.
        mask: the completion's tokens ``[T]``.
        full_kl: exact KL of each next-token distribution ``[T]``; None unless the term needs it.
    """

    log_ratios: Float[Array, " T"]
    policy_ratios: Float[Array, " T"]
    mask: Bool[Array, " T"]
    full_kl: Float[Array, " T"] | None = None


class Penalty(NamedTuple):
    """A KL term as pure functions of one completion; an absent part is None.

    Attributes:
        estimator, placement, granularity, importance: what it is made of, by name.
        loss: ``Tokens -> [T]``, added to the loss, differentiable.
        sequence_cost: ``Tokens -> []``, subtracted from the reward before the baseline.
        token_cost: ``Tokens -> [T]``, subtracted from each token's advantage.
        target: what the loss part and the cost part follow together, on-policy.
        loss_off_policy: what the loss part follows when an older policy sampled.
        cost_target: what the cost part follows where the surrogate's ratio corrects it exactly (on-policy always).
        needs_full_kl: whether ``Tokens.full_kl`` must be there.
        allow_biased: whether a term that leads nowhere was accepted knowingly.
    """

    estimator: str
    placement: str
    granularity: str
    importance: str
    loss: Callable[[Tokens], Array] | None
    sequence_cost: Callable[[Tokens], Array] | None
    token_cost: Callable[[Tokens], Array] | None
    target: Target
    loss_off_policy: Target
    cost_target: Target
    needs_full_kl: bool = False
    allow_biased: bool = False

    @property
    def name(self) -> str:
        """What it is made of, in words."""
        return f"{self.estimator} in {self.placement}, {self.granularity}, importance {self.importance}"


def penalty(
    estimator: Estimator,
    placement: Placement = "to_go",
    granularity: Granularity = "token",
    importance: Importance | None = None,
    allow_biased: bool = False,
) -> Penalty:
    """Builds a KL term from an estimator that is a function of the log-ratio.

    Args:
        estimator: any elementwise function of u = log pi - log p, shipped or the user's own.
        placement: where it acts; see the module's table.
        granularity: ``token`` sums estimates of tokens, ``sequence`` estimates once from the summed log-ratio U.
        importance: correction of the loss term for samples of an older policy; None: ``importance.none()``. In the
            other placements the surrogate's ratio does this.
        allow_biased: accept a term with no restoring pull near the reference.

    Raises:
        ValueError: unknown names, an estimator that is not elementwise, a combination that has no meaning, or (unless
            ``allow_biased``) a term that leads nowhere, with the reason and what to use instead.
        TypeError: an importance correction that is its own factory, uncalled.
    """
    check_built("kl.penalty", Importance, importance=importance)
    _check_choice("placement", placement, ("loss", "reward", "to_go", "own_token", "both"))
    _check_choice("granularity", granularity, ("token", "sequence"))
    targets.check_elementwise(estimator)
    correction = corrections.none() if importance is None else importance
    whole = granularity == "sequence"
    if correction.name != "none" and placement != "loss":
        raise ValueError(
            f"kl.penalty: importance={correction.name} with placement={placement!r}; in the reward the surrogate's "
            "ratio is the correction, and 'both' would count it twice. Use placement='loss', or importance.none()"
        )
    if whole and placement == "own_token":
        raise ValueError("kl.penalty: a sequence has no token of its own; use granularity='token' with 'own_token'")
    if whole and correction.sequence is None:
        raise ValueError(
            f"kl.penalty: importance {correction.name} weighs single tokens; with granularity='sequence' use "
            "importance.sequence() or importance.detached_sequence()"
        )
    estimates = _sequence_estimates(estimator) if whole else lambda tokens: estimator(tokens.log_ratios)
    declare = correction.sequence if whole else correction.token
    assert declare is not None
    path, path_off_policy = declare(estimator) if placement in ("loss", "both") else (Target(), Target())
    cost = _cost_target(estimator, whole, placement)
    target = _both_target(estimator, whole, path, cost) if placement == "both" else path.plus(cost)

    def loss(tokens: Tokens) -> Float[Array, " T"]:
        return correction.weights(tokens.policy_ratios, tokens.mask) * estimates(tokens)

    term = Penalty(
        estimator=name_of(estimator),
        placement=placement,
        granularity=granularity,
        importance=correction.name,
        loss=loss if placement in ("loss", "both") else None,
        sequence_cost=(lambda tokens: _masked_sum(estimates(tokens), tokens.mask)) if placement == "reward" else None,
        token_cost=_token_cost(estimates, placement),
        target=target,
        loss_off_policy=path_off_policy,
        cost_target=cost,
        allow_biased=allow_biased,
    )
    return refuse_useless(term)


def _check_choice(field: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"kl.penalty: {field} is {value!r}; choose one of {', '.join(allowed)}")


def _masked_sum(values: Float[Array, " T"], mask: Bool[Array, " T"]) -> Float[Array, ""]:
    return jnp.sum(values, where=mask)


def _sequence_estimates(estimator: Estimator) -> Callable[[Tokens], Array]:
    # The one estimate k(U) stands at the last token, so that sums over tokens, and sums to go, contain it once.
    def estimates(tokens: Tokens) -> Float[Array, " T"]:
        value = estimator(jnp.sum(tokens.log_ratios, keepdims=True))
        positions = jnp.arange(tokens.mask.shape[0])
        last = jnp.max(jnp.where(tokens.mask, positions, -1))
        return jnp.where(positions == last, value, 0)

    return estimates


def to_go(values: Float[Array, " T"], mask: Bool[Array, " T"]) -> Float[Array, " T"]:
    """Returns sum_{j>=t} values_j over unmasked j, at every t; gaps in the mask carry the sum through."""
    return jnp.cumsum(jnp.where(mask, values, 0)[::-1])[::-1]


def _token_cost(estimates: Callable[[Tokens], Array], placement: str) -> Callable[[Tokens], Array] | None:
    if placement == "own_token":
        return estimates
    if placement in ("to_go", "both"):
        return lambda tokens: to_go(estimates(tokens), tokens.mask)
    return None


def _cost_target(estimator: Estimator, whole: bool, placement: str) -> Target:
    if placement == "loss":
        return Target()
    pull = targets.value_pull(estimator)
    if placement == "own_token":
        return targets.token_target(pull)
    return targets.sequence_target(pull) if whole else targets.return_target(pull)


def _both_target(estimator: Estimator, whole: bool, path: Target, cost: Target) -> Target:
    # For sequences f + f' is one weight and may be exact where neither part is.
    return targets.sequence_target(targets.total_pull(estimator)) if whole else path.plus(cost)


def refuse_useless(term: Penalty) -> Penalty:
    """Returns the term; raises ValueError where it does not lead back to the reference and that was not asked for."""
    target = term.target
    if term.allow_biased or target.slope > 1e-3:
        return term
    if target.name == "zero":
        reason = "its expected gradient is zero, because E[grad log pi] = 0"
    elif target.slope > -1e-3:
        reason = f"it follows {target.name}, whose pull vanishes near the reference"
    else:
        reason = f"it follows {target.name}, which pushes the policy away from the reference"
    raise ValueError(
        f"KL term '{term.name}': {reason}. Use kl.penalty(kl.k1, placement='to_go') or 'reward' (reverse KL), "
        "kl.penalty(kl.k2, placement='loss', granularity='sequence') (reverse KL), or kl.full_vocabulary('both'); "
        "or pass allow_biased=True to study it"
    )
