"""The command line: train, evaluate, sample, export, certify. ``grpo-jax train --help`` lists every option."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import jax
import tyro
from matplotlib.backend_bases import FigureCanvasBase

from grpo_jax import checkpoints
from grpo_jax.config import Config, load
from grpo_jax.evaluation import evaluate, right_of_samples
from grpo_jax.memory import keep_freed_memory
from grpo_jax.metrics import pass_at_k, proportion
from grpo_jax.oracle import certify_shipped, heatmap, print_records, to_json
from grpo_jax.presets import check_files, preset
from grpo_jax.program import Program, compile_program
from grpo_jax.tasks import PretrainedTokenizer, as_chat, decode, encode_prompts, rendered
from grpo_jax.train import TrainingStopped, train
from grpo_jax.types import TrainState


@dataclass(frozen=True)
class Train:
    """Train a policy: warm start, then group-relative policy optimisation; everything it leaves lies in one folder.

    Tune in this order: the learning rate, then beta by decades, then the group size.

    Attributes:
        out: the run's folder. None: the first free one of runs/1, runs/2, ...
        resume: continue the run in the folder from its last checkpoint, with its own options; steps, checkpoint_every,
            keep_checkpoints and mesh may be given anew.
        preset: where the options start from: default, language-model, smoke, throughput; with a pretrained model:
            checkpoint (yours), smollm2-135m, qwen2.5-0.5b-gsm8k, qwen2.5-7b-math, llama3.1-8b-math.
        config_file: start from a saved config.json instead of a preset.
        config: every option of the run.
    """

    config: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)
    out: Path | None = None
    resume: bool = False
    preset: str | None = None
    config_file: Annotated[Path | None, tyro.conf.arg(name="config")] = None


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


@dataclass(frozen=True)
class Certify:
    """Print which gradient every shipped configuration follows, found exactly by listing all groups of completions.

    Each is compared with what it declares; the exit status is 1 where a promise is broken.

    Attributes:
        estimator: only the KL terms of this one: k1, k2, k3, absolute, straight_through, clamped, full. None: all.
        json: file for the records, one for each configuration and way of sampling.
        plot: file for a picture of all distances, such as distances.png.
        seed: of policy, reference, sampler and rewards.
        vocabulary: number of token ids; token 0 ends a completion.
        length: longest completion.
    """

    estimator: str | None = None
    json: Path | None = None
    plot: Path | None = None
    seed: int = 0
    vocabulary: int = 3
    length: int = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: the words after the program's name; None: those it was called with.

    Returns:
        The exit status: 0, 1 where the run failed, 2 where the arguments or the files do not fit, 130 on interruption.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        command = _parse(words)
        keep_freed_memory()
        if isinstance(command, Train):
            if command.resume and command.out is None:
                raise ValueError("--resume: which run? Name its folder with --out")
            if command.preset is not None:
                check_files(command.preset, command.config)
            train(command.config, command.out or _free_folder(), resume=command.resume)
        elif isinstance(command, Evaluate):
            _evaluate(command)
        elif isinstance(command, Certify):
            return _certify(command)
        elif isinstance(command, Export):
            _export(command)
        else:
            _sample(command)
    except KeyboardInterrupt:
        return _failed("interrupted; --resume --out FOLDER continues from the last checkpoint", 130)
    except TrainingStopped as error:
        return _failed(error, 1)
    except (ValueError, OSError, ImportError) as error:
        return _failed(error, 2)
    return 0


def _failed(error: Exception | str, status: int) -> int:
    print(f"grpo-jax: {error}", file=sys.stderr)
    return status


def _parse(words: list[str]) -> Train | Evaluate | Sample | Export | Certify:
    start = Train(config=_starting_point(words)) if words[:1] == ["train"] else Train()
    commands = (
        Annotated[Train, tyro.conf.subcommand("train", default=start)]
        | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
        | Annotated[Sample, tyro.conf.subcommand("sample")]
        | Annotated[Export, tyro.conf.subcommand("export")]
        | Annotated[Certify, tyro.conf.subcommand("certify")]
    )
    return tyro.cli(commands, prog="grpo-jax", args=words, description=__doc__)  # pyright: ignore[reportArgumentType]


def _starting_point(words: list[str]) -> Config:
    """Returns the configuration that the other options change: a preset's, a saved one, or that of the resumed run."""
    reader = argparse.ArgumentParser(prog="grpo-jax train", add_help=False, allow_abbrev=False)
    reader.add_argument("--preset")
    reader.add_argument("--config")
    reader.add_argument("--out")
    reader.add_argument("--resume", action="store_true")
    named, _ = reader.parse_known_args(words)
    if named.preset is not None and named.config is not None:
        raise ValueError(f"--preset {named.preset} and --config {named.config}: give one of them")
    if named.config is not None:
        return load(named.config)
    if named.preset is None and named.resume and named.out and Path(named.out, "config.json").is_file():
        return load(Path(named.out, "config.json"))
    return preset("default" if named.preset is None else named.preset)


