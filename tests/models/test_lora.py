"""Low-rank adapters: they start as nothing, add what the formula says, and leave the base alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.models import DecoderConfig, decoder, lora

CONFIG = DecoderConfig(7, layers=2, width=8, heads=4, kv_heads=2, head_dim=4, hidden=12)
SHAPES = {
    "query": ((8,), (4, 4)),
    "key": ((8,), (2, 4)),
    "value": ((8,), (2, 4)),
    "output": ((4, 4), (8,)),
    "gate": ((8,), (12,)),
    "up": ((8,), (12,)),
    "down": ((12,), (8,)),
}


def built(scan_layers, **options):
    policy = decoder(dataclasses.replace(CONFIG, scan_layers=scan_layers))
    base = policy.init(key=jax.random.key(0))
    return policy, base, lora(base, policy.logical_axes(), **{"rank": 3, **options})


def shaken(params):
    """The params with other than zero products."""
    leaves, structure = jax.tree.flatten(params)
    draws = np.random.default_rng(1)
    return jax.tree.unflatten(structure, [jnp.asarray(draws.normal(size=leaf.shape), leaf.dtype) for leaf in leaves])


@pytest.mark.parametrize("scan_layers", [False, True])
def test_new_adapters_change_nothing(scan_layers):
    _, base, adapters = built(scan_layers)
    params = adapters.init(key=jax.random.key(2))
    jax.tree.map(np.testing.assert_array_equal, adapters.merge(base, params), base)


@pytest.mark.parametrize("scan_layers", [False, True])
def test_merging_adds_the_scaled_product_to_each_target_alone(scan_layers):
    _, base, adapters = built(scan_layers, alpha=1.5, targets=("query", "output"))
    params = shaken(adapters.init(key=jax.random.key(2)))
    merged = adapters.merge(base, params)
    for name, before in [("embedding", base["embedding"]), ("final_norm", base["final_norm"])]:
        np.testing.assert_array_equal(merged[name], before)
    for index in range(CONFIG.layers):
        here = lambda tree: jax.tree.map(lambda x: x[index], tree) if scan_layers else tree[f"layer_{index}"]  # noqa: E731, B023
        old, new, added = here(base["blocks"]), here(merged["blocks"]), here(params["blocks"])
        assert added.keys() == {"query", "output"}
        for name, matrix in old.items():
            if name not in added:
                np.testing.assert_array_equal(new[name], matrix)
                continue
            inputs, outputs = SHAPES[name]
            down = np.asarray(added[name]["down"]).reshape(np.prod(inputs), 3)
            up = np.asarray(added[name]["up"]).reshape(3, np.prod(outputs))
            np.testing.assert_allclose(
                new[name], matrix + 0.5 * (down @ up).reshape(matrix.shape), rtol=1e-5, atol=1e-6
            )


@pytest.mark.parametrize("scan_layers", [False, True])
def test_every_adapter_has_axes_and_far_fewer_numbers_than_the_base(scan_layers):
    policy, base, adapters = built(scan_layers, rank=1)
    params, axes = adapters.init(key=jax.random.key(0)), adapters.logical_axes()
    known = {"embed": 8, "heads": 4, "kv_heads": 2, "head_dim": 4, "mlp": 12, "layers": 2, None: 1}

    def check(leaf, names):
        assert tuple(known[name] for name in names) == leaf.shape

    jax.tree.map(check, params, axes)
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert size == 2 * sum(int(np.prod(a) + np.prod(b)) for a, b in SHAPES.values())


def test_a_reference_that_is_a_copy_is_the_policy_as_it_started_adapters_included():
    from grpo_jax.types import Prompts, Rollout

    policy, base, adapters = built(False)
    params = shaken(adapters.init(key=jax.random.key(2)))
    ones = jnp.ones((1, 2, 3), bool)
    prompts = Prompts(jnp.ones((1, 2), jnp.int32), jnp.ones((1, 2), bool))
    rollout = Rollout(prompts, jnp.ones((1, 2, 3), jnp.int32), ones, jnp.zeros(ones.shape), ones[..., 0])

    @jax.jit
    def kl(params, ref_params):
        merge = lambda params: adapters.merge(base, params)  # noqa: E731
        return jnp.sum(policy.score(merge(params), rollout, 1.0, ref_params=merge(ref_params)).full_kl)

    assert kl(params, jax.tree.map(jnp.copy, params)) == 0
    assert kl(params, adapters.init(key=jax.random.key(2))) > 1e-3
    gradient = jax.grad(kl)(params, adapters.init(key=jax.random.key(2)))
    assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": ("query", "head")}, r"targets \['query', 'head'\]"),
        ({"targets": ()}, "targets"),
        ({"rank": 0}, "rank is 0"),
        ({"alpha": float("nan")}, "alpha nan"),
        ({"rank": 8}, "rank 8 is not below 8, the smaller side of blocks.layer_0"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        built(False, **options)


def test_parameters_without_blocks_have_nothing_to_adapt():
    with pytest.raises(ValueError, match="hold none of query"):
        lora({"logits": jnp.zeros((3, 3))}, {"logits": (None, None)}, targets=("query",))
