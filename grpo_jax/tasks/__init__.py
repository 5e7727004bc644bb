"""Text in: tasks, tokenizers, and what turns prompts into arrays and completions into text."""

from grpo_jax.tasks.arithmetic import arithmetic, exact_answer
from grpo_jax.tasks.characters import CharacterTokenizer, character_tokenizer
from grpo_jax.tasks.files import files
from grpo_jax.tasks.pretrained_tokenizer import PretrainedTokenizer, pretrained_tokenizer
from grpo_jax.tasks.prompts import completion_ids, decode, encode_prompts, rollout_from_texts
from grpo_jax.tasks.reasoning_gym import GymReward, reasoning_gym
from grpo_jax.tasks.rendering import as_chat, completion_text, for_rewards, rendered
from grpo_jax.tasks.sources import Source
from grpo_jax.tasks.task import ChatTokenizer, Example, Message, Task, Tokenizer, check_range, columns_of

__all__ = [
    "CharacterTokenizer",
    "ChatTokenizer",
    "Example",
    "GymReward",
    "Message",
    "PretrainedTokenizer",
    "Source",
    "Task",
    "Tokenizer",
    "arithmetic",
    "as_chat",
    "character_tokenizer",
    "check_range",
    "columns_of",
    "completion_text",
    "completion_ids",
    "decode",
    "encode_prompts",
    "exact_answer",
    "files",
    "for_rewards",
    "pretrained_tokenizer",
    "reasoning_gym",
    "rendered",
    "rollout_from_texts",
]
