"""A sampler that says what it is told."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from grpo_jax.tasks.task import Tokenizer
from grpo_jax.types import Prompts, Rollout


def scripted_sampler(
    tokenizer: Tokenizer,
    script: Callable[[str], Sequence[str]],
    group_size: int,
    max_tokens: int,
    log_prob: float = -0.5,
) -> Callable[..., Rollout]:
    """Builds a stand-in for a sampler that writes given completions, cut at the budget as a sampler would.

    Args:
        tokenizer: the tokenizer.
        script: a prompt's text -> its G completions; ``dict.__getitem__`` will do.
        group_size: completions per prompt, G.
        max_tokens: budget T, in tokens, end token included.
        log_prob: log-probability recorded for every token.

    Returns:
        ``generate(params, prompts, *, key) -> Rollout``. It reads prompts on the host, so it cannot be traced; params
        and key are ignored. Padding groups get empty, unfinished completions.

    Raises:
        ValueError: (when called) the script does not give G completions for a prompt.
    """

    def generate(params: Any, prompts: Prompts, *, key: Key[Array, ""] | None = None) -> Rollout:
        del params, key
        shape = (prompts.tokens.shape[0], group_size, max_tokens)
        tokens = np.full(shape, tokenizer.pad_id, np.int32)
        mask = np.zeros(shape, bool)
        finished = np.zeros(shape[:2], bool)
        for group, member, text in _lines(tokenizer, script, group_size, prompts):
            ids = [*tokenizer.encode(text), tokenizer.end_ids[0]]
            length = min(len(ids), max_tokens)
            tokens[group, member, :length] = ids[:length]
            mask[group, member, :length] = True
            finished[group, member] = length == len(ids)
        log_probs = np.where(mask, np.float32(log_prob), np.float32(0))
        return Rollout(
            prompts, jnp.asarray(tokens), jnp.asarray(mask), jnp.asarray(log_probs), jnp.asarray(finished)
        ).check()

    return generate


def _lines(tokenizer: Tokenizer, script: Callable[[str], Sequence[str]], group_size: int, prompts: Prompts):
    """Yields group, member and completion of every prompt that has tokens."""
    for group, (ids, present) in enumerate(zip(np.asarray(prompts.tokens), np.asarray(prompts.mask), strict=True)):
        if not present.any():
            continue
        text = tokenizer.decode(ids[present].tolist())
        completions = script(text)
        if len(completions) != group_size:
            raise ValueError(f"the script has {len(completions)} completions for {text!r}, expected {group_size}")
        for member, completion in enumerate(completions):
            yield group, member, completion
