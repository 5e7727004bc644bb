"""A reward that writes down what it is asked, and fails in one process where it is told to."""

import json
import os
from itertools import count
from pathlib import Path

from grpo_jax import hosts

_calls = count()


def odd(prompts, completions, **columns):
    """Whether the sum of a completion's characters is odd."""
    call = next(_calls)
    if os.environ.get("FAIL_AT") == f"{hosts.index()}:{call}":
        raise RuntimeError("the judge is out")
    with (Path(os.environ["RECORD"]) / f"{hosts.index()}.jsonl").open("a") as file:
        file.write(json.dumps([list(prompts), list(completions)]) + "\n")
    return [float(sum(map(ord, completion)) % 2) for completion in completions]
