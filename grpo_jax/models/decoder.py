"""A decoder-only transformer as a policy: one block for prompts, scoring and decoding, behind pure functions."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from grpo_jax.models.architecture import DecoderConfig
from grpo_jax.models.attention import KeyValues, Source, attend, attend_in_chunks
from grpo_jax.models.places import ONE_DEVICE, Places
from grpo_jax.models.policy import Policy, Prefix
from grpo_jax.models.scoring import score_positions
from grpo_jax.models.segments import Marks, Rows, near, put_back, readable, rows_of
from grpo_jax.models.transformer import Network, project
from grpo_jax.types import Params, Prompts, Rollout, Scores


def decoder(config: DecoderConfig, places: Places = ONE_DEVICE) -> Policy:
    """Builds the policy of a small decoder: RMSNorm, rotary grouped-query attention, SwiGLU.

    The prompt of a group runs once; its G completions attend to the prompt's keys and to their own. Scoring is the
    prompt's pass and one causal pass over the completions, decoding the same with one token and a cache, so their
    log-probabilities agree to rounding. The first completion token is predicted at the prompt's last token. Positions
    count tokens, not columns, so padding on either side changes nothing.

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
        return Prefix(memory, prompts.mask, _lengths(prompts.mask), logits)

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
            query, own = _rows((*tokens.shape, 1), query, key, value)
            columns = cache.values.shape[3]
            write = partial(jax.lax.dynamic_update_slice_in_dim, start_index=step % columns)
            own = KeyValues(
                keys=write(cache.keys, own.keys.astype(cache.keys.dtype), axis=4),
                values=write(cache.values, own.values.astype(cache.values.dtype), axis=3),
            )
            behind = jnp.broadcast_to((step - jnp.arange(columns)) % columns, (*t.shape, columns))
            readable = near(behind <= t[..., None], behind, window)
            return _attend_members(query, own, readable, prompt, _prompt_readable(prefix.mask, t, window)), own

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
            def logits(of: str):
                return lambda hidden: project(hidden[of], heads[of]) / temperature

            hidden, tokens, mask = groups
            per_position = tokens.shape[0] * tokens.shape[1] * self.config.vocabulary_size
            return score_positions(
                logits("ours"),
                None if ref_params is None else logits("theirs"),
                tokens,
                mask,
                hidden,
                entropy=entropy,
                positions_per_chunk=max(1, self.config.logits_per_chunk // per_position),
            )

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
        groups, width = mask.shape
        positions = jnp.cumsum(mask, axis=1) - 1
        marks = Marks(mask.astype(jnp.int32), positions)
        size = self._queries_per_chunk(groups, 1, width)

        def attention(_: None, window: Any, query: Array, key: Array, value: Array):
            query, own = _rows((groups, width), query, key, value)

            def one(query: Array, own: KeyValues, marks: Marks) -> Array:
                sources = lambda some: (Source(own, readable(some, marks, window)),)  # noqa: E731
                return attend_in_chunks(query, marks, sources, size)

            return jax.vmap(one)(query, own, marks).reshape(groups * width, -1, self.config.head_dim), own

        safe = jnp.where(mask, tokens, 0)
        hidden, memory = self._network(params)(safe.reshape(-1), positions.reshape(-1), attention, None)
        last = jnp.max(jnp.where(mask, jnp.arange(width)[None], 0), axis=1)
        # under vmap the groups stay apart, and no device asks another for its own
        return jax.vmap(lambda hidden, last: hidden[last])(hidden.reshape(groups, width, -1), last), memory

    def _predictors(self, params: Params, prompts: Prompts, rows: Rows) -> Float[Array, "P B S width"]:
        """Returns the hidden state that predicts each completion token: the one before it."""
        last, memory = self._read_prompts(params, prompts)
        shape, steps = rows.tokens.shape, rows.marks.steps
        size = self._queries_per_chunk(shape[0], shape[1], shape[2] + prompts.mask.shape[1])

        def attention(prompt: KeyValues, window: Any, query: Array, key: Array, value: Array):
            query, own = _rows(shape, query, key, value)
            return _attend_rows(query, own, rows.marks, prompt, prompts.mask, window, size), own

        lengths = _lengths(prompts.mask)[:, None, None]
        positions = lengths + (steps[None, None] if steps.ndim == 1 else steps)
        positions = jnp.broadcast_to(positions, shape).reshape(-1)
        hidden, _ = self._network(params)(rows.tokens.reshape(-1), positions, attention, memory)
        before = jnp.pad(hidden.reshape(*shape, -1)[:, :, :-1], ((0, 0), (0, 0), (1, 0), (0, 0)))
        begins = jnp.broadcast_to(steps == 0, shape)[..., None]
        return jnp.where(begins, last[:, None, None], before)


def _lengths(mask: Bool[Array, "P L"]) -> Int[Array, " P"]:
    return jnp.sum(mask, axis=1, dtype=jnp.int32)


def _prompt_readable(mask: Bool[Array, "P L"], t: Int[Array, "P G"], window: Any) -> Bool[Array, "P G L"]:
    """Returns which prompt tokens completion token number t of each member may read."""
    behind = (_lengths(mask)[:, None] - jnp.cumsum(mask, axis=1))[:, None] + t[..., None] + 1
    return near(jnp.broadcast_to(mask[:, None], behind.shape), behind, window)


def _rows(
    shape: tuple[int, ...], query: Float[Array, "N H D"], key: Float[Array, "N K D"], value: Float[Array, "N K D"]
) -> tuple[Float[Array, "*rows K R D"], KeyValues]:
    """Arranges a list of tokens as sequences ``shape = (..., T)``, queries grouped by the head they read."""
    kv_heads, head_dim = key.shape[1:]
    own = KeyValues(
        keys=jnp.einsum("...tkd->...kdt", key.reshape(*shape, kv_heads, head_dim)),
        values=jnp.einsum("...tkd->...ktd", value.reshape(*shape, kv_heads, head_dim)),
    )
    return query.reshape(*shape, kv_heads, -1, head_dim), own


def _attend_members(
    query: Float[Array, "P G 1 K R D"],
    own: KeyValues,
    own_mask: Bool[Array, "P G S"],
    prompt: KeyValues,
    prompt_mask: Bool[Array, "P G L"],
) -> Float[Array, "N H D"]:
    """Lets one token of every member read its group's prompt, which stays one operand, and its own tokens."""

    def one(query: Array, own: KeyValues, own_mask: Bool[Array, " S"], prompt: KeyValues, mask: Bool[Array, " L"]):
        return attend(query, (Source(prompt, mask[None]), Source(own, own_mask[None])))

    members = jax.vmap(one, in_axes=(0, 0, 0, None, 0))
    context = jax.vmap(members)(query, own, own_mask, prompt, prompt_mask)
    return context.reshape(-1, query.shape[3] * query.shape[4], query.shape[5])


def _attend_rows(
    query: Float[Array, "P B S K R D"],
    own: KeyValues,
    marks: Marks,
    prompt: KeyValues,
    prompt_mask: Bool[Array, "P L"],
    window: Any,
    queries_per_chunk: int,
) -> Float[Array, "N H D"]:
    """Lets every token of every row read its group's prompt, one operand, and its own completion up to itself."""

    def one(query: Array, own: KeyValues, marks: Marks, prompt: KeyValues, mask: Bool[Array, " L"]) -> Array:
        def sources(some: Marks) -> tuple[Source, Source]:
            read = _prompt_readable(mask[None], some.steps[None], window)[0]
            return Source(prompt, read), Source(own, readable(some, marks, window))

        return attend_in_chunks(query, marks, sources, queries_per_chunk)

    each = 0 if marks.steps.ndim == 3 else None
    rows = jax.vmap(one, in_axes=(0, 0, each, None, None))
    context = jax.vmap(rows, in_axes=(0, 0, each, 0, 0))(query, own, marks, prompt, prompt_mask)
    return context.reshape(-1, query.shape[3] * query.shape[4], query.shape[5])
