"""Sums in token space: a task whose prompts, rewards and demonstrations never leave the device.

"37+58=" is answered by its digits from the last to the first, "59" and the end. The typical slip works digit by digit
and forgets every carry or borrow: "58". Four kinds of problem share one vocabulary; a run is rewarded for the first
alone, and the other three show what happens to what the policy knew besides.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from grpo_jax import Prompts, Rollout

SYMBOLS = "0123456789+-= ."
"""Every token by its id; the full stop ends a completion."""
END = SYMBOLS.index(".")
MAX_PROMPT, MAX_TOKENS = 8, 5
KINDS = ("sums", "longer", "operators", "format")
"""Two-digit sums (what is trained on), three-digit sums, two-digit differences, and sums with the sign behind."""
_HELD_OUT = 10
"""One pair of operands in so many is never trained on."""


class Problems(NamedTuple):
    """N problems with their right completion and the one with the typical slip, which often are the same.

    Attributes:
        prompts: ``[N, L]``.
        right: tokens of the right completion, the end included ``[N, T]``.
        right_mask: where it has tokens ``[N, T]``.
        slip: tokens of the slip ``[N, T]``.
        slip_mask: where it has tokens ``[N, T]``.
    """

    prompts: Prompts
    right: Int[Array, "N T"]
    right_mask: Bool[Array, "N T"]
    slip: Int[Array, "N T"]
    slip_mask: Bool[Array, "N T"]

    def at(self, rows: Int[Array, " M"]) -> "Problems":
        """Returns the problems of those numbers."""
        return jax.tree.map(lambda leaf: leaf[rows], self)


def problems(kind: str, held_out: bool, count: int | None = None, seed: int = 0) -> Problems:
    """Builds the problems of a kind, in an order of their own.

    Args:
        kind: of ``KINDS``.
        held_out: those that are never trained on, or those that are.
        count: at most so many; None: all.
        seed: of the order.
    """
    numbers = 1000 if kind == "longer" else 100
    order = np.random.default_rng((seed, KINDS.index(kind))).permutation(numbers**2)
    aside = order[: numbers**2 // _HELD_OUT] if held_out else order[numbers**2 // _HELD_OUT :]
    pairs = np.stack(np.divmod(aside if count is None else aside[:count], numbers), axis=1)
    if kind == "operators":
        pairs = np.sort(pairs, axis=1)[:, ::-1]  # a difference is never negative
    rows = [_row(kind, int(a), int(b)) for a, b in pairs]
    prompts, right, slip = (_padded([row[part] for row in rows], width) for part, width in _WIDTHS)
    return Problems(Prompts(*prompts), *right, *slip)


def without(part: Problems, others: Problems) -> Problems:
    """Returns the problems whose prompt is none of the others': a difference, unlike a sum, is found twice."""
    known = {row.tobytes() for row in np.asarray(others.prompts.tokens)}
    return part.at(jnp.array([row.tobytes() not in known for row in np.asarray(part.prompts.tokens)]))


def blended(parts: Sequence[tuple[Problems, float]], count: int) -> Problems:
    """Returns that many problems, of each part its share; parts with fewer are gone through again. Shares sum to 1."""
    taken = [part.at(jnp.arange(round(share * count)) % part.right.shape[0]) for part, share in parts]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *taken)


def unrewarded(part: Problems) -> Problems:
    """Returns the same prompts with no right completion, so that every reward is 0 and a KL term alone acts on them."""
    return part._replace(right_mask=jnp.zeros_like(part.right_mask))


_WIDTHS = ((0, MAX_PROMPT), (1, MAX_TOKENS), (2, MAX_TOKENS))


def _row(kind: str, a: int, b: int) -> tuple[str, str, str]:
    digits = 3 if kind == "longer" else 2
    sign = -1 if kind == "operators" else 1
    first, second = f"{a:0{digits}}", f"{b:0{digits}}"
    prompt = {"operators": f"{first}-{second}=", "format": f"{first} {second}+="}.get(kind, f"{first}+{second}=")
    slip = sum((int(x) + sign * int(y)) % 10 * 10**place for place, (x, y) in _places(first, second))
    return prompt, f"{a + sign * b}"[::-1] + ".", f"{slip}"[::-1] + "."


def _places(first: str, second: str) -> enumerate:
    return enumerate(zip(reversed(first), reversed(second), strict=True))


def _padded(texts: list[str], width: int) -> tuple[Array, Array]:
    tokens = np.full((len(texts), width), END, np.int32)
    mask = np.zeros((len(texts), width), bool)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = [SYMBOLS.index(symbol) for symbol in text]
        mask[row, : len(text)] = True
    return jnp.asarray(tokens), jnp.asarray(mask)


def mixture(parts: dict[str, Problems], shares: dict[str, float], count: int, slips: float, *, key: Key[Array, ""]):
    """Draws demonstrations: problems of every kind by its share, some of them with the slip.

    Args:
        parts: problems by kind.
        shares: of the batch, by kind; sum 1.
        count: demonstrations.
        slips: share of demonstrations that forget every carry, in [0, 1].
        key: consumed.

    Returns:
        The demonstrations as a rollout of groups of one ``[count, 1, T]``.
    """
    rows, flip = jax.random.split(key)
    sizes = [round(shares[kind] * count) for kind in parts]
    keys = jax.random.split(rows, len(sizes))
    drawn = [draw(parts[kind], size, key=each) for kind, size, each in zip(parts, sizes, keys, strict=True)]
    joined: Problems = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *drawn)
    wrong = jax.random.bernoulli(flip, slips, (joined.right.shape[0], 1))
    tokens, mask = jnp.where(wrong, joined.slip, joined.right), jnp.where(wrong, joined.slip_mask, joined.right_mask)
    return as_rollout(joined.prompts, tokens, mask)


def draw(part: Problems, count: int, *, key: Key[Array, ""]) -> Problems:
    """Draws problems with replacement. Consumes the key."""
    return part.at(jax.random.randint(key, (count,), 0, part.right.shape[0]))


def as_rollout(prompts: Prompts, tokens: Int[Array, "N T"], mask: Bool[Array, "N T"]) -> Rollout:
    """Writes one given completion per prompt as a rollout, so that a policy can score it."""
    mask = mask[:, None]
    return Rollout(prompts, tokens[:, None], mask, jnp.zeros(mask.shape), jnp.any(mask, axis=-1))


def is_right(asked: Problems, rollout: Rollout) -> Float[Array, "P G"]:
    """Rewards 1 where a completion is the right one to the end, 0 otherwise."""
    right, right_mask = asked.right[:, None], asked.right_mask[:, None]
    same = jnp.where(right_mask, rollout.tokens == right, True) & (rollout.mask == right_mask)
    return jnp.all(same, axis=-1).astype(jnp.float32)
