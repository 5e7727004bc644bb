"""The fields of a run's configuration, one frozen class per stage.

A field that is None takes the default of the part it belongs to; setting it for a part that does not read it is an
error (`grpo_jax.components`), so no option is ever without effect.
"""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class TaskConfig:
    """The problems: arithmetic in characters, files with prompts, or a data set of reasoning-gym.

    Attributes:
        kind: where the problems are from; file and reasoning_gym need a pretrained model (model.path).
        operators: arithmetic: which of + - * are trained on. None: + and -.
        digits: arithmetic: fewest and most digits of an operand. None: 1 and 2.
        held_out: share of the pairs of operands, or of a file's prompts, never trained on, in (0, 1). None: 0.1.
        train: file: the training problems, .jsonl or .parquet; a prompt is a text, or a list of messages, and the
            reward functions receive all other columns by name.
        evaluation: file: problems never trained on, as validation=PATH,math500=PATH. None: some of the training
            problems, the held-out ones, are the validation split.
        prompt_column: file: the column with the prompt. None: the first of prompt, problem and question that it has.
        system: a system message; a prompt that is text becomes a user's turn after it. Empty: a user's turn without
            one. None: text is read as it is.
        max_prompt_tokens: longest prompt, in tokens. None: as long as the longest.
        drop_long: file: leave longer prompts out, instead of stopping at the first. None: stop.
        dataset: reasoning_gym: the data set, such as chain_sum.
        options: reasoning_gym: fields of its configuration, as min_terms=2,max_terms=3. None: its defaults.
        seed: which problems are held out, and their order.
    """

    kind: Literal["arithmetic", "file", "reasoning_gym"] = "arithmetic"
    operators: str | None = None
    digits: tuple[int, int] | None = None
    held_out: float | None = None
    train: str | None = None
    evaluation: str | None = None
    prompt_column: str | None = None
    system: str | None = None
    max_prompt_tokens: int | None = None
    drop_long: bool | None = None
    dataset: str | None = None
    options: str | None = None
    seed: int = 0


@dataclass(frozen=True)
class ModelConfig:
    """The decoder, of a shape of its own or that of a pretrained model.

    Attributes:
        path: a pretrained model: a folder as Hugging Face lays it out, or a .gguf file. It says everything from layers
            to tied_head, which then stay as they are here. None: a new decoder.
        layers: number of blocks.
        width: width of the residual stream.
        heads: query heads.
        kv_heads: key-value heads; divides heads.
        head_dim: width of a head, even.
        hidden: inner width of the feed-forward network.
        rope_theta: base of the rotary frequencies.
        norm_epsilon: added to the mean square in RMSNorm.
        tied_head: whether the head is the transposed embedding.
        scan_layers: compile one block and loop over layers: quicker to compile, slower to run when small.
        remat_layers: recompute each layer in the backward pass instead of keeping what it computed: less memory. Add
            scan_layers: of a loop no compiler can recompute all layers at once, which XLA does on CPUs. On CPUs the
            command line then also gives freed memory back before every update.
        dtype: what blocks compute in; parameters and log-probs are float32.
        logits_per_chunk: most logits that scoring holds at a time on each device.
        attention_logits_per_chunk: most logits of attention that a layer holds at a time while scoring.
        lora_rank: train adapters of this rank beside the frozen pretrained model; the reference is the model as loaded.
            None: train the whole model.
        lora_alpha: alpha / rank multiplies what they add. None: twice the rank.
        lora_targets: which matrices to adapt, joined by commas: query, key, value, output, gate, up, down. None: all.
    """

    path: str | None = None
    layers: int = 2
    width: int = 128
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    hidden: int = 512
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-6
    tied_head: bool = True
    scan_layers: bool = False
    remat_layers: bool = False
    dtype: Literal["float32", "bfloat16"] = "float32"
    logits_per_chunk: int = 2**23
    attention_logits_per_chunk: int = 2**26
    lora_rank: int | None = None
    lora_alpha: float | None = None
    lora_targets: str | None = None


