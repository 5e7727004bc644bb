"""Runs TRL's own loss functions on one small batch and stores values and gradients, for tests/compat/test_trl.py.

Not part of run.py: it needs torch and TRL in an environment of their own.

    python -m venv trl && trl/bin/pip install torch==2.13.0 trl==1.16.0
    trl/bin/python experiments/migration/trl_reference.py
"""

import json
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import torch
import trl
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer

OUT = Path(__file__).parents[2] / "tests" / "compat" / "fixtures" / "trl.json"
BETA = 0.3
GRPO = {
    "dapo": {},
    "dapo, not corrected": {"use_bias_correction_kl": False},
    "grpo": {"loss_type": "grpo"},
    "bnpo": {"loss_type": "bnpo"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "luspo": {"loss_type": "luspo"},
    "delta": {"delta": 1.3},
    "epsilon_high": {"epsilon_high": 0.4},
    "sequence": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.3},
}


def batch() -> dict[str, torch.Tensor]:
    """Two groups of three completions of up to four tokens, some ratios beyond the clip range."""
    draw = torch.Generator().manual_seed(5)
    old = -2 * torch.rand(6, 4, generator=draw, dtype=torch.float64) - 0.1
    lengths = torch.tensor([4, 2, 3, 1, 4, 2])
    return {
        "log_probs": old + 0.6 * torch.randn(6, 4, generator=draw, dtype=torch.float64),
        "old": old,
        "ref": old + 0.7 * torch.randn(6, 4, generator=draw, dtype=torch.float64),
        "mask": (torch.arange(4) < lengths[:, None]).to(torch.float64),
        "rewards": torch.tensor([1.0, 0.0, 0.5, 0.0, 0.0, 1.0], dtype=torch.float64),
    }


def trainer(log_probs: torch.Tensor, **options) -> SimpleNamespace:
    """What the loss functions read of a trainer, with the model replaced by given log-probabilities."""
    chosen = {
        "loss_type": "dapo",
        "importance_sampling_level": "token",
        "epsilon_high": 0.2,
        "delta": None,
        "use_bias_correction_kl": True,
    } | options
    accelerator = SimpleNamespace(num_processes=1, reduce=lambda x, reduction: x, gather=lambda x: x)
    return SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (log_probs, torch.zeros_like(log_probs), None),
        args=SimpleNamespace(
            use_bias_correction_kl=chosen["use_bias_correction_kl"], delta=chosen["delta"], steps_per_generation=1
        ),
        accelerator=accelerator,
        model=SimpleNamespace(training=True),
        loss_type=chosen["loss_type"],
        importance_sampling_level=chosen["importance_sampling_level"],
        beta=BETA,
        epsilon_low=0.2,
        epsilon_high=chosen["epsilon_high"],
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        current_gradient_accumulation_steps=1,
        max_completion_length=4,
        _metrics={"train": defaultdict(list)},
    )


def evaluated(compute, log_probs: torch.Tensor, inputs: dict, **options) -> dict:
    """The loss and its gradient by the log-probabilities."""
    leaf = log_probs.clone().requires_grad_()
    loss = compute(trainer(leaf, **options), None, inputs)
    loss.backward()
    return {"loss": loss.item(), "gradient": leaf.grad.tolist()}


def main() -> None:
    given = batch()
    grouped = given["rewards"].view(2, 3)
    spread = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
    ids = torch.zeros(6, 4, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones(6, 1),
        "completion_ids": ids,
        "completion_mask": given["mask"],
        "old_per_token_logps": given["old"],
        "ref_per_token_logps": given["ref"],
        "num_items_in_batch": given["mask"].sum(),
        "advantages": spread.flatten(),
    }
    cases = {name: evaluated(GRPOTrainer._compute_loss, given["log_probs"], inputs, **o) for name, o in GRPO.items()}
    charged = grouped - BETA * ((given["old"] - given["ref"]) * given["mask"]).sum(1).view(2, 3)
    left_out = charged - (charged.sum(1, keepdim=True) - charged) / 2
    sums = (given["old"] * given["mask"]).sum(1)
    rloo = inputs | {"advantages": left_out.flatten(), "old_logps": sums}
    cases["rloo"] = evaluated(RLOOTrainer._compute_loss, given["log_probs"], rloo)
    versions = {"trl": trl.__version__, "torch": torch.__version__}
    stored = {"versions": versions, "beta": BETA} | {name: x.tolist() for name, x in given.items()} | {"cases": cases}
    OUT.write_text(json.dumps(stored) + "\n")
    print({name: round(case["loss"], 6) for name, case in cases.items()})


if __name__ == "__main__":
    main()
