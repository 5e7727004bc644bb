"""A decoder-only transformer as a policy: one block for prompts, scoring and decoding, behind pure functions."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from grpo_jax.models.architecture import DecoderConfig
from grpo_jax.models.attention import KeyValues
from grpo_jax.models.places import ONE_DEVICE, Places
from grpo_jax.models.policy import Policy, Prefix
from grpo_jax.models.scoring import score_positions
from grpo_jax.models.segments import Rows, near, put_back, rows_of
from grpo_jax.models.sequences import (
    attend_members,
    attend_prompts,
    attend_rows,
    laid_out,
    lengths,
    positions_in,
    prompt_readable,
)
from grpo_jax.models.transformer import Network
from grpo_jax.models.vocabulary import chunk_of, read_columns
from grpo_jax.types import Params, Prompts, Rollout, Scores


def decoder(config: DecoderConfig, places: Places = ONE_DEVICE) -> Policy:
    """Builds the policy of a small decoder: RMSNorm, rotary grouped-query attention, SwiGLU.

    The prompt of a group runs once; its G completions attend to the prompt's keys and to their own. Scoring is one pass
    over both, decoding the same with one token and a cache, so their log-probabilities agree to rounding. The first
    completion token is predicted at the prompt's last token. Positions count tokens, not columns, so padding on either
    side changes nothing.

    Args:
        config: shape and numerics.
        places: where arrays with groups live.

    Returns:
        The policy. Its params are a nested dict of float32 arrays.
    """
    abstract = nnx.eval_shape(lambda: Network(config, places.pin, rngs=nnx.Rngs(0)))
    graphdef, description = nnx.split(abstract)
    bound = _Decoder(config, graphdef, places)

    def init(*, key: Key[Array, ""]) -> Params:
        return nnx.to_pure_dict(nnx.state(Network(config, places.pin, rngs=nnx.Rngs(params=key)), nnx.Param))

    def logical_axes() -> Any:
        is_variable = lambda leaf: isinstance(leaf, nnx.Variable)  # noqa: E731
        axes = jax.tree.map(lambda leaf: leaf.get_metadata("logical_axes"), description, is_leaf=is_variable)
        return nnx.to_pure_dict(axes)

    return Policy(
        init=init,
        prefill=bound.prefill,
        empty_cache=bound.empty_cache,
        decode=bound.decode,
        score=bound.score,
        logical_axes=logical_axes,
        vocabulary_size=config.vocabulary_size,
        row_axis=int(config.scan_layers),
    )


class _Decoder(NamedTuple):
    """Config and graph definition, bound once; every method is a pure function of its arguments."""

    config: DecoderConfig
    graphdef: Any
    places: Places

    def prefill(self, params: Params, prompts: Prompts) -> Prefix:
        """Runs every prompt once; see ``Policy``."""
        last, memory = self._read_prompts(params, prompts)
        logits = self._network(params).logits(last)
        return Prefix(memory, prompts.mask, lengths(prompts.mask), logits)

    def empty_cache(self, P: int, G: int, T: int) -> Any:
        """Returns zeroed keys ``[P, G, K, D, T]`` and values ``[P, G, K, T, D]`` per layer."""
        heads, width, dtype = self.config.kv_heads, self.config.head_dim, self.config.dtype

        def zeros(*leading: int) -> KeyValues:
            return KeyValues(
                keys=jnp.zeros((*leading, P, G, heads, width, T), dtype),
                values=jnp.zeros((*leading, P, G, heads, T, width), dtype),
            )

        return zeros(self.config.layers) if self.config.scan_layers else (zeros(),) * self.config.layers

    def decode(
        self,
        params: Params,
        prefix: Prefix,
        cache: Any,
        tokens: Int[Array, "P G"],
        t: Int[Array, "P G"],
        step: Int[Array, ""],
    ) -> tuple[Float[Array, "P G V"], Any]:
        """Reads completion token number t of every member; see ``Policy``.

        The columns of the cache are a ring. At a step all members write the same one, so that the write is a slice in
        place; how many steps ago a column was written says whether the token in it belongs to what the member reads.
        """
        network = self._network(params)

        def attention(memory: tuple[KeyValues, KeyValues], window: Any, query: Array, key: Array, value: Array):
            prompt, cache = memory
            query, own = laid_out(*(x.reshape(*tokens.shape, 1, *x.shape[1:]) for x in (query, key, value)))
            columns = cache.values.shape[3]
            write = partial(jax.lax.dynamic_update_slice_in_dim, start_index=step % columns)
            own = KeyValues(
                keys=write(cache.keys, own.keys.astype(cache.keys.dtype), axis=4),
                values=write(cache.values, own.values.astype(cache.values.dtype), axis=3),
            )
            behind = jnp.broadcast_to((step - jnp.arange(columns)) % columns, (*t.shape, columns))
            readable = near(behind <= t[..., None], behind, window)
            read = attend_members(query, own, readable, prompt, prompt_readable(prefix.mask, t, window))
            return read.reshape(-1, self.config.heads, self.config.head_dim), own

        positions = prefix.lengths[:, None] + t
        memories = (prefix.memory, cache) if self.config.scan_layers else tuple(zip(prefix.memory, cache, strict=True))
        hidden, cache = network(tokens.reshape(-1), positions.reshape(-1), attention, memories)
        return network.logits(hidden).reshape(*tokens.shape, -1), cache

    def score(
        self,
        params: Params,
        rollout: Rollout,
        temperature: float | Float[Array, ""],
        *,
        entropy: bool = False,
        ref_params: Params | None = None,
    ) -> Scores:
        """Scores a rollout's tokens; see ``Policy``."""
        rows, prompts = rows_of(rollout), rollout.prompts
        read = {"ours": params} if ref_params is None else {"ours": params, "theirs": jax.lax.stop_gradient(ref_params)}
        hidden = {of: self._predictors(params, prompts, rows) for of, params in read.items()}
        heads = {of: self._network(params).readout() for of, params in read.items()}

        def score(heads: dict[str, Array], groups: tuple) -> Scores:
            hidden, tokens, mask = groups
            (groups, bins, positions), size = tokens.shape, self.config.vocabulary_size
            chunk = chunk_of(groups * bins, positions, size, self.config.logits_per_chunk)
            read = read_columns(
                heads, temperature, entropy=entropy, columns=chunk.columns, parts=self.places.vocabulary_parts
            )
            return score_positions(read, tokens, mask, hidden, positions_per_chunk=chunk.positions)

        scores = self.places.apart(score, heads, (hidden, rows.tokens, rows.mask), hidden["ours"].dtype)
        return jax.tree.map(lambda values: put_back(values, rollout), scores)

    def _network(self, params: Params) -> Network:
        return nnx.merge(self.graphdef, params)

    def _queries_per_chunk(self, groups: int, rows: int, keys: int) -> int:
        """Returns how many queries of each row of a group to attend with at a time, for the groups of a device."""
        here = groups if groups % self.places.parts else groups // self.places.parts
        return max(1, self.config.attention_logits_per_chunk // (here * rows * self.config.heads * keys))

    def _read_prompts(self, params: Params, prompts: Prompts) -> tuple[Float[Array, "P width"], Any]:
        """Returns the hidden state at each prompt's last token, and keys and values per layer."""
        tokens, mask = prompts

        def attention(_: None, window: Any, query: Array, key: Array, value: Array):
            query, own = laid_out(*(x.reshape(*mask.shape, *x.shape[1:]) for x in (query, key, value)))
            read = attend_prompts(query, own, mask, window, self._queries_per_chunk(mask.shape[0], 1, mask.shape[1]))
            return read.reshape(-1, self.config.heads, self.config.head_dim), own

        safe, positions = jnp.where(mask, tokens, 0).reshape(-1), positions_in(mask).reshape(-1)
        hidden, memory = self._network(params)(safe, positions, attention, None)
        return _last(hidden.reshape(*mask.shape, -1), mask), memory

    def _predictors(self, params: Params, prompts: Prompts, rows: Rows) -> Float[Array, "P B S width"]:
        """Returns the hidden state that predicts each completion token: the one before it.

        A group's prompt and completions go through the layers as one list of tokens: each weight is read once, and has
        one gradient.
        """
        (tokens, mask), shape, steps = prompts, rows.tokens.shape, rows.marks.steps
        groups, width = mask.shape
        in_prompts = self._queries_per_chunk(groups, 1, width)
        in_rows = self._queries_per_chunk(groups, shape[1], shape[2] + width)

        def joined(prompts: Array, rows: Array) -> Array:
            return jnp.concatenate([prompts, rows.reshape(groups, shape[1] * shape[2], *rows.shape[3:])], axis=1)

        def parted(x: Array) -> tuple[Array, Array]:
            x = x.reshape(groups, -1, *x.shape[1:])
            return x[:, :width], x[:, width:].reshape(*shape, *x.shape[2:])

        def attention(_: None, window: Any, query: Array, key: Array, value: Array):
            parts = zip(*(parted(x) for x in (query, key, value)), strict=True)
            (query, prompt), (queries, own) = (laid_out(*part) for part in parts)
            read = attend_prompts(query, prompt, mask, window, in_prompts)
            written = attend_rows(queries, own, rows.marks, prompt, mask, window, in_rows)
            return joined(read, written).reshape(-1, self.config.heads, self.config.head_dim), None

        after = lengths(mask)[:, None, None] + (steps[None, None] if steps.ndim == 1 else steps)
        safe = joined(jnp.where(mask, tokens, 0), rows.tokens).reshape(-1)
        positions = joined(positions_in(mask), jnp.broadcast_to(after, shape)).reshape(-1)
        hidden, _ = self._network(params)(safe, positions, attention, None)
        read, written = parted(hidden)
        before = jnp.pad(written[:, :, :-1], ((0, 0), (0, 0), (1, 0), (0, 0)))
        begins = jnp.broadcast_to(steps == 0, shape)[..., None]
        return jnp.where(begins, _last(read, mask)[:, None, None], before)


def _last(hidden: Float[Array, "P L width"], mask: Bool[Array, "P L"]) -> Float[Array, "P width"]:
    """Returns the hidden state at each prompt's last token."""
    last = jnp.max(jnp.where(mask, jnp.arange(mask.shape[1])[None], 0), axis=1)
    # under vmap the groups stay apart, and no device asks another for its own
    return jax.vmap(lambda hidden, last: hidden[last])(hidden, last)
