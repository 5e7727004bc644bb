"""The other side for language models: transformers and TRL. Runs in an environment of its own; prints JSON."""

import json
import random
import resource
import sys
import tempfile
import time
from importlib.metadata import version
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

LENGTHS: list[list[int]] = []
"""How many tokens each completion of each batch had, as the reward function saw them."""


def texts(work: dict, count: int, seed: int) -> list[str]:
    """Prompts of random letters, one token each."""
    draw = random.Random(seed)
    return [work["separator"].join(draw.choices(work["alphabet"], k=work["prompt_tokens"])) for _ in range(count)]


def reward(completions, completion_ids, **_) -> list[float]:
    LENGTHS.append([len(ids) for ids in completion_ids])
    return [float(text.count("1") + text.count("e")) for text in completions]


def generation(work: dict) -> list[float]:
    """Seconds that transformers' generate takes for the step's completions."""
    path, rollout = work["config"]["model"]["path"], work["config"]["rollout"]
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    tokenizer, budget = AutoTokenizer.from_pretrained(path), rollout["max_tokens"]
    inputs = tokenizer(texts(work, rollout["prompts"], 0), return_tensors="pt", add_special_tokens=False)
    assert inputs["input_ids"].shape == (rollout["prompts"], work["prompt_tokens"])
    seconds = []
    for _ in range(work["warm_up"] + work["steps"]):
        began = time.perf_counter()
        with torch.inference_mode():
            tokens = model.generate(
                **inputs,
                do_sample=True,
                top_k=0,
                top_p=1.0,
                temperature=1.0,
                num_return_sequences=rollout["group_size"],
                min_new_tokens=budget,
                max_new_tokens=budget,
                pad_token_id=tokenizer.eos_token_id,
            )
        seconds.append(time.perf_counter() - began)
        assert tokens.shape[1] == work["prompt_tokens"] + budget
    return seconds[work["warm_up"] :]


class Marks(TrainerCallback):
    """Notes when each step begins and ends."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []

    def on_step_end(self, *_, **__) -> None:
        self.times.append((time.perf_counter(), time.process_time()))


def step(work: dict) -> dict[str, Any]:
    """Times whole steps of TRL's GRPO trainer, with its defaults but for the work, and the checkpointing asked for."""
    path, config, rollout = work["config"]["model"]["path"], work["config"], work["config"]["rollout"]
    rows, budget = rollout["prompts"] * rollout["group_size"], rollout["max_tokens"]
    marks, steps = Marks(), work["warm_up"] + work["steps"]
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            report_to=[],
            disable_tqdm=True,
            logging_steps=1,
            save_strategy="no",
            max_steps=steps,
            learning_rate=1e-6,
            beta=config["beta"]["value"],
            num_generations=rollout["group_size"],
            per_device_train_batch_size=rows,
            max_completion_length=budget,
            temperature=rollout["temperature"],
            generation_kwargs={"min_new_tokens": budget},
            gradient_checkpointing=work["checkpointing"],
            model_init_kwargs={"dtype": "float32"},
        )
        data = Dataset.from_dict({"prompt": texts(work, rollout["prompts"] * steps, 1)})
        trainer = GRPOTrainer(path, reward_funcs=reward, args=arguments, train_dataset=data, callbacks=[marks])
        marks.times.append((time.perf_counter(), time.process_time()))
        trainer.train()
    spans = [
        [b - a for a, b in zip(one, other, strict=True)]
        for one, other in zip(marks.times, marks.times[1:], strict=False)
    ]
    seconds, processor = zip(*spans[work["warm_up"] :], strict=True)
    return {
        "seconds": seconds,
        "processor_seconds": processor,
        "parameters": sum(leaf.numel() for leaf in trainer.model.parameters()),
        "sequences": len(LENGTHS[-1]),
        "tokens": sorted(set(LENGTHS[-1])),
        "trl": version("trl"),
    }


def training(work: dict) -> dict[str, Any]:
    """Times steps of Adam on the likelihood of whole sequences."""
    model = AutoModelForCausalLM.from_pretrained(work["config"]["model"]["path"], dtype=torch.float32).train()
    adam = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    tokens = torch.randint(0, model.config.vocab_size, (work["sequences"], work["length"]))
    rows = []
    for _ in range(work["warm_up"] + work["steps"]):
        began, worked = time.perf_counter(), time.process_time()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        adam.step()
        adam.zero_grad()
        rows.append((time.perf_counter() - began, time.process_time() - worked))
    seconds, processor = zip(*rows[work["warm_up"] :], strict=True)
    return {"seconds": seconds, "processor_seconds": processor, "loss": float(loss)}


def main(work: dict) -> dict[str, Any]:
    if work["name"] == "training":
        found = training(work)
    else:
        found = {} if work["name"] == "vocabulary" else {"generation_seconds": generation(work)}
        found |= step(work)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return found | {"peak_bytes": peak, "torch": torch.__version__, "transformers": version("transformers")}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
