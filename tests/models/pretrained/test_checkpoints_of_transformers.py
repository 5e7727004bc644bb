"""Checkpoints written by transformers: the same logits, the same continuations, and the same bits when saved again."""

import json
import shutil
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from safetensors.numpy import load_file

from grpo_jax.models import decoder, pretrained
from grpo_jax.models.pretrained.load import INDEX, files_of
from grpo_jax.rollouts import greedy, sampler
from grpo_jax.types import Prompts, Rollout

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = ("llama", "qwen2", "qwen3", "gemma3")
STORED = {"llama": "float32", "qwen2": "float16", "qwen3": "bfloat16", "gemma3": "bfloat16"}
STEPS, PAD = 10, 2
SCANNED = {"scan_layers": True}


def expected(name):
    return np.load(FIXTURES / name / "expected.npz")


@cache
def loaded(name, scan_layers=False):
    config = pretrained.read_config(FIXTURES / name, scan_layers=scan_layers)
    return config, decoder(config), pretrained.load(FIXTURES / name, config)


def rollout_of(name, left, width=16):
    """The fixture's rows as prompts padded on one side, with the tokens that follow as one completion each."""
    known = expected(name)
    tokens, mask = np.full((3, width), 5, np.int32), np.zeros((3, width), bool)
    completions = np.zeros((3, 1, STEPS), np.int32)
    for row, length in enumerate(known["lengths"]):
        columns = slice(width - length, width) if left else slice(0, length)
        tokens[row, columns], mask[row, columns] = known["tokens"][row, :length], True
        completions[row, 0] = known["tokens"][row, length : length + STEPS]
    everything = jnp.ones(completions.shape, bool)
    prompts = Prompts(jnp.asarray(tokens), jnp.asarray(mask))
    return Rollout(prompts, jnp.asarray(completions), everything, jnp.zeros(everything.shape), everything[:, :, 0])


def logits_after_prompts(name):
    """transformers' logits for each completion token and the one after the last ``[3, STEPS + 1, V]``."""
    known = expected(name)
    rows = [known["logits"][row, length - 1 : length + STEPS] for row, length in enumerate(known["lengths"])]
    return np.stack(rows)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_scores_without_a_cache_are_those_of_transformers(name, left):
    _, policy, params = loaded(name)
    rollout, logits = rollout_of(name, left), logits_after_prompts(name)
    scores = jax.jit(policy.score)(params, rollout, 1.0)
    theirs = np.asarray(jax.nn.log_softmax(logits[:, :STEPS]))
    chosen = np.take_along_axis(theirs, np.asarray(rollout.tokens)[:, 0, :, None], axis=-1)[..., 0]
    np.testing.assert_allclose(scores.log_probs[:, 0], chosen, atol=2e-4 * np.ptp(logits))


@pytest.mark.parametrize(("scan_layers", "left"), [(False, True), (False, False), (True, True)])
@pytest.mark.parametrize("name", NAMES)
def test_logits_with_a_cache_are_those_of_transformers(name, scan_layers, left):
    _, policy, params = loaded(name, scan_layers)
    rollout, logits = rollout_of(name, left), logits_after_prompts(name)
    prefix, cache = jax.jit(policy.prefill)(params, rollout.prompts), policy.empty_cache(3, 1, STEPS)
    found, decode = [prefix.logits], jax.jit(policy.decode)
    for t in range(STEPS):
        after, cache = decode(params, prefix, cache, rollout.tokens[..., t], jnp.full((3, 1), t), jnp.int32(t))
        found.append(after[:, 0])
    np.testing.assert_allclose(np.stack(found, axis=1), logits, rtol=0, atol=2e-4 * np.ptp(logits))


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_greedy_continuations_of_twenty_prompts_are_those_of_transformers(name, left):
    _, policy, params = loaded(name)
    known = expected(name)
    tokens, theirs = known["prompts"], known["greedy"]
    assert theirs.shape == (20, 64)
    if not left:
        tokens = np.stack([np.roll(row, -np.count_nonzero(row == PAD)) for row in tokens])
    generate = jax.jit(sampler(policy, greedy(), 1, theirs.shape[1], (), PAD))
    found = generate(params, Prompts(jnp.asarray(tokens), jnp.asarray(tokens != PAD)), key=jax.random.key(0))
    np.testing.assert_array_equal(found.tokens[:, 0], theirs)


@pytest.mark.parametrize("name", NAMES)
def test_scanned_layers_hold_the_unrolled_ones_stacked(name):
    (config, _, plain), (_, _, stacked) = loaded(name), loaded(name, scan_layers=True)
    layers = [plain["blocks"][f"layer_{index}"] for index in range(config.layers)]
    jax.tree.map(np.testing.assert_array_equal, stacked["blocks"], jax.tree.map(lambda *x: jnp.stack(x), *layers))


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_saved_is_what_was_stored_bit_for_bit(name, scan_layers, tmp_path):
    config, _, params = loaded(name, scan_layers)
    small = {"shard_bytes": 30_000} if scan_layers else {}
    pretrained.save(tmp_path / "saved", params, config, FIXTURES / name, dtype=STORED[name], **small)
    before, after = files_of(FIXTURES / name), files_of(tmp_path / "saved")
    assert before.keys() == after.keys()
    assert len(set(after.values())) == 1 if not scan_layers else len(set(after.values())) > 1
    assert (tmp_path / "saved" / INDEX).is_file() == scan_layers
    for key, path in before.items():
        stored, saved = load_file(path)[key], load_file(after[key])[key]
        assert stored.dtype == saved.dtype
        assert stored.tobytes() == saved.tobytes(), key
    assert pretrained.read_config(tmp_path / "saved", scan_layers=scan_layers) == config
    assert pretrained.end_ids(tmp_path / "saved") == (1,)
    with pytest.raises(FileExistsError, match="saved exists"):
        pretrained.save(tmp_path / "saved", params, config, FIXTURES / name)


