"""Between text and the arrays that policies read and write."""

from collections.abc import Sequence

import numpy as np

from grpo_jax.tasks.task import Tokenizer
from grpo_jax.types import Prompts, Rollout


def encode_prompts(tokenizer: Tokenizer, texts: Sequence[str], width: int, rows: int | None = None) -> Prompts:
    """Encodes prompts, padded on the left so that every completion starts at the same column.

    Args:
        tokenizer: the tokenizer.
        texts: one prompt per group.
        width: columns of the result, in tokens.
        rows: rows of the result; those past the texts are padding groups (no prompt token). None: one per text.

    Returns:
        Prompts of shape ``[rows, width]``, NumPy int32 and bool.

    Raises:
        ValueError: a prompt is empty or longer than the width, or there are more prompts than rows.
    """
    rows = len(texts) if rows is None else rows
    if len(texts) > rows:
        raise ValueError(f"{len(texts)} prompts do not fit in {rows} rows: ask for at least as many rows")
    tokens = np.full((rows, width), tokenizer.pad_id, np.int32)
    mask = np.zeros((rows, width), bool)
    for row, text in enumerate(texts):
        ids = tokenizer.encode(text)
        if not ids:
            raise ValueError(f"prompt {row} is empty: a row without tokens is a padding group, use `rows` for those")
        if len(ids) > width:
            raise ValueError(
                f"prompt {row} has {len(ids)} tokens, the limit is {width}: raise the limit or drop it ({text!r})"
            )
        tokens[row, width - len(ids) :] = ids
        mask[row, width - len(ids) :] = True
    return Prompts(tokens, mask)  # pyright: ignore[reportArgumentType]  (NumPy until it is put on the devices)


def completion_ids(rollout: Rollout) -> list[list[int]]:
    """Returns each completion's token ids without padding, group by group.

    The mask says where a completion stops, so neither the padded width nor the value of a token decides its length.

    Args:
        rollout: completions ``[P, G, T]``.

    Returns:
        P * G lists of token ids, the end token included where there is one.
    """
    width = rollout.tokens.shape[-1]
    tokens = np.asarray(rollout.tokens).reshape(-1, width)
    mask = np.asarray(rollout.mask).reshape(-1, width)
    return [row[keep].tolist() for row, keep in zip(tokens, mask, strict=True)]


def decode(tokenizer: Tokenizer, rollout: Rollout) -> list[str]:
    """Returns each completion's text without its end token, group by group.

    Args:
        tokenizer: the tokenizer.
        rollout: completions ``[P, G, T]``.

    Returns:
        P * G texts; those of padding groups are empty.
    """
    texts = []
    for ids in completion_ids(rollout):
        ended = bool(ids) and ids[-1] in tokenizer.end_ids
        texts.append(tokenizer.decode(ids[:-1] if ended else ids))
    return texts


def rollout_from_texts(tokenizer: Tokenizer, prompts: Prompts, texts: Sequence[str], max_tokens: int) -> Rollout:
    """Encodes written completions as if they had been sampled: what a supervised warm start trains on.

    Args:
        tokenizer: the tokenizer; its first end token closes each text.
        prompts: prompts ``[P, L]``.
        texts: P * G completions, group by group.
        max_tokens: columns T of the completions, in tokens, end token included.

    Returns:
        A rollout ``[P, G, T]`` of NumPy arrays with log-probabilities 0. Completions of padding groups are ignored.

    Raises:
        ValueError: the texts are not a whole number per prompt, or one does not fit with its end token.
    """
    groups = prompts.tokens.shape[0]
    if not texts or len(texts) % groups:
        raise ValueError(f"{len(texts)} completions for {groups} prompts: give the same number, 1 or more, to each")
    shape = (groups, len(texts) // groups, max_tokens)
    tokens = np.full((len(texts), max_tokens), tokenizer.pad_id, np.int32)
    mask = np.zeros((len(texts), max_tokens), bool)
    for row, text in enumerate(texts):
        ids = [*tokenizer.encode(text), tokenizer.end_ids[0]]
        if len(ids) > max_tokens:
            raise ValueError(
                f"completion {row} has {len(ids)} tokens with its end token, the limit is {max_tokens}: "
                f"raise the limit or shorten it ({text!r})"
            )
        tokens[row, : len(ids)] = ids
        mask[row, : len(ids)] = True
    present = np.any(np.asarray(prompts.mask), axis=-1, keepdims=True)
    return Rollout(
        prompts=prompts,
        tokens=tokens.reshape(shape),  # pyright: ignore[reportArgumentType]
        mask=mask.reshape(shape) & present[:, :, None],  # pyright: ignore[reportArgumentType]
        log_probs=np.zeros(shape, np.float32),  # pyright: ignore[reportArgumentType]
        finished=np.broadcast_to(present, shape[:2]),  # pyright: ignore[reportArgumentType]
    )