@dataclass(frozen=True)
class RolloutConfig:
    """How completions are sampled.

    Attributes:
        prompts: prompts (groups) per update, P.
        group_size: completions per prompt, G; 4 to 16 is usual.
        max_tokens: budget of a completion in tokens, T. None: what the task's longest answer needs.
        temperature: of sampling and of every log-prob, > 0.
        top_k: sample among the k most likely tokens. None: all.
        top_p: sample among the most likely tokens that hold this probability. None: all.
        resample_rounds: replace groups with equal rewards by new prompts, sampling at most so many extra rounds. This
            conditions the prompts on being neither too easy nor too hard. 0: never.
        slots: most completions that decode at a time; one that ends makes room for the next. For lengths that differ
            much, where all at once do not fit or keep the devices busy. None: all at once.
        lag: updates that the policy which samples is behind the one that is updated, so that completions are sampled
            and scored while updates run. Every update gets them from the policy of exactly so many updates ago (the
            first ones from the initial policy), with its log-probs as the old ones of every ratio; they are then as
            reproducible as without lag. Keeps up to lag + 1 older policies in memory. 0: sample, then update.
        mesh: devices for sampling alone, as data=2,tensor=2: the last ones, and mesh describes the others. The policy
            goes there after each update. None: sample where updates run.
        layout: another mesh of the devices of updates for sampling, as data=-1,tensor=4. The policy is laid out anew,
            once for a batch of completions: a step that decodes a token each then reads weights that are there, where
            with mesh=fsdp=-1 it would gather every layer. None: the layout of updates.
    """

    prompts: int = 32
    group_size: int = 8
    max_tokens: int | None = None
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    resample_rounds: int = 0
    slots: int | None = None
    lag: int = 0
    mesh: str | None = None
    layout: str | None = None


@dataclass(frozen=True)
class RewardConfig:
    """The reward, and what is added to it; groups count as degenerate by the task's reward alone.

    Attributes:
        functions: reward functions as module:function, also in the working directory, or by the name of a shipped one
            (math_answer, symbolic_answer, countdown); several with weights, as my_rewards:correct,my_rewards:short=0.2.
            They have TRL's signature. None: the task's own; a file has none.
        timeout: seconds for the reward of one completion, which is then computed in a process of its own; one that
            hangs or breaks has no reward, and the run goes on. None: no limit, in the run's own process.
        overlong_cache: charge completions that come within so many tokens of the budget, up to 1. None: no charge.
        overlong_weight: weight of that charge. None: 1.
    """

    functions: str | None = None
    timeout: float | None = None
    overlong_cache: int | None = None
    overlong_weight: float | None = None


