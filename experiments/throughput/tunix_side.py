"""The other side: Tunix's GRPO learner. Runs in an environment of its own; prints seconds per step as JSON."""

import json
import sys
import time
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tunix.models.qwen3.model import ModelConfig, Qwen3
from tunix.rl import rl_cluster
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rollout.base_rollout import RolloutConfig

LENGTHS: list[list[int]] = []
"""How many tokens each completion of each batch had, as the reward function saw them."""


class Characters:
    """The tokenizer of ours.py. Padding and end lie outside the vocabulary, so that no completion stops early."""

    def __init__(self, alphabet: str, vocabulary: int) -> None:
        self.alphabet, self.vocabulary = alphabet, vocabulary

    def encode(self, text: str) -> list[int]:
        return [self.alphabet.index(character) + 2 for character in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(self.alphabet[index - 2] if index >= 2 else "?" for index in ids)

    def bos_id(self) -> int:
        return 0  # Tunix reads 0 as "there is none"

    def pad_id(self) -> int:
        return self.vocabulary

    def eos_id(self) -> int:
        return self.vocabulary + 1


def network(work: dict, seed: int) -> Qwen3:
    """Qwen3 of the same size; its feed-forward weights, zero at first in Tunix, are drawn at random."""
    size = work["config"]["model"]
    config = ModelConfig(
        num_layers=size["layers"],
        vocab_size=work["vocabulary"],
        embed_dim=size["width"],
        hidden_dim=size["hidden"],
        num_heads=size["heads"],
        head_dim=size["head_dim"],
        num_kv_heads=size["kv_heads"],
        rope_theta=int(size["rope_theta"]),
        norm_eps=size["norm_epsilon"],
        use_tied_embedding=size["tied_head"],
    )
    rngs = nnx.Rngs(seed)
    model = Qwen3(config, rngs=rngs)
    for layer in model.layers:
        for weight in (layer.mlp.gate_proj.kernel, layer.mlp.up_proj.kernel, layer.mlp.down_proj.kernel):
            weight[...] = 0.05 * jax.random.normal(rngs.params(), weight.shape, jnp.float32)
    return model


def learner(work: dict) -> GRPOLearner:
    """The learner as Tunix's examples set it up: one mesh for all roles, the sampler of its own, beta above 0."""
    rollout, optimizer = work["config"]["rollout"], work["config"]["update"]
    adam = optax.chain(optax.clip_by_global_norm(optimizer["max_norm"]), optax.adam(optimizer["learning_rate"]))
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(-1, 1), ("fsdp", "tp"))
    roles = (rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT)
    cluster = rl_cluster.RLCluster(
        actor=network(work, 0),
        reference=network(work, 0),
        tokenizer=Characters(work["alphabet"], work["vocabulary"]),
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh=dict.fromkeys(roles, mesh),
            training_config=rl_cluster.RLTrainingConfig(
                actor_optimizer=adam,
                eval_every_n_steps=1_000_000,
                max_steps=work["warm_up"] + work["steps"],
            ),
            rollout_config=RolloutConfig(
                max_tokens_to_generate=rollout["max_tokens"],
                max_prompt_length=work["prompt_tokens"],
                kv_cache_size=work["tunix_cache"],
                temperature=rollout["temperature"],
            ),
        ),
    )
    group, beta = rollout["group_size"], work["config"]["beta"]["value"]
    return GRPOLearner(cluster, GRPOConfig(num_generations=group, beta=beta), reward)


def reward(prompts, completions, **_) -> list[float]:
    LENGTHS.append([len(text) for text in completions])
    return [float(text.count("1")) for text in completions]


def main(work: dict) -> dict:
    grpo, marks, draw = learner(work), [], np.random.default_rng(0)
    model, rows = grpo.rl_cluster.actor_trainer.model, work["config"]["rollout"]["prompts"]

    def mark() -> None:
        jax.block_until_ready(nnx.state(model))
        marks.append((time.perf_counter(), time.process_time()))

    def batches():
        while True:
            mark()
            letters = draw.choice(list(work["alphabet"]), (rows, work["prompt_tokens"]))
            yield {"prompts": np.array(["".join(row) for row in letters])}

    grpo.train(batches())
    mark()
    seconds, processor = np.diff(np.array(marks), axis=0)[work["warm_up"] :].T.tolist()
    return {
        "seconds": seconds,
        "processor_seconds": processor,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))),
        "sequences": len(LENGTHS[-1]),
        "tokens": sorted(set(LENGTHS[-1])),
        "tunix": version("google-tunix"),
        "jax": jax.__version__,
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
