"""Models that were trained and saved here: transformers computed the stored logits from the stored files."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.models import decoder, pretrained
from grpo_jax.types import Prompts

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", ["llama-weights", "gemma3-adapters"])
def test_transformers_reads_what_was_trained_and_saved_as_we_do(name):
    """See `trained_in_transformers.py`, which wrote the folders: by all weights, and by adapters that were merged."""
    folder = HERE / "fixtures" / "trained" / name
    config = pretrained.read_config(folder, scan_layers=True)
    params, known = pretrained.load(folder, config), np.load(folder / "expected.npz")
    mask = np.arange(known["tokens"].shape[1]) >= known["tokens"].shape[1] - known["lengths"][:, None]
    prompts = Prompts(jnp.asarray(known["tokens"]), jnp.asarray(mask))
    logits = jax.jit(decoder(config).prefill)(params, prompts).logits
    np.testing.assert_allclose(logits, known["logits"], rtol=0, atol=2e-4 * np.ptp(known["logits"]))
    base = HERE / "fixtures" / name.split("-")[0]
    start = pretrained.load(base, pretrained.read_config(base, scan_layers=True))
    apart = jax.tree.map(lambda x, y: float(np.abs(x - y).max()), params["blocks"], start["blocks"])
    assert max(jax.tree.leaves(apart)) > 1e-3, "training moved it"