@dataclass(frozen=True)
class ObjectiveConfig:
    """The objective; `grpo_jax.losses` says what each choice follows.

    Attributes:
        advantage: from rewards to advantages; separately_standardised (GDPO) takes several rewards one by one.
        ddof: of a standard deviation, 0 or 1.
        epsilon: added to a standard deviation.
        surrogate: the policy loss.
        clip_low: how far below 1 a ratio may go.
        clip_high: how far above 1 a ratio may go.
        dual_cap: largest ratio that a negative advantage meets.
        gate_positive: temperature of SAPO's gate for positive advantages.
        gate_negative: temperature of SAPO's gate for negative advantages.
        kl: the estimator of the KL to the reference; k3_k2 has the value of k3 and the gradient of k2, full is exact
            over the vocabulary, none needs no reference. None: k1.
        placement: where the KL acts; in the reward before the baseline, or to_go after it. None: to_go (full: both).
        granularity: estimate per token or from the whole sequence's log-ratio. None: token.
        importance: weights of a KL in the loss when an older policy sampled. None: none.
        kl_clamp: largest absolute value of an estimate, in nats; the gradient goes on. None: no clamp.
        allow_biased: accept a KL term that is known to pull nowhere, to study it.
        degenerate: what becomes of groups with equal rewards.
        denominator: whether dropped groups count in the mean.
        smooth_scale: std of rewards at which the smooth weight is 0.76.
        shaping_alpha: advantage per nat of entropy.
        shaping_threshold: reward above which a degenerate group counts as all right.
        tolerance: difference of rewards that still counts as equal.
        reduction: from token losses to one number.
        constant: tokens that constant_length divides by. None: the budget.
        entropy: weight of the entropy bonus, per nat.
        mismatch: correction between the sampler's log-probs and the trainer's.
        mismatch_cap: largest weight of a truncated correction.
        mismatch_low: smallest ratio that a masked correction keeps.
        mismatch_high: largest ratio that a masked correction keeps.
        off_policy_delta: drop completions with a negative advantage whose mean log-ratio exceeds it, nats per token.
    """

    advantage: Literal[
        "leave_one_out",
        "centred",
        "standardised",
        "leave_one_out_standardised",
        "max_rl",
        "batch_whitened",
        "separately_standardised",
    ] = "leave_one_out"
    ddof: int | None = None
    epsilon: float | None = None
    surrogate: Literal[
        "clipped",
        "dual_clipped",
        "reinforce",
        "importance_weighted",
        "sequence_importance_weighted",
        "cispo",
        "gspo",
        "gspo_token",
        "sapo",
    ] = "clipped"
    clip_low: float | None = None
    clip_high: float | None = None
    dual_cap: float | None = None
    gate_positive: float | None = None
    gate_negative: float | None = None
    kl: Literal["k1", "k2", "k3", "abs", "k3_k2", "full", "none"] | None = None
    placement: Literal["loss", "reward", "to_go", "own_token", "both"] | None = None
    granularity: Literal["token", "sequence"] | None = None
    importance: Literal["none", "token", "prefix", "sequence", "causal", "detached_sequence"] | None = None
    kl_clamp: float | None = None
    allow_biased: bool | None = None
    degenerate: Literal["keep", "mask", "smooth", "entropy_shaped"] = "keep"
    denominator: Literal["all", "live"] | None = None
    smooth_scale: float | None = None
    shaping_alpha: float | None = None
    shaping_threshold: float | None = None
    tolerance: float = 0.0
    reduction: Literal["constant_length", "token_mean", "sequence_mean_of_token_mean", "sequence_mean_of_token_sum"] = (
        "constant_length"
    )
    constant: int | None = None
    entropy: float = 0.0
    mismatch: Literal["none", "truncated_token", "truncated_sequence", "masked_token", "masked_sequence"] = "none"
    mismatch_cap: float | None = None
    mismatch_low: float | None = None
    mismatch_high: float | None = None
    off_policy_delta: float | None = None


@dataclass(frozen=True)
class BetaConfig:
    """The strength of the KL term: a constant, a schedule, an adaptive rule, or a schedule and then a rule.

    Attributes:
        value: beta; where a schedule ends and an adaptive rule starts. 0 with neither: no reference is used. Starting
            points: .01 to .05 for language models, about .1 below 1B parameters and .01 from 7B; .005 to .02 for path
            planning; .1 to .5 offline. Change it by decades.
        schedule: how beta gets to its value.
        schedule_start: beta at the first update.
        schedule_steps: updates until the value is reached.
        adaptive: how beta reacts to the measured KL.
        target: the KL aimed at, in nats of the statistic.
        alpha: gain of the proportional rule per nat; .1 / target to .3 / target.
        horizon: completions (clipped_proportional) or updates (proportional_integral) over which it acts.
        floor: smallest beta.
        ceiling: largest beta.
        statistic: the KL that target speaks of.
    """

    value: float = 0.02
    schedule: Literal["none", "linear_warmup", "tight_then_loose"] = "none"
    schedule_start: float | None = None
    schedule_steps: int | None = None
    adaptive: Literal["none", "proportional", "proportional_integral", "clipped_proportional"] = "none"
    target: float | None = None
    alpha: float | None = None
    horizon: float | None = None
    floor: float | None = None
    ceiling: float | None = None
    statistic: Literal["nats_per_token", "nats_per_sequence"] | None = None


@dataclass(frozen=True)
class ReferenceConfig:
    """The policy that the KL is measured against.

    Attributes:
        kind: frozen at the start, copied every so many steps, a moving average, or the policy that sampled.
        every: optimizer steps between two moves.
        rate: share of the policy in the moving average.
    """

    kind: Literal["frozen", "copied_every", "ema", "behaviour"] = "frozen"
    every: int | None = None
    rate: float | None = None


