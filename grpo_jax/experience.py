"""From the next prompts to a batch to learn from: sample, score, and (if asked) replace groups that teach nothing."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from grpo_jax import hosts
from grpo_jax.components import Parts
from grpo_jax.rewards import Rewards, score_part, some_scored, weighted_sum
from grpo_jax.shares import CHANNEL, Generate, ask, everyones
from grpo_jax.tasks import Example, columns_of, completion_ids, for_rewards
from grpo_jax.types import Batch, Params, Rollout
from grpo_jax.updates import pack


class Experience(NamedTuple):
    """What one update learns from, as NumPy arrays.

    Attributes:
        rollout: the completions ``[P, G, T]``, packed if asked for; padding groups last.
        batch: rewards, masks and the sampler's record.
        versions: updates behind the policy that sampled each group ``[P]``, int32.
        prompts: the prompts' texts, P without padding; those that other processes read are empty here.
        completions: the completions' texts, group by group; the same.
        consumed: training problems used up, kept or not.
        rounds: times that completions were sampled.
        measures: share of completions that ended by themselves, "finished"; where there are several rewards, the mean
            of each by its name; where completions are packed, the share of positions that hold none, "padding".
    """

    rollout: Rollout
    batch: Batch
    versions: np.ndarray
    prompts: list[str]
    completions: list[str]
    consumed: int
    rounds: int
    measures: dict[str, float]


class Collector(NamedTuple):
    """Collects experience; bound once.

    Attributes:
        parts: what the configuration stands for.
        generate: the sampler.
        groups: prompts per update, P.
        rows: rows of the compiled arrays, P rounded up to what the mesh needs.
        group_size: completions per prompt, G.
        extra_rounds: most rounds that replace degenerate groups.
        packing_widths: sizes that the bins of packed completions may have, see ``pack``. None: they are not packed.
    """

    parts: Parts
    generate: Generate
    groups: int
    rows: int
    group_size: int
    extra_rounds: int
    packing_widths: int | None = None

    def collect(self, params: Params, position: int, *, key: Key[Array, ""], version: int = 0) -> Experience:
        """Samples and scores the training problems from ``position`` on.

        With ``extra_rounds`` further problems are sampled until P groups are informative or the rounds are spent; then
        degenerate groups fill up what is missing, so that the batch always has P groups. Of several processes each
        reads, decodes and scores the problems on its own devices; what comes out is the same in all, but for the texts.

        Args:
            params: the policy's parameters.
            position: index of the next training problem.
            key: consumed; every round folds its number into it.
            version: updates behind the parameters, kept with every group.
        """
        found = self._round(params, position, jax.random.fold_in(key, 0))
        rounds = 1
        while rounds <= self.extra_rounds and np.sum(_live(self.parts, found)) < self.groups:
            start = position + rounds * self.groups
            found = _joined(found, self._round(params, start, jax.random.fold_in(key, rounds)))
            rounds += 1
        order = np.argsort(~_live(self.parts, found), kind="stable") if rounds > 1 else np.arange(self.groups)
        chosen = _picked(found, order[: self.groups])
        rollout, batch = _padded((chosen.rollout, chosen.batch), self.rows)
        rollout = rollout if self.packing_widths is None else pack(rollout, self.packing_widths)
        return Experience(
            rollout,
            batch,
            np.full(self.groups, version, np.int32),
            chosen.prompts,
            chosen.completions,
            consumed=rounds * self.groups,
            rounds=rounds,
            measures=_measures(chosen) | _padding(rollout),
        )

    def _round(self, params: Params, start: int, key: Any) -> "_Scored":
        asked = ask(self.parts.task, self.generate, params, "train", start, self.groups, self.rows, key=key)
        prompts, completions = [""] * self.groups, [""] * (self.groups * self.group_size)
        with hosts.together(CHANNEL):
            own = _scored_part(self.parts, asked.scored, asked.problems, asked.texts, self.group_size)
        size = self.group_size
        for number, row in enumerate(asked.share.scored):
            prompts[row] = asked.problems[number].prompt
            completions[row * size : (row + 1) * size] = asked.texts[number * size : (number + 1) * size]
        each, rollout = some_scored(Rewards(everyones(asked.share, own.values), own.names)), asked.rollout
        return _Scored(rollout, _batch(self.parts, rollout, each), each.values, each.names, prompts, completions)


class _Scored(NamedTuple):
    """Groups of one or several rounds; ``rewards`` are those of every function ``[N, G, K]``, under ``names``."""

    rollout: Rollout
    batch: Batch
    rewards: np.ndarray
    names: tuple[str, ...]
    prompts: list[str]
    completions: list[str]


def score(
    parts: Parts, rollout: Rollout, examples: Sequence[Example], completions: Sequence[str], group_size: int
) -> Batch:
    """Returns the batch that a rollout and its rewards make.

    Raises:
        ValueError, TypeError, RuntimeError: a reward function failed or returned what is no reward.
    """
    return _batch(parts, rollout, some_scored(_scored_part(parts, rollout, examples, completions, group_size)))


def _scored_part(
    parts: Parts, rollout: Rollout, examples: Sequence[Example], completions: Sequence[str], group_size: int
) -> Rewards:
    prompts, answers = for_rewards(examples, completions)
    columns, ids = columns_of(examples), completion_ids(rollout)
    return score_part(parts.rewards, prompts, answers, columns, group_size, completion_ids=ids)


def _batch(parts: Parts, rollout: Rollout, each: Rewards) -> Batch:
    own, weights = each.values[..., : parts.task_rewards], parts.reward_weights[: parts.task_rewards]
    # A completion that the task cannot score has no reward: what is added to it alone must not stand in.
    unknown = np.isnan(own).all(axis=-1, keepdims=True)
    known = np.where(unknown, np.float32(np.nan), each.values)
    shaped = len(parts.rewards) > parts.task_rewards
    apart = own[..., 0] if own.shape[-1] == 1 else own if parts.rewards_apart else weighted_sum(own, weights)
    return Batch(
        mask=rollout.mask,
        rewards=known if parts.rewards_apart else weighted_sum(known, parts.reward_weights),  # pyright: ignore
        valid=np.ones(rollout.mask.shape[:2], bool),  # pyright: ignore[reportArgumentType]
        task_rewards=apart if shaped else None,  # pyright: ignore[reportArgumentType]
        behaviour_log_probs=rollout.log_probs,
    )


def _measures(found: _Scored) -> dict[str, float]:
    measures = {"finished": float(np.mean(found.rollout.finished))}
    if len(found.names) > 1:
        for number, name in enumerate(found.names):
            known = found.rewards[..., number][~np.isnan(found.rewards[..., number])]
            if known.size:
                measures[f"reward_of_{name}"] = float(np.mean(known, dtype=np.float64))
    return measures


def _padding(rollout: Rollout) -> dict[str, float]:
    if rollout.packing is None:
        return {}
    return {"padding": float(np.mean(np.asarray(rollout.packing.members) == 0))}


def _live(parts: Parts, found: _Scored) -> np.ndarray:
    """Returns which groups are not degenerate ``[N]``, as the objective decides it."""
    raw = found.batch.rewards if found.batch.task_rewards is None else found.batch.task_rewards
    member = np.isfinite(raw) & np.any(found.rollout.mask, axis=-1)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        spread = jax.vmap(parts.objective.parts.advantage.spread)(jnp.asarray(raw), jnp.asarray(member))
    return np.asarray(spread) > parts.objective.parts.degenerate.tolerance


def _joined(first: _Scored, second: _Scored) -> _Scored:
    rollout, batch, rewards = jax.tree.map(
        lambda a, b: np.concatenate([a, b]),
        (first.rollout, first.batch, first.rewards),
        (second.rollout, second.batch, second.rewards),
    )
    prompts, completions = first.prompts + second.prompts, first.completions + second.completions
    return _Scored(rollout, batch, rewards, first.names, prompts, completions)


def _picked(found: _Scored, order: np.ndarray) -> _Scored:
    size = len(found.completions) // len(found.prompts)
    rollout, batch, rewards = jax.tree.map(
        lambda leaf: np.asarray(leaf)[order], (found.rollout, found.batch, found.rewards)
    )
    completions = [found.completions[group * size + member] for group in order for member in range(size)]
    return _Scored(rollout, batch, rewards, found.names, [found.prompts[group] for group in order], completions)


def _padded(tree: Any, rows: int) -> Any:
    """Appends padding groups (all zeros and False) up to ``rows``."""
    return jax.tree.map(lambda leaf: np.pad(leaf, [(0, rows - leaf.shape[0])] + [(0, 0)] * (leaf.ndim - 1)), tree)
