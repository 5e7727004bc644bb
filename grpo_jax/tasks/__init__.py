"""Text in: tasks, tokenizers, and what turns prompts into arrays and completions into text."""

from grpo_jax.tasks.arithmetic import arithmetic, exact_answer
from grpo_jax.tasks.characters import CharacterTokenizer, character_tokenizer
from grpo_jax.tasks.pretrained_tokenizer import Message, PretrainedTokenizer, pretrained_tokenizer
from grpo_jax.tasks.prompts import completion_ids, decode, encode_prompts, rollout_from_texts
from grpo_jax.tasks.task import Example, Task, Tokenizer, columns_of

__all__ = [
    "CharacterTokenizer",
    "Example",
    "Message",
    "PretrainedTokenizer",
    "Task",
    "Tokenizer",
    "arithmetic",
    "character_tokenizer",
    "columns_of",
    "completion_ids",
    "decode",
    "encode_prompts",
    "exact_answer",
    "pretrained_tokenizer",
    "rollout_from_texts",
]