@dataclass(frozen=True)
class UpdateConfig:
    """The optimizer and how a batch is taken.

    Attributes:
        learning_rate: of Adam, > 0.
        warmup_steps: optimizer steps until it is reached.
        weight_decay: decoupled, >= 0.
        max_norm: largest norm of the gradient, > 0.
        updates_per_rollout: optimizer steps on each batch of completions.
        micro_batches: parts that a batch is taken in, to save memory; changes nothing else.
        packing_widths: lay the completions of a group end to end in bins, so that what is computed are their tokens and
            hardly their padding; changes nothing else. The bins' width is one of so many sizes up to the budget: more
            fit closer, and compile more often; 8 is usual. None: a completion is as wide as the budget.
        max_rejected: stop after so many updates in a row with a loss or gradient that is not finite.
    """

    learning_rate: float = 3e-4
    warmup_steps: int = 5
    weight_decay: float = 0.0
    max_norm: float = 1.0
    updates_per_rollout: int = 1
    micro_batches: int = 1
    packing_widths: int | None = None
    max_rejected: int = 5


@dataclass(frozen=True)
class WarmStartConfig:
    """Supervised learning before the run; what comes out of it is the reference.

    Attributes:
        steps: most updates; 0: none, the policy starts from its initial values.
        batch: demonstrations per update.
        learning_rate: of Adam, > 0.
        slips: share of demonstrations that make the task's typical mistake, in [0, 1). The policy then knows the right
            way and the wrong one, and the reward decides.
        target: stop early once this share of fresh training problems is solved, in (0, 1].
        check_every: updates between two looks at that share.
    """

    steps: int = 1000
    batch: int = 256
    learning_rate: float = 2e-3
    slips: float = 0.7
    target: float = 1.0
    check_every: int = 200


@dataclass(frozen=True)
class EvaluationConfig:
    """Greedy accuracy on problems never trained on.

    Attributes:
        examples: most problems of each split, before and after training.
        every: updates between two evaluations on the validation split; 0: only before and after.
    """

    examples: int = 512
    every: int = 25


@dataclass(frozen=True)
class Config:
    """A run.

    Attributes:
        task: the problems.
        model: the policy.
        rollout: how completions are sampled.
        reward: what is added to the task's reward.
        objective: the loss.
        beta: the strength of the KL term.
        reference: what the KL is measured against.
        update: the optimizer.
        warm_start: supervised learning before the run.
        evaluation: accuracy on problems never trained on.
        steps: updates, each on one batch of completions.
        seed: of everything random in the run.
        mesh: devices, as data=4,fsdp=2,tensor=1 (-1 fills up). Empty: all on data. Without those of rollout.mesh.
        checkpoint_every: updates between two checkpoints.
        keep_checkpoints: how many of the newest stay.
        keep_best: how many of those with the highest accuracy on the validation split stay too, however old; only
            steps that are evaluated (evaluation.every) compete. 0: none.
        keep_every: a checkpoint whose step is a multiple of it stays for good; a multiple of checkpoint_every. 0: none.
        gradient_share_every: updates between two measurements of the share of the gradient that degenerate groups
            carry; each costs one more backward pass. 0: never.
        certify_every: updates between two estimates, from the update's own samples, of which gradient the KL term
            follows, with 95 % intervals; each costs two forward and six backward passes, some five updates. 0: never.
        diagnose_every: updates between two looks at the measures so far for signs of trouble, by the rules of grpo-jax
            diagnose; a finding is printed once and kept in diagnosis.jsonl. 0: never.
        check_invariants: assert in every update that no masked token and no dropped group has a gradient; costs one
            more scoring pass.
    """

    task: TaskConfig = field(default_factory=TaskConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    beta: BetaConfig = field(default_factory=BetaConfig)
    reference: ReferenceConfig = field(default_factory=ReferenceConfig)
    update: UpdateConfig = field(default_factory=UpdateConfig)
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    steps: int = 120
    seed: int = 0
    mesh: str = ""
    checkpoint_every: int = 25
    keep_checkpoints: int = 3
    keep_best: int = 0
    keep_every: int = 0
    gradient_share_every: int = 10
    certify_every: int = 0
    diagnose_every: int = 10
    check_invariants: bool = False