def _free_folder() -> Path:
    number = 1
    while Path("runs", str(number)).exists():
        number += 1
    return Path("runs", str(number))


def _restored(command: Evaluate | Sample | Export) -> tuple[Program, TrainState]:
    config = load(command.run / "config.json")
    program = compile_program(config if command.mesh is None else replace(config, mesh=command.mesh))
    return program, checkpoints.restore(command.run / "checkpoints", program.shapes, command.step)


def _evaluate(command: Evaluate) -> None:
    for k in command.k:
        if command.samples and not 1 <= k <= command.samples:
            raise ValueError(f"--k {k}: pass@{k} needs at least {k} completions of each problem; raise --samples")
    step = checkpoints.latest(command.run / "checkpoints") if command.step is None else command.step
    program, state = _restored(command)
    task = program.parts.task
    splits = [split for split in task.splits if split != "train"] if command.split is None else [command.split]
    for split in splits:
        found = evaluate(task, program.answer, state.params, split, command.examples, program.evaluation_rows)
        within = "" if found.interval is None else f" (95 %: {found.interval.low:.4f} to {found.interval.high:.4f})"
        print(f"{split}: accuracy {found.accuracy:.4f}{within} on {found.examples} problems at step {step}")
        if command.samples:
            right = right_of_samples(
                task,
                program.generate,
                state.params,
                split,
                command.examples,
                program.rows,
                command.samples,
                key=jax.random.key(command.seed),
                right_from=command.right_from,
            )
            for k in command.k:
                print(
                    f"{split}: pass@{k} {proportion(pass_at_k(right, command.samples, k))} from {command.samples} each"
                )


def _sample(command: Sample) -> None:
    if not command.prompts:
        raise ValueError('no prompts: name at least one, such as "37+58="')
    program, state = _restored(command)
    tokenizer, width = program.parts.task.tokenizer, program.parts.task.max_prompt_tokens
    has_template = isinstance(tokenizer, PretrainedTokenizer) and tokenizer.template is not None
    if command.raw and not has_template:
        raise ValueError("--raw has no effect: the run's model has no chat template")
    chat = has_template and not command.raw
    system = load(command.run / "config.json").task.system or ""
    texts = [rendered(tokenizer, as_chat(text, system) if chat else text) for text in command.prompts]
    if isinstance(tokenizer, PretrainedTokenizer):  # no table of characters bounds what can be asked
        width = max(width, *(len(tokenizer.encode(text)) for text in texts))
    multiple = program.mesh.shape["data"] * program.mesh.shape["fsdp"]
    rows = -(-len(command.prompts) // multiple) * multiple
    prompts = encode_prompts(tokenizer, texts, width, rows)
    generate = program.answer if command.greedy else program.generate
    completions = decode(tokenizer, generate(state.params, prompts, key=jax.random.key(command.seed)))
    size = len(completions) // rows
    for number, prompt in enumerate(command.prompts):
        for completion in completions[number * size : (number + 1) * size]:
            print(f"{prompt}\n{completion}\n" if chat else f"{prompt}{completion}")


def _export(command: Export) -> None:
    program, state = _restored(command)
    if program.parts.save is None:
        raise ValueError(f"{command.run} did not start from a pretrained model, whose layout its own could have")
    program.parts.save(command.out, program.whole(state.params))
    print(command.out)


def _certify(command: Certify) -> int:
    for name, path in (("json", command.json), ("plot", command.plot)):
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"--{name} {path}: there is no folder {path.parent}; make it first")
        if path is not None and path.is_dir():
            raise ValueError(f"--{name} {path} is a folder; name a file in it")
    known = sorted(FigureCanvasBase.filetypes)
    if command.plot is not None and command.plot.suffix[1:].lower() not in known:
        raise ValueError(
            f"--plot {command.plot}: no picture is written with this ending; give one of {', '.join(known)}"
        )
    records = certify_shipped(command.estimator, command.seed, command.vocabulary, command.length)
    print_records(records)
    if command.json is not None:
        to_json(records, command.json)
    if command.plot is not None:
        heatmap(records, command.plot)
    return int(any(record.wrong for record in records))


if __name__ == "__main__":
    sys.exit(main())
