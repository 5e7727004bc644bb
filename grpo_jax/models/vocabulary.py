"""Scores from hidden states and a head, a few columns of a large vocabulary at a time."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from grpo_jax.models.attention import MASKED, wide
from grpo_jax.models.scoring import read_logits
from grpo_jax.models.transformer import project
from grpo_jax.types import Scores

LEAST = 1024
"""Columns below which taking fewer positions at a time is cheaper than taking fewer columns."""


class Chunk(NamedTuple):
    """How much of ``[P, B, S, V]`` to hold at a time: so many positions of S and so many columns of V."""

    positions: int
    columns: int


class Seen(NamedTuple):
    """What is known of one distribution per position after some of its columns.

    Attributes:
        peak: the largest logit so far. No gradient flows through it, since no result depends on it.
        total: sum over the columns v of ``exp(logit_v - peak)``.
    """

    peak: Float[Array, "*N"]
    total: Float[Array, "*N"]

    def and_more(self, logits: Float[Array, "*N c"]) -> "Seen":
        """Returns what is known after more columns."""
        peak = jnp.maximum(self.peak, jax.lax.stop_gradient(jnp.max(logits, axis=-1)))
        return Seen(peak, self.total * jnp.exp(self.peak - peak) + jnp.sum(jnp.exp(logits - peak[..., None]), axis=-1))


class Sums(NamedTuple):
    """What scores are made of, after some columns.

    Sums are weighted by ``exp(our logit_v - peak)`` and taken of logits less a peak: none overflows, and no small
    difference is lost in them.

    Attributes:
        ours: the policy's distribution.
        theirs: the reference's; the policy's again where there is no reference.
        chosen: logit of the chosen token; 0 until its column comes.
        own: weighted sum over v of ``our logit_v - peak``.
        cross: weighted sum over v of ``their logit_v - their peak``.
    """

    ours: Seen
    theirs: Seen
    chosen: Float[Array, "*N"]
    own: Float[Array, "*N"]
    cross: Float[Array, "*N"]

    def and_more(
        self, ours: Float[Array, "*N c"], theirs: Float[Array, "*N c"], is_chosen: Bool[Array, "*N c"]
    ) -> "Sums":
        """Returns the sums after more columns, of which at most one is the chosen token."""
        seen, reference = self.ours.and_more(ours), self.theirs.and_more(theirs)
        weights, kept = jnp.exp(ours - seen.peak[..., None]), jnp.exp(self.ours.peak - seen.peak)

        def weighted(before: Array, old: Seen, new: Seen, logits: Array) -> Array:
            rebased = (before + (old.peak - new.peak) * self.ours.total) * kept
            return rebased + jnp.sum(weights * (logits - new.peak[..., None]), axis=-1)

        return Sums(
            ours=seen,
            theirs=reference,
            chosen=self.chosen + jnp.sum(jnp.where(is_chosen, ours, 0), axis=-1),
            own=weighted(self.own, self.ours, seen, ours),
            cross=weighted(self.cross, self.theirs, reference, theirs),
        )

    def scores(self) -> Scores:
        """Returns log-prob, entropy and KL of the whole distributions."""
        log_total = jnp.log(self.ours.total)
        return Scores(
            log_probs=self.chosen - self.ours.peak - log_total,
            entropy=log_total - self.own / self.ours.total,
            full_kl=(self.own - self.cross) / self.ours.total - log_total + jnp.log(self.theirs.total),
        )


def chunk_of(rows: int, positions: int, vocabulary: int, logits: int) -> Chunk:
    """Returns what keeps the logits of ``rows`` rows at or under a number: fewer columns first, then fewer positions.

    Args:
        rows: rows of all groups of a device, P B.
        positions: length of a row, S.
        vocabulary: size of the vocabulary, V.
        logits: most logits to hold at a time; at least those of one position's ``LEAST`` columns are held.
    """
    columns = min(max(logits // (rows * positions), LEAST), vocabulary)
    return Chunk(min(max(logits // (rows * columns), 1), positions), columns)


def read_columns(
    heads: dict[str, Float[Array, "width V"]],
    temperature: float | Float[Array, ""],
    *,
    entropy: bool,
    columns: int,
    parts: int = 1,
) -> Callable[[dict[str, Array], Int[Array, "*N"]], Scores]:
    """Builds the function that scores positions from their hidden states, some columns of the head after others.

    Each column is read once and its gradient is written once; chunks of positions would add up a gradient of the whole
    head, chunk by chunk. Logits are computed anew in the backward pass.

    Args:
        heads: "ours" and, for the exact KL, "theirs".
        temperature: divides logits.
        entropy: whether to return entropies.
        columns: most columns to hold logits for at a time on a device, >= 1.
        parts: contiguous parts of the vocabulary with devices of their own, where their number divides it; each gives
            so many columns to every chunk, and none travels.

    Returns:
        ``(hidden states [*N width] by name, tokens [*N]) -> Scores`` with leaves ``[*N]``.
    """
    size = heads["ours"].shape[1]
    parts = parts if size % parts == 0 else 1
    if parts * columns >= size:
        logits = {of: lambda hidden, of=of: project(hidden[of], heads[of]) / temperature for of in heads}
        return read_logits(logits["ours"], logits.get("theirs"), entropy=entropy)
    count = _count(size, columns, parts)
    each = -(-size // (parts * count))

    def split(rows: Array) -> Array:
        if parts == 1:
            return rows.reshape(count, each, *rows.shape[1:])
        return jnp.swapaxes(rows.reshape(parts, count, each, *rows.shape[1:]), 0, 1)

    missing = parts * count * each - size
    rows = {of: split(jnp.pad(head.T, ((0, missing), (0, 0))) if missing else head.T) for of, head in heads.items()}
    chunks = (split(jnp.arange(size + missing)), rows)

    def read(hidden: dict[str, Array], tokens: Int[Array, "*N"]) -> Scores:
        def some(sums: Sums, chunk: tuple) -> tuple[Sums, None]:
            ids, rows = chunk
            ids = ids.reshape((1,) * tokens.ndim + (-1,))

            def logits(of: str) -> Array:
                found = project(hidden[of], rows[of].reshape(parts * each, -1).T) / temperature
                return jnp.where(ids < size, found, MASKED) if missing else found

            ours = logits("ours")
            return sums.and_more(ours, logits("theirs") if "theirs" in rows else ours, ids == tokens[..., None]), None

        zeros = (0 * tokens).astype(wide(hidden["ours"].dtype))  # on the devices of the tokens, under shard_map too
        nothing = Seen(zeros + MASKED, zeros)
        sums, _ = jax.lax.scan(
            jax.checkpoint(some, prevent_cse=False), Sums(nothing, nothing, zeros, zeros, zeros), chunks
        )
        found = sums.scores()
        return Scores(found.log_probs, found.entropy if entropy else None, found.full_kl if "theirs" in rows else None)

    return read


def _count(size: int, columns: int, parts: int) -> int:
    """Returns into how many chunks to divide the vocabulary; evenly, where up to twice as many as needed can do so."""
    least = -(-size // (parts * columns))
    return next((count for count in range(least, 2 * least) if size % (parts * count) == 0), least)
