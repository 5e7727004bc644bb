"""Penalty on completions that come near the token budget."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int


def overlong_penalty(max_tokens: int, cache: int) -> Callable[[Int[np.ndarray, " N"]], Float[np.ndarray, " N"]]:
    r"""Builds DAPO's soft overlong punishment as a function of lengths.

    .. math:: r(n) = -\min(1, \max(0, (n - (L - C)) / C))

    Args:
        max_tokens: L, the length in tokens from which the penalty is -1.
        cache: C, the tokens before L over which it grows, in ``[1, L]``.

    Returns:
        A function of lengths in tokens ``[N]`` (never characters, never the padded width) that returns penalties
        ``[N]`` in [-1, 0].

    Raises:
        ValueError: cache is not in [1, max_tokens].

    References:
        Yu et al. 2025, "DAPO", arXiv:2503.14476, equation 13. Lengths beyond L stay at -1.
    """
    if not 1 <= cache <= max_tokens:
        raise ValueError(f"cache {cache} of the overlong penalty: give 1 to max_tokens = {max_tokens} tokens")

    def penalty(lengths):
        return np.clip((max_tokens - cache - np.asarray(lengths)) / cache, -1.0, 0.0)

    return penalty


def overlong(max_tokens: int, cache: int) -> Callable[..., list[float]]:
    """Builds the reward function that charges ``overlong_penalty``.

    Args:
        max_tokens: the length in tokens from which the penalty is -1.
        cache: the tokens before it over which the penalty grows.

    Returns:
        A reward function that needs ``completion_ids``: token ids of every completion, without padding.

    Raises:
        ValueError: cache is not in [1, max_tokens].
    """
    penalty = overlong_penalty(max_tokens, cache)

    def overlong(
        prompts: Sequence[str],
        completions: Sequence[str],
        *,
        completion_ids: Sequence[Sequence[int]] | None = None,
        **columns: Any,
    ) -> list[float]:
        del prompts, completions, columns
        if completion_ids is None:
            raise ValueError("the overlong penalty counts tokens: pass completion_ids to score")
        return penalty(np.array([len(ids) for ids in completion_ids], np.int64)).tolist()

    return overlong
