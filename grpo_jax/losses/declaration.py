"""What a composed objective follows, and which compositions are refused."""

from grpo_jax.advantages import Advantage
from grpo_jax.kl import Penalty, Target
from grpo_jax.kl.targets import at_sampler_prefixes
from grpo_jax.losses.degenerate import Degenerate
from grpo_jax.losses.reductions import Reduction
from grpo_jax.losses.surrogates import Surrogate
from grpo_jax.losses.terms import Parts


def check_parts(advantage: Advantage, surrogate: Surrogate, kl: Penalty | None, degenerate: Degenerate) -> None:
    """Raises ValueError for parts that do not fit together, with the reason and the remedy."""
    per_token = (kl is not None and kl.token_cost is not None) or degenerate.shape is not None
    if per_token and not surrogate.per_token:
        raise ValueError(
            f"objective: {surrogate.name} has one advantage per completion, but the KL term or the degenerate rule "
            "gives each token its own; use surrogates.gspo_token(), or a KL term in the loss or reward"
        )
    if kl is None or kl.sequence_cost is None:
        return
    if advantage.across_batch is not None:
        raise ValueError(
            f"objective: {advantage.name} scales by the whole batch and would rescale beta with a KL term in the "
            "reward; use placement='to_go', which is added after it"
        )
    if not advantage.linear and not kl.allow_biased:
        raise ValueError(
            f"objective: a KL term in the reward would be fused with the task reward before {advantage.name}, which is "
            "not linear: groups with equal rewards would get advantages of unit scale whatever beta is. Use "
            "placement='to_go', or advantages.leave_one_out(), or a KL term with allow_biased=True to study it"
        )


SCALES = {"E[R]": lambda size: 1.0, "(G-1)/G * E[R]": lambda size: (size - 1) / size}
"""What a group of G multiplies the gradient of E[R], and of a KL term in the reward, by: for each ``reward_target``."""


def on_policy(parts: Parts) -> Target:
    """Returns the gradient that the KL term follows when the current policy sampled, up to a constant scale."""
    return Target() if parts.kl is None else _weakened(_reduced(parts.kl.target, parts.reduction), parts)


def off_policy(parts: Parts) -> Target:
    """Returns the gradient that the KL term follows when an older policy sampled, up to a constant scale."""
    kl = parts.kl
    if kl is None:
        return Target()
    cost = kl.cost_target
    if kl.loss is None or kl.placement == "both":
        cost = _corrected(kl, parts.surrogate)
    target = cost if kl.loss is None else kl.loss_off_policy.plus(cost)
    target = _weakened(_reduced(target, parts.reduction), parts)
    if parts.mismatch is not None or parts.off_policy is not None:
        return target.without("bounded mismatch weights correct for another sampler only in part")
    return target


def _weakened(target: Target, parts: Parts) -> Target:
    """Takes a declaration back where the weights of groups or the advantage's scale depend on the rewards."""
    if parts.degenerate.reweights:
        target = target.without(parts.degenerate.price)
    in_reward = parts.kl is not None and parts.kl.sequence_cost is not None
    if in_reward and parts.advantage.reward_target not in SCALES:
        target = target.without(f"{parts.advantage.name} rescales a KL term in the reward")
    return target


def notes(
    advantage: Advantage, kl: Penalty | None, degenerate: Degenerate, *, reweighted: bool = False
) -> tuple[str, ...]:
    """Returns what else the composition does to the expected gradient, a sentence each."""
    said = [f"reward: {advantage.name} follows {advantage.reward_target}"]
    if kl is not None and kl.sequence_cost is not None and advantage.reward_target != "E[R]":
        said.append(f"KL term: in the reward, {advantage.name} scales it as it scales E[R]: {advantage.reward_target}")
    if degenerate.price != "none":
        said.append(f"degenerate groups: {degenerate.name}: {degenerate.price}")
    if reweighted:
        said.append("mismatch: bounded or dropped weights bias every term wherever a bound is met")
    return tuple(said)


def _corrected(kl: Penalty, surrogate: Surrogate) -> Target:
    if surrogate.corrects == "sequence":
        return kl.cost_target
    if surrogate.corrects == "token" and kl.placement == "own_token":
        return at_sampler_prefixes(kl.cost_target)
    return kl.cost_target.without(f"{surrogate.name} does not correct the distribution of whole completions")


def _reduced(target: Target, reduction: Reduction) -> Target:
    if reduction.constant_denominator or target.none:
        return target
    if target.name == "zero" and reduction.per_length:
        return target._replace(length=target.constant)
    return target.without(f"{reduction.name} divides by lengths, which the policy chooses")
