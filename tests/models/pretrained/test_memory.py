"""How much of the host's memory loading takes."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from grpo_jax.models import decoder, pretrained

MEASURE = """
import resource, sys
import jax
from grpo_jax.models import decoder, pretrained

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

config = pretrained.read_config(sys.argv[1], scan_layers=sys.argv[2] == "scanned")
decoder(config)
jax.numpy.zeros(8).block_until_ready()
before = peak()
params = jax.block_until_ready(pretrained.load(sys.argv[1], config))
print(sum(leaf.nbytes for leaf in jax.tree.leaves(params)), peak() - before)
"""
FIELDS = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 4096,
    "hidden_size": 512,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "intermediate_size": 2048,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
}


@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
def test_three_files_load_in_less_than_a_third_more_than_their_size(layers, tmp_path):
    source, folder = tmp_path / "source", tmp_path / "saved"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(FIELDS))
    config = pretrained.read_config(source)
    shapes = jax.eval_shape(lambda: decoder(config).init(key=jax.random.key(0)))
    params = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), shapes)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    pretrained.save(folder, params, config, source, dtype="float32", shard_bytes=size // 3 + size // 20)
    files = list(folder.glob("*.safetensors"))
    assert len(files) == 3
    on_disk = sum(path.stat().st_size for path in files)
    command = [sys.executable, "-c", MEASURE, str(folder), layers]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True)
    loaded, grown = map(int, done.stdout.split())
    assert loaded == size
    assert grown < 1.3 * on_disk, f"{grown / on_disk:.2f} times the size on disk"
