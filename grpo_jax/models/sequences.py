"""Attention of a group's sequences: a prompt reads itself, completions read it and themselves."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from grpo_jax.models.attention import KeyValues, Source, attend, attend_in_chunks
from grpo_jax.models.segments import Marks, near, readable


def lengths(mask: Bool[Array, "P L"]) -> Int[Array, " P"]:
    """Returns how many tokens each prompt has."""
    return jnp.sum(mask, axis=1, dtype=jnp.int32)


def positions_in(mask: Bool[Array, "P L"]) -> Int[Array, "P L"]:
    """Returns each token's place in its prompt, from 0; that of the token before where there is none."""
    return jnp.cumsum(mask, axis=1) - 1


def prompt_readable(mask: Bool[Array, "P L"], t: Int[Array, "P G"], window: Any) -> Bool[Array, "P G L"]:
    """Returns which prompt tokens completion token number t of each member may read."""
    behind = (lengths(mask)[:, None] - jnp.cumsum(mask, axis=1))[:, None] + t[..., None] + 1
    return near(jnp.broadcast_to(mask[:, None], behind.shape), behind, window)


def laid_out(
    query: Float[Array, "*rows H D"], key: Float[Array, "*rows K D"], value: Float[Array, "*rows K D"]
) -> tuple[Float[Array, "*rows K R D"], KeyValues]:
    """Groups the queries of sequences by the head they read, and lays out keys and values to be read."""
    own = KeyValues(jnp.einsum("...tkd->...kdt", key), jnp.einsum("...tkd->...ktd", value))
    return query.reshape(*key.shape[:-1], -1, key.shape[-1]), own


def attend_prompts(
    query: Float[Array, "P L K R D"], own: KeyValues, mask: Bool[Array, "P L"], window: Any, queries_per_chunk: int
) -> Float[Array, "P L K R D"]:
    """Lets every prompt token read its own prompt up to itself."""
    marks = Marks(mask.astype(jnp.int32), positions_in(mask))

    def one(query: Array, own: KeyValues, marks: Marks) -> Array:
        sources = lambda some: (Source(own, readable(some, marks, window)),)  # noqa: E731
        return attend_in_chunks(query, marks, sources, queries_per_chunk)

    return jax.vmap(one)(query, own, marks)


def attend_rows(
    query: Float[Array, "P B S K R D"],
    own: KeyValues,
    marks: Marks,
    prompt: KeyValues,
    prompt_mask: Bool[Array, "P L"],
    window: Any,
    queries_per_chunk: int,
) -> Float[Array, "P B S K R D"]:
    """Lets every token of every row read its group's prompt, one operand, and its own completion up to itself."""

    def one(query: Array, own: KeyValues, marks: Marks, prompt: KeyValues, mask: Bool[Array, " L"]) -> Array:
        def sources(some: Marks) -> tuple[Source, Source]:
            read = prompt_readable(mask[None], some.steps[None], window)[0]
            return Source(prompt, read), Source(own, readable(some, marks, window))

        return attend_in_chunks(query, marks, sources, queries_per_chunk)

    each = 0 if marks.steps.ndim == 3 else None
    rows = jax.vmap(one, in_axes=(0, 0, each, None, None))
    return jax.vmap(rows, in_axes=(0, 0, each, 0, 0))(query, own, marks, prompt, prompt_mask)


def attend_members(
    query: Float[Array, "P G 1 K R D"],
    own: KeyValues,
    own_mask: Bool[Array, "P G S"],
    prompt: KeyValues,
    prompt_mask: Bool[Array, "P G L"],
) -> Float[Array, "P G 1 K R D"]:
    """Lets one token of every member read its group's prompt, which stays one operand, and its own tokens."""

    def one(query: Array, own: KeyValues, own_mask: Bool[Array, " S"], prompt: KeyValues, mask: Bool[Array, " L"]):
        return attend(query, (Source(prompt, mask[None]), Source(own, own_mask[None])))

    members = jax.vmap(one, in_axes=(0, 0, 0, None, 0))
    return jax.vmap(members)(query, own, own_mask, prompt, prompt_mask)
