"""What the article measured: bias and variance from rounds of samples, drawn by the library's sampler."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from experiments.minimal_model.configurations import Configuration
from experiments.minimal_model.exact import LENGTHS, POLICY, Instance, Moments, gradients
from grpo_jax.rollouts import categorical, sampler
from grpo_jax.types import Prompts


class Rounds:
    """Draws rounds of completions and averages gradients within each."""

    def __init__(self, rounds: int, samples: int) -> None:
        self.rounds, self.samples = rounds, samples
        self.prompts = Prompts(jnp.zeros((rounds, 1), jnp.int32), jnp.ones((rounds, 1), bool))
        self.draw = jax.jit(sampler(POLICY, categorical(), samples, LENGTHS[-1], end_ids=(), pad_id=0))

    def moments(self, configurations: Sequence[Configuration], instance: Instance, length: int, seed: int) -> Moments:
        """Returns the mean of all rounds, and the trace of the covariance of a round's mean.

        Nothing ends a completion, so the first tokens of a longer one are one of ``length``.
        """
        params = {name: np.float32(value) for name, value in instance.sampler.items()}
        drawn = np.asarray(self.draw(params, self.prompts, key=jax.random.key(seed)).tokens[..., :length])
        found = [each for _, each in gradients(configurations, instance, drawn.reshape(-1, length))]
        rows = np.concatenate(found, axis=1).reshape(len(configurations), self.rounds, self.samples, 2)
        means = np.mean(rows, axis=2)
        return Moments(np.mean(means, axis=1), np.sum(np.var(means, axis=1, ddof=1), axis=-1))
