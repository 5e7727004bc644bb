"""The range of each number of a configuration that no part of the library checks by itself."""

from grpo_jax.config.sections import Config


def check_limits(config: Config) -> None:
    """Checks the numbers that only the program reads.

    Raises:
        ValueError: one is out of range; names the field, the value and what to give.
    """
    least = {
        "rollout.prompts": (config.rollout.prompts, 1),
        "rollout.max_tokens": (1 if config.rollout.max_tokens is None else config.rollout.max_tokens, 1),
        "rollout.resample_rounds": (config.rollout.resample_rounds, 0),
        "rollout.lag": (config.rollout.lag, 0),
        "warm_start.steps": (config.warm_start.steps, 0),
        "warm_start.batch": (config.warm_start.batch, 1),
        "warm_start.check_every": (config.warm_start.check_every, 1),
        "evaluation.examples": (config.evaluation.examples, 1),
        "evaluation.every": (config.evaluation.every, 0),
        "update.packing_widths": (1 if config.update.packing_widths is None else config.update.packing_widths, 1),
        "update.max_rejected": (config.update.max_rejected, 1),
        "steps": (config.steps, 1),
        "seed": (config.seed, 0),
        "checkpoint_every": (config.checkpoint_every, 1),
        "keep_checkpoints": (config.keep_checkpoints, 1),
        "keep_best": (config.keep_best, 0),
        "keep_every": (config.keep_every, 0),
        "gradient_share_every": (config.gradient_share_every, 0),
        "certify_every": (config.certify_every, 0),
        "diagnose_every": (config.diagnose_every, 0),
    }
    for name, (value, lowest) in least.items():
        if value < lowest:
            raise ValueError(f"{name} is {value}; give at least {lowest}")
    if config.rollout.group_size < 2:
        raise ValueError(
            f"rollout.group_size is {config.rollout.group_size}: with one completion there is nothing to compare it "
            "with and every advantage is 0; give at least 2"
        )
    rows = config.rollout.prompts * config.rollout.group_size
    if config.rollout.slots is not None and not 1 <= config.rollout.slots < rows:
        raise ValueError(
            f"rollout.slots is {config.rollout.slots}; give at least 1 and fewer than the {rows} completions of a "
            "batch, or leave it out to decode all at once"
        )
    if not 0 < config.warm_start.learning_rate < float("inf"):
        raise ValueError(f"warm_start.learning_rate is {config.warm_start.learning_rate}; give a positive number")
    if not 0 <= config.warm_start.slips < 1:
        raise ValueError(f"warm_start.slips is {config.warm_start.slips}; give a share of demonstrations in [0, 1)")
    if not 0 < config.warm_start.target <= 1:
        raise ValueError(f"warm_start.target is {config.warm_start.target}; give an accuracy in (0, 1]")
    _check_kept(config)


def _check_kept(config: Config) -> None:
    if config.keep_every % config.checkpoint_every:
        raise ValueError(
            f"keep_every is {config.keep_every}, but there is a checkpoint every {config.checkpoint_every} steps "
            "(checkpoint_every); give a multiple of that"
        )
    if config.keep_best and config.evaluation.every == 0:
        raise ValueError(
            f"keep_best is {config.keep_best}, but no step is evaluated; give evaluation.every a number of steps, such "
            f"as {config.checkpoint_every}"
        )
