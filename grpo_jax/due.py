"""What a step of a run does beside sampling and updating."""

from typing import NamedTuple

from grpo_jax.config import Config


class Due(NamedTuple):
    """What is due at a step.

    Attributes:
        invariants: the batch and the state are looked at, before the update.
        gradient_share: measured before the update.
        certificate: taken before the update.
        evaluation: on the validation problems, after the update.
        checkpoint: written after the update.
    """

    invariants: bool
    gradient_share: bool
    certificate: bool
    evaluation: bool
    checkpoint: bool

    @property
    def before(self) -> bool:
        """Whether another call as large as an update comes before it."""
        return self.invariants or self.gradient_share or self.certificate

    @property
    def after(self) -> bool:
        """Whether other work follows the update."""
        return self.evaluation or self.checkpoint


def due(config: Config, step: int) -> Due:
    """Returns what is due at a step; everything that follows an update is, at the last one.

    Args:
        config: the run.
        step: counted from 1; 0 is the state before the first.
    """

    def every(steps: int) -> bool:
        return steps > 0 and step % steps == 0

    last = step == config.steps
    return Due(
        invariants=config.check_invariants,
        gradient_share=every(config.gradient_share_every),
        certificate=every(config.certify_every),
        evaluation=last or every(config.evaluation.every),
        checkpoint=last or every(config.checkpoint_every),
    )
