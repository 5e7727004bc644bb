"""Reward functions that misbehave, at the top of a module so that worker processes can import them."""

import os
import time


def troubled(prompts, completions, **columns):
    """The length of a completion, unless it says what to do instead."""
    rewards = []
    for completion in completions:
        if completion == "hang":
            time.sleep(600)
        if completion == "die":
            os._exit(3)
        if completion == "raise":
            raise KeyError("no such thing")
        rewards.append(None if completion == "none" else float(len(completion)))
    return rewards


async def slow(prompts, completions, *, bonus, **columns):
    """The length of a completion and its bonus."""
    return [len(completion) + more for completion, more in zip(completions, bonus, strict=True)]


not_a_function = 3
