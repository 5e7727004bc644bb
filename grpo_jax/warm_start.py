"""The warm start of a run: supervised learning until the policy solves a share of the problems."""

from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import Array, Key

from grpo_jax.config import Config, WarmStartConfig
from grpo_jax.evaluation import evaluate
from grpo_jax.interruption import Interrupted
from grpo_jax.metrics import Progress, progress
from grpo_jax.program import Program
from grpo_jax.tasks import Example, Task, encode_prompts, rollout_from_texts
from grpo_jax.types import Params, Rollout
from grpo_jax.updates import WarmStartState, adam, warm_start


class TrainingStopped(RuntimeError):
    """The run cannot go on; the message says why, and the last checkpoint is intact."""


def warm_started(
    config: Config, program: Program, *, key: Key[Array, ""], asked: Callable[[], int] = lambda: 0
) -> tuple[Params, int]:
    """Returns parameters that solve about ``config.warm_start.target`` of the problems.

    Args:
        config: the run.
        program: its compiled steps.
        key: consumed by the initial values.
        asked: ``() -> int``, the signal that asks the run to end, 0: none.

    Returns:
        The parameters, and how many training problems were used up.

    Raises:
        TrainingStopped: too many updates in a row had a loss or gradient that is not finite.
        Interrupted: a signal came; nothing of a warm start is kept.
    """
    settings = config.warm_start
    params = program.initial(key=key)
    if settings.steps == 0:
        return params, 0
    assert program.score is not None
    learn = warm_start(program.score, adam(settings.learning_rate), micro_batches=config.update.micro_batches)
    state = jax.jit(learn.init)(params)
    step = jax.jit(learn.step, donate_argnums=0)
    consumed = 0
    with progress("warm start", settings.steps) as show:
        for number in range(1, settings.steps + 1):
            if signal := asked():
                raise Interrupted(signal, "nothing of a warm start is kept; resuming begins it again")
            rollout = program.place(_demonstrations(config, program, consumed))
            state, metrics = step(state, rollout)
            consumed += settings.batch
            if number % settings.check_every and number != settings.steps:
                continue
            _stop_if_broken(config, state, number)
            solved = _solved(config, program, state.params, consumed)
            show.update(number, {"loss": float(metrics["loss"]), "accuracy": solved})
            consumed += config.evaluation.examples
            if solved >= settings.target or number == settings.steps:
                _say_so(show, number, settings, solved)
                break
    return state.params, consumed


def _demonstrations(config: Config, program: Program, start: int) -> Rollout:
    task, count = program.parts.task, config.warm_start.batch
    chance = np.random.default_rng((config.seed, start)).random(count)
    examples = task.examples("train", start, count)
    multiple = program.mesh.shape["data"] * program.mesh.shape["fsdp"]
    rows = -(-count // multiple) * multiple
    prompts = encode_prompts(task.tokenizer, [example.prompt for example in examples], task.max_prompt_tokens, rows)
    slips = (chance < config.warm_start.slips).tolist()
    texts = [_written(task, example, slips=slip) for example, slip in zip(examples, slips, strict=True)]
    texts += [""] * (rows - count)
    longest = program.parts.max_tokens if task.max_completion_tokens is None else task.max_completion_tokens
    return rollout_from_texts(task.tokenizer, prompts, texts, longest)


def _written(task: Task, example: Example, *, slips: bool) -> str:
    if slips and task.slip is not None:
        return task.slip(example)
    if task.demonstration is None:
        raise ValueError(f"{task.name} has no demonstrations to imitate; set warm_start.steps to 0")
    return task.demonstration(example)


def _solved(config: Config, program: Program, params: Params, start: int) -> float:
    """Returns the share of fresh training problems that are solved; the held-out ones are for the evaluation alone."""
    task = program.parts.task
    fresh = task._replace(examples=lambda split, first, count: task.examples(split, start + first, count))
    return evaluate(
        fresh, program.answer, params, "train", config.evaluation.examples, program.evaluation_rows, shown=0
    ).accuracy


def _stop_if_broken(config: Config, state: WarmStartState, number: int) -> None:
    rejected = int(state.rejected)
    if rejected >= config.update.max_rejected:
        raise TrainingStopped(
            f"warm start, update {number}: the loss or its gradient was not finite for {rejected} updates in a row. "
            f"warm_start.learning_rate is {config.warm_start.learning_rate:g}; divide it by 10 and start again in "
            "another folder"
        )


def _say_so(show: Progress, number: int, settings: WarmStartConfig, solved: float) -> None:
    reached = "stopping" if solved >= settings.target else f"short of the target of {settings.target:g}"
    show.note(f"warm start: {solved:.3f} of fresh training problems solved after {number} updates; {reached}")
