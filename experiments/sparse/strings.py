"""A long answer with one reward at its end: a string of digits is to be repeated, each of which may go wrong.

"4071936528=" is answered by the same digits and the end. Demonstrations have each digit replaced, with some
probability, by any of the ten; who imitates them gets each digit right with a probability of its own, and so the whole
answer hardly ever.
"""

import functools

import jax.numpy as jnp
import numpy as np

from experiments.small_scale import sums
from experiments.small_scale.evaluation import World
from experiments.small_scale.setting import Setting
from grpo_jax import Prompts

LENGTH = 10
KIND = "strings"


def problems(count: int, replaced: float, seed: int, length: int = LENGTH) -> sums.Problems:
    """Builds random strings; the slip of each is the demonstration, with digits replaced with that probability."""
    draw = np.random.default_rng(seed)
    digits = draw.integers(0, 10, (count, length))
    other = np.where(draw.random(digits.shape) < replaced, draw.integers(0, 10, digits.shape), digits)
    sign, end = np.full((count, 1), sums.SYMBOLS.index("=")), np.full((count, 1), sums.END)
    asked, right, slip = (
        jnp.asarray(np.concatenate(each, axis=1), jnp.int32) for each in ((digits, sign), (digits, end), (other, end))
    )
    whole = jnp.ones(right.shape, bool)
    return sums.Problems(Prompts(asked, whole), right, whole, slip, whole)


@functools.lru_cache
def world(setting: Setting) -> World:
    """Builds the problems to train on and those to evaluate: among 10^10 strings none of the one are of the other."""
    return World(problems(8000, 0.0, 1), {KIND: problems(setting.evaluated, 0.0, 2)}, KIND)