def test_each_device_gets_its_own_part():
    config, _, plain = loaded("llama", scan_layers=True)
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("layers", "width"))

    def sharding(leaf):
        stacked = leaf.ndim == 4 and leaf.shape[0] == config.layers
        return NamedSharding(
            mesh, PartitionSpec("layers" if stacked else None, None, None) if stacked else PartitionSpec()
        )

    places = jax.tree.map(sharding, plain)
    spread = pretrained.load(FIXTURES / "llama", config, shardings=places)
    jax.tree.map(np.testing.assert_array_equal, spread, plain)
    query = spread["blocks"]["query"]
    assert query.sharding == places["blocks"]["query"]
    assert query.addressable_shards[0].data.shape == (1, *query.shape[1:])


@pytest.mark.parametrize(("dtype", "found"), [("float16", "float16"), ("bfloat16", "bfloat16"), (None, "bfloat16")])
def test_parameters_have_the_dtype_that_was_asked_for(dtype, found):
    config, policy, exact = loaded("qwen3")
    params = pretrained.load(FIXTURES / "qwen3", config, dtype=dtype)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == {found}
    rollout = rollout_of("qwen3", left=True)
    scores = jax.jit(policy.score)(params, rollout, 1.0).log_probs
    np.testing.assert_allclose(scores, jax.jit(policy.score)(exact, rollout, 1.0).log_probs, atol=1e-2)


def changed(tmp_path, name, **fields):
    """A copy of a fixture with other fields in its config.json; None removes one."""
    folder = shutil.copytree(FIXTURES / name, tmp_path / name)
    found = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps({key: value for key, value in found.items() if value is not None}))
    return folder


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("llama", {"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM.*supported are LlamaForCausalLM"),
        ("llama", {"architectures": None}, r"architectures \[\] are not supported"),
        ("llama", {"attention_bias": True}, "attention_bias is True"),
        ("llama", {"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ("llama", {"rope_parameters": {"rope_type": "yarn"}}, "rotary scaling 'yarn' is not supported"),
        ("llama", {"vocab_size": None}, "'vocab_size' is missing"),
        ("gemma3", {"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0"),
    ],
)
def test_what_the_decoder_cannot_do_is_refused_by_name(tmp_path, name, fields, message):
    with pytest.raises(ValueError, match=message):
        pretrained.read_config(changed(tmp_path, name, **fields))


def test_older_config_files_say_the_same_in_other_words(tmp_path):
    rope = json.loads((FIXTURES / "llama" / "config.json").read_text())["rope_parameters"]
    theta, kind = rope.pop("rope_theta"), rope.pop("rope_type")
    older = {"rope_parameters": None, "rope_theta": theta, "rope_scaling": {**rope, "type": kind}}
    assert pretrained.read_config(changed(tmp_path, "llama", **older)) == loaded("llama")[0]
    older = {
        "rope_parameters": None,
        "rope_theta": 1000.0,
        "rope_local_base_freq": 100.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    assert pretrained.read_config(changed(tmp_path, "gemma3", **older)) == loaded("gemma3")[0]


def test_gemma_without_layer_types_has_a_global_layer_after_every_five(tmp_path):
    folder = changed(tmp_path, "gemma3", layer_types=None, num_hidden_layers=12)
    assert pretrained.read_config(folder).windowed == (True,) * 5 + (False,) + (True,) * 5 + (False,)


def test_windows_of_qwen_are_read_only_where_they_are_used(tmp_path):
    folder = changed(tmp_path, "qwen3", layer_types=None, sliding_window=4, max_window_layers=1)
    assert pretrained.read_config(folder).windowed == ()
    folder = changed(
        tmp_path / "used", "qwen3", layer_types=None, sliding_window=4, max_window_layers=1, use_sliding_window=True
    )
    assert pretrained.read_config(folder).windowed == (False, True)


def test_tensors_that_do_not_fit_are_named(tmp_path):
    config = loaded("qwen3")[0]
    with pytest.raises(ValueError, match=r"1 of 14 tensors are missing, lm_head.weight first"):
        pretrained.load(
            FIXTURES / "gemma3", pretrained.read_config(changed(tmp_path / "x", "qwen3", num_hidden_layers=1))
        )
    shallow = pretrained.read_config(changed(tmp_path, "qwen3", num_hidden_layers=1))
    with pytest.raises(ValueError, match="tensors have no place in the decoder: model.layers.1"):
        pretrained.load(FIXTURES / "qwen3", shallow)
    with pytest.raises(ValueError, match="config.json implies"):
        pretrained.load(FIXTURES / "qwen3", pretrained.read_config(changed(tmp_path / "y", "qwen3", head_dim=8)))
    with pytest.raises(ValueError, match="dtype is 'int8'"):
        pretrained.load(FIXTURES / "qwen3", config, dtype="int8")


def test_files_that_are_missing_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config.json: not found"):
        pretrained.read_config(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"neither model.safetensors nor"):
        pretrained.load(tmp_path, loaded("qwen3")[0])
    folder = shutil.copytree(FIXTURES / "llama", tmp_path / "llama")
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"names model-00002-of-00002.safetensors"):
        pretrained.load(folder, loaded("llama")[0])
    (folder / "generation_config.json").unlink()
    with pytest.raises(ValueError, match="has an eos_token_id"):
        pretrained.end_ids(changed(tmp_path / "none", "llama", eos_token_id=None).joinpath("..").resolve())
