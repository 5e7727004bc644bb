"""Whether transformers computes what we do with a model that was trained and saved here: by all weights, by adapters.

Two environments, one after the other. Ours trains, saves, and writes down its logits::

    python -m tests.models.pretrained.trained_in_transformers write OUT [MODEL ...]

with the folders of pretrained models; the fixtures beside this file where none is named. Then one with
``pip install torch==2.13.0 transformers==5.24.0`` reads what was saved, and prints how far apart both are::

    python tests/models/pretrained/trained_in_transformers.py compare OUT

It leaves ``expected.npz`` with transformers' logits in each folder; `fixtures/trained` was made so.
"""

import json
import sys
from pathlib import Path

import numpy as np

FIXTURES = Path(__file__).parent / "fixtures"
LENGTHS = (3, 5, 8, 12, 17, 24)
"""Tokens of each prompt."""
UPDATES, RATE, RANK = 3, 1e-3, 4
BOUND = 2e-4
"""How far apart logits may be, as a share of their range."""


def write(out: Path, model: Path) -> None:
    """Trains a model by all weights and by adapters, and saves it with the logits after a few prompts."""
    import jax

    from grpo_jax.models import decoder, lora, pretrained

    config, dtype = pretrained.read_config(model, scan_layers=True), pretrained.stored_dtype(model)
    policy, base = decoder(config), pretrained.load(model, config)
    adapters = lora(base, policy.logical_axes(), RANK)
    pairs = _trained(policy, lambda pairs: adapters.merge(base, pairs), adapters.init(key=jax.random.key(1)))
    trained = {"weights": _trained(policy, lambda params: params, base), "adapters": adapters.merge(base, pairs)}
    for kind, params in trained.items():
        folder = out / f"{model.name}-{kind}"
        pretrained.save(folder, params, config, model, dtype=dtype)
        saved = pretrained.load(folder, config, dtype=None)
        jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, np.asarray(y).astype(x.dtype)), saved, params)
        prompts = _prompts(config.vocabulary_size)
        before, after = (_logits(policy, each, *prompts) for each in (base, pretrained.load(folder, config)))
        np.savez(folder / "ours.npz", tokens=prompts[0], logits=after)
        print(f"{folder.name}: stored in {dtype} bit for bit; training moved logits by {_apart(before, after):.1e}")


def _trained(policy, merge, params):
    """Parameters after a few updates of a usual objective, on random completions with random rewards."""
    import jax
    import jax.numpy as jnp

    import grpo_jax as gj
    from grpo_jax import updates
    from grpo_jax.types import Batch, Prompts, Rollout

    random = np.random.default_rng(0)
    tokens, everything = random.integers(3, policy.vocabulary_size, (2, 4, 6)), jnp.ones((2, 4, 6), bool)
    prompts = Prompts(jnp.asarray(random.integers(3, policy.vocabulary_size, (2, 5))), jnp.ones((2, 5), bool))
    rollout = Rollout(prompts, jnp.asarray(tokens), everything, jnp.zeros(tokens.shape), everything[..., 0])
    batch = Batch(everything, jnp.asarray(random.normal(size=(2, 4)), jnp.float32))
    objective = gj.objective(
        gj.advantages.leave_one_out(), gj.surrogates.clipped(), gj.reductions.token_mean(), gj.kl.penalty(gj.kl.k1)
    )

    def score(params, rollout, *, entropy=False, ref_params=None):
        return policy.score(merge(params), rollout, 1.0, entropy=entropy, ref_params=ref_params)

    learner = updates.learner(
        score, objective, updates.adam(RATE), gj.kl.controllers.constant(0.02), updates.frozen(), micro_batches=1
    )
    state, update = learner.init(params, key=jax.random.key(0)), jax.jit(learner.update)
    for _ in range(UPDATES):
        state, metrics = update(state, rollout, batch)
        assert metrics["rejected"] == 0
    return state.params


def _prompts(vocabulary_size: int) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.random.default_rng(1).integers(3, vocabulary_size, (len(LENGTHS), max(LENGTHS))).astype(np.int32)
    return tokens, np.arange(max(LENGTHS)) >= max(LENGTHS) - np.array(LENGTHS)[:, None]


def _logits(policy, params, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
    import jax

    from grpo_jax.types import Prompts

    return np.asarray(
        jax.jit(policy.prefill)(params, Prompts(jax.numpy.asarray(tokens), jax.numpy.asarray(mask))).logits
    )


def compare(out: Path) -> None:
    """Prints how far transformers' logits are from ours; status 1 where any is further than `BOUND`."""
    import torch
    from transformers import AutoModelForCausalLM

    found = {}
    for ours in sorted(out.glob("*/ours.npz")):
        model = AutoModelForCausalLM.from_pretrained(ours.parent, dtype=torch.float32).eval()
        known, logits = np.load(ours), []
        for row, length in zip(known["tokens"], LENGTHS, strict=True):
            with torch.no_grad():
                logits.append(model(torch.tensor(row[-length:])[None].long()).logits[0, -1].numpy())
        np.savez_compressed(
            ours.parent / "expected.npz", tokens=known["tokens"], lengths=np.array(LENGTHS), logits=np.stack(logits)
        )
        found[ours.parent.name] = _apart(known["logits"], np.stack(logits))
        print(f"{ours.parent.name}: logits within {found[ours.parent.name]:.1e} of their range")
    (out / "found.json").write_text(json.dumps(found, indent=2) + "\n")
    sys.exit(not (found and max(found.values()) < BOUND))


def _apart(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.max(np.abs(ours - theirs)) / np.ptp(theirs))


def main(command: str, folder: str, *models: str) -> None:
    if command == "compare":
        compare(Path(folder))
        return
    for model in models or (FIXTURES / name for name in ("llama", "qwen2", "qwen3", "gemma3")):
        write(Path(folder), Path(model))


if __name__ == "__main__":
    main(*sys.argv[1:])
