"""grpo-jax evaluate, sample and export: what a run's checkpoint answers, and the model in it."""

from dataclasses import dataclass, replace
from pathlib import Path

import jax
import tyro

from grpo_jax import checkpoints
from grpo_jax.config import load
from grpo_jax.evaluation import evaluate, right_of_samples
from grpo_jax.metrics import pass_at_k, proportion
from grpo_jax.program import Program, compile_program
from grpo_jax.tasks import PretrainedTokenizer, as_chat, decode, encode_prompts, rendered
from grpo_jax.types import TrainState


@dataclass(frozen=True)
class Evaluate:
    """Print the greedy accuracy of a run's last checkpoint, per split, and its pass@k from random completions.

    Accuracies come with 95 % intervals over problems where rewards lie in [0, 1].

    Attributes:
        run: the run's folder.
        split: which problems: validation, or an out-of-domain split. None: all of them.
        examples: most problems of each split.
        samples: random completions of each problem, at the run's temperature, for pass@k. 0: none.
        k: tries that count, each at most samples; pass@k is the chance that one of k is right.
        right_from: reward from which a random completion is right.
        seed: of the random completions.
        step: which checkpoint. None: the newest.
        mesh: devices, as in train. None: the run's.
    """

    run: tyro.conf.Positional[Path]
    split: str | None = None
    examples: int = 512
    samples: int = 0
    k: tuple[int, ...] = (1,)
    right_from: float = 1.0
    seed: int = 0
    step: int | None = None
    mesh: str | None = None

    def execute(self) -> int:
        """Prints accuracies; returns the exit status."""
        for k in self.k:
            if self.samples and not 1 <= k <= self.samples:
                raise ValueError(f"--k {k}: pass@{k} needs at least {k} completions of each problem; raise --samples")
        program, state, step = _restored(self)
        task = program.parts.task
        splits = [split for split in task.splits if split != "train"] if self.split is None else [self.split]
        for split in splits:
            found = evaluate(task, program.answer, state.params, split, self.examples, program.evaluation_rows)
            within = "" if found.interval is None else f" (95 %: {found.interval.low:.4f} to {found.interval.high:.4f})"
            print(f"{split}: accuracy {found.accuracy:.4f}{within} on {found.examples} problems at step {step}")
            if self.samples:
                right = right_of_samples(
                    task,
                    program.generate,
                    state.params,
                    split,
                    self.examples,
                    program.rows,
                    self.samples,
                    key=jax.random.key(self.seed),
                    right_from=self.right_from,
                )
                for k in self.k:
                    print(f"{split}: pass@{k} {proportion(pass_at_k(right, self.samples, k))} from {self.samples} each")
        return 0


@dataclass(frozen=True)
class Sample:
    """Print completions of prompts by a run's last checkpoint.

    Attributes:
        run: the run's folder.
        prompts: the prompts, such as "37+58="; a user's turn where the model has a chat template.
        raw: read prompts as text also where the model has a chat template.
        greedy: the most likely completion only, instead of random ones.
        seed: of the random completions.
        step: which checkpoint. None: the newest.
        mesh: devices, as in train. None: the run's.
    """

    run: tyro.conf.Positional[Path]
    prompts: tyro.conf.Positional[tuple[str, ...]]
    raw: bool = False
    greedy: bool = False
    seed: int = 0
    step: int | None = None
    mesh: str | None = None

    def execute(self) -> int:
        """Prints completions; returns the exit status."""
        if not self.prompts:
            raise ValueError('no prompts: name at least one, such as "37+58="')
        program, state, _ = _restored(self)
        tokenizer, width = program.parts.task.tokenizer, program.parts.task.max_prompt_tokens
        has_template = isinstance(tokenizer, PretrainedTokenizer) and tokenizer.template is not None
        if self.raw and not has_template:
            raise ValueError("--raw has no effect: the run's model has no chat template")
        chat = has_template and not self.raw
        system = load(self.run / "config.json").task.system or ""
        texts = [rendered(tokenizer, as_chat(text, system) if chat else text) for text in self.prompts]
        if isinstance(tokenizer, PretrainedTokenizer):  # no table of characters bounds what can be asked
            width = max(width, *(len(tokenizer.encode(text)) for text in texts))
        multiple = program.mesh.shape["data"] * program.mesh.shape["fsdp"]
        rows = -(-len(self.prompts) // multiple) * multiple
        prompts = encode_prompts(tokenizer, texts, width, rows)
        generate = program.answer if self.greedy else program.generate
        completions = decode(tokenizer, generate(state.params, prompts, key=jax.random.key(self.seed)))
        size = len(completions) // rows
        for number, prompt in enumerate(self.prompts):
            for completion in completions[number * size : (number + 1) * size]:
                print(f"{prompt}\n{completion}\n" if chat else f"{prompt}{completion}")
        return 0


@dataclass(frozen=True)
class Export:
    """Write the model of a run's checkpoint as Hugging Face lays models out, for transformers, vLLM or another run.

    A run that started from a pretrained model leaves its last one in its folder, under model.

    Attributes:
        run: the run's folder.
        out: the folder to write.
        step: which checkpoint. None: the newest.
        mesh: devices, as in train. None: the run's.
    """

    run: tyro.conf.Positional[Path]
    out: tyro.conf.Positional[Path]
    step: int | None = None
    mesh: str | None = None

    def execute(self) -> int:
        """Writes the model; returns the exit status."""
        program, state, _ = _restored(self)
        if program.parts.save is None:
            raise ValueError(f"{self.run} did not start from a pretrained model, whose layout its own could have")
        program.parts.save(self.out, program.whole(state.params))
        print(self.out)
        return 0


def _restored(command: Evaluate | Sample | Export) -> tuple[Program, TrainState, int]:
    config = load(command.run / "config.json")
    config = replace(config, rollout=replace(config.rollout, mesh=None))  # nothing is updated while this samples
    program = compile_program(config if command.mesh is None else replace(config, mesh=command.mesh))
    found = checkpoints.load(command.run / "checkpoints", program.shapes, command.step)
    return program, found.state, found.step
