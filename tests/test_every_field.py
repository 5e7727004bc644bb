"""Every field of the configuration changes something that can be seen."""

import dataclasses
import re
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import grpo_jax.train
import grpo_jax.warm_start
from grpo_jax import checkpoints
from grpo_jax.components import build, build_controller, build_objective, build_optimizer, build_reference
from grpo_jax.config import ModelConfig, from_dict, to_dict
from grpo_jax.evaluation import Evaluation
from grpo_jax.experience import Collector, score
from grpo_jax.program import compile_program
from grpo_jax.tasks import encode_prompts, rollout_from_texts
from grpo_jax.testing import random_batch, random_scores, scripted_sampler
from grpo_jax.types import Batch, Prompts, Rollout
from grpo_jax.updates import WarmStart, WarmStartState
from tests.runs import TINY, compiled, rows_of, with_reward


class Flip(NamedTuple):
    """Another value of a field, and the settings without which it would have no effect."""

    value: object
    beside: dict = {}
    base_fails: bool = False


HERE = Path(__file__).parent
LLAMA = str(HERE / "models" / "pretrained" / "fixtures" / "llama")
SUMS, PRODUCTS = (str(HERE / "tasks" / "fixtures" / f"{name}.jsonl") for name in ("sums", "products"))
SHAPE = {f"model.{name}": value for name, value in dataclasses.asdict(ModelConfig()).items() if name != "path"}
PRETRAINED = {**SHAPE, "model.path": LLAMA, "task.digits": None}
FILE = {**PRETRAINED, "task.kind": "file", "task.train": SUMS, "reward.functions": "tests.runs:odd"}
GYM = {**PRETRAINED, "task.kind": "reasoning_gym", "task.dataset": "chain_sum"}
"""What a task from files, and one of reasoning-gym, needs."""


def without(values, *names):
    return {name: value for name, value in values.items() if name not in names}


FLIPS = {
    "task.kind": Flip("file", without(FILE, "task.kind"), base_fails=True),
    "task.operators": Flip("*"),
    "task.digits": Flip([2, 2]),
    "task.held_out": Flip(0.3),
    "task.train": Flip(PRODUCTS, FILE | {"task.held_out": 0.5}),
    "task.evaluation": Flip(f"validation={PRODUCTS},again={PRODUCTS}", FILE),
    "task.prompt_column": Flip("answer", FILE),
    "task.system": Flip("be brief", FILE),
    "task.max_prompt_tokens": Flip(6, FILE | {"task.drop_long": True}, base_fails=True),
    "task.drop_long": Flip(True, FILE | {"task.max_prompt_tokens": 5}, base_fails=True),
    "task.dataset": Flip("basic_arithmetic", GYM),
    "task.options": Flip("min_terms=2,max_terms=2", GYM),
    "task.seed": Flip(1),
    "model.path": Flip(LLAMA, without(FILE, "model.path"), base_fails=True),
    "model.layers": Flip(2),
    "model.width": Flip(8),
    "model.heads": Flip(1),
    "model.kv_heads": Flip(2),
    "model.head_dim": Flip(4),
    "model.hidden": Flip(8),
    "model.rope_theta": Flip(100.0),
    "model.norm_epsilon": Flip(0.1),
    "model.tied_head": Flip(False),
    "model.scan_layers": Flip(True),
    "model.remat_layers": Flip(True),
    "model.dtype": Flip("bfloat16"),
    "model.logits_per_chunk": Flip(1),
    "model.attention_logits_per_chunk": Flip(1),
    "model.lora_rank": Flip(1, FILE),
    "model.lora_alpha": Flip(0.5, FILE | {"model.lora_rank": 1}),
    "model.lora_targets": Flip("query,down", FILE | {"model.lora_rank": 1}),
    "rollout.prompts": Flip(5),
    "rollout.group_size": Flip(3),
    "rollout.max_tokens": Flip(2),
    "rollout.temperature": Flip(0.5),
    "rollout.top_k": Flip(2),
    "rollout.top_p": Flip(0.3),
    "rollout.resample_rounds": Flip(2),
    "rollout.slots": Flip(5),
    "rollout.lag": Flip(1),
    "rollout.mesh": Flip("data=2,fsdp=2"),
    "rollout.layout": Flip("data=4,tensor=2"),
    "reward.functions": Flip("tests.runs:odd,countdown=0.5"),
    "reward.timeout": Flip(5.0),
    "reward.overlong_cache": Flip(2),
    "reward.overlong_weight": Flip(0.5, {"reward.overlong_cache": 2}),
    "objective.advantage": Flip("centred"),
    "objective.ddof": Flip(0, {"objective.advantage": "standardised"}),
    "objective.epsilon": Flip(0.5, {"objective.advantage": "standardised"}),
    "objective.surrogate": Flip("reinforce"),
    "objective.clip_low": Flip(0.05),
    "objective.clip_high": Flip(0.05),
    "objective.dual_cap": Flip(1.05, {"objective.surrogate": "dual_clipped"}),
    "objective.gate_positive": Flip(2.0, {"objective.surrogate": "sapo"}),
    "objective.gate_negative": Flip(2.0, {"objective.surrogate": "sapo"}),
    "objective.kl": Flip("full"),
    "objective.placement": Flip("reward"),
    "objective.granularity": Flip("sequence"),
    "objective.importance": Flip("token", {"objective.kl": "k3", "objective.placement": "loss"}),
    "objective.kl_clamp": Flip(0.05),
    "objective.allow_biased": Flip(True, {"objective.placement": "loss"}, base_fails=True),
    "objective.degenerate": Flip("mask"),
    "objective.denominator": Flip("live", {"objective.degenerate": "mask", "objective.reduction": "token_mean"}),
    "objective.smooth_scale": Flip(10.0, {"objective.degenerate": "smooth"}),
    "objective.shaping_alpha": Flip(1.0, {"objective.degenerate": "entropy_shaped"}),
    "objective.shaping_threshold": Flip(0.9, {"objective.degenerate": "entropy_shaped"}),
    "objective.tolerance": Flip(0.2, {"objective.degenerate": "mask"}),
    "objective.reduction": Flip("token_mean"),
    "objective.constant": Flip(7),
    "objective.entropy": Flip(0.1),
    "objective.mismatch": Flip("truncated_token"),
    "objective.mismatch_cap": Flip(1.0, {"objective.mismatch": "truncated_token"}),
    "objective.mismatch_low": Flip(0.99, {"objective.mismatch": "masked_token"}),
    "objective.mismatch_high": Flip(1.01, {"objective.mismatch": "masked_token"}),
    "objective.off_policy_delta": Flip(0.01),
    "beta.value": Flip(0.5),
    "beta.schedule": Flip("linear_warmup"),
    "beta.schedule_start": Flip(0.01, {"beta.schedule": "linear_warmup"}),
    "beta.schedule_steps": Flip(3, {"beta.schedule": "linear_warmup"}),
    "beta.adaptive": Flip("proportional", {"beta.target": 0.1}, base_fails=True),
    "beta.target": Flip(1.0, {"beta.adaptive": "proportional"}, base_fails=True),
    "beta.alpha": Flip(0.3, {"beta.adaptive": "proportional", "beta.target": 0.1}),
    "beta.horizon": Flip(50.0, {"beta.adaptive": "clipped_proportional", "beta.target": 0.1}, base_fails=True),
    "beta.floor": Flip(0.019, {"beta.adaptive": "proportional", "beta.target": 0.8}),
    "beta.ceiling": Flip(0.021, {"beta.adaptive": "proportional", "beta.target": 0.1}),
    "beta.statistic": Flip("nats_per_sequence", {"beta.adaptive": "proportional", "beta.target": 0.1}),
    "reference.kind": Flip("behaviour"),
    "reference.every": Flip(3, {"reference.kind": "ema"}),
    "reference.rate": Flip(0.1, {"reference.kind": "ema", "reference.every": 2}),
    "update.learning_rate": Flip(0.1),
    "update.warmup_steps": Flip(2),
    "update.weight_decay": Flip(0.1),
    "update.max_norm": Flip(1e-9),
    "update.updates_per_rollout": Flip(2),
    "update.micro_batches": Flip(2),
    "update.packing_widths": Flip(2),
    "update.max_rejected": Flip(3),
    "warm_start.steps": Flip(7),
    "warm_start.batch": Flip(5),
    "warm_start.learning_rate": Flip(0.5),
    "warm_start.slips": Flip(0.1),
    "warm_start.target": Flip(0.3, {"warm_start.check_every": 4}),
    "warm_start.check_every": Flip(3),
    "evaluation.examples": Flip(4),
    "evaluation.every": Flip(1),
    "steps": Flip(3),
    "seed": Flip(1),
    "mesh": Flip("data=4,fsdp=2"),
    "checkpoint_every": Flip(3),
    "keep_checkpoints": Flip(1),
    "keep_best": Flip(2, {"keep_checkpoints": 1}),
    "keep_every": Flip(2, {"keep_checkpoints": 1}),
    "gradient_share_every": Flip(3),
    "certify_every": Flip(2),
    "diagnose_every": Flip(2),
    "check_invariants": Flip(True),
}


def field_names():
    """Every field, those of a section as section.field."""
    names = []
    for field in dataclasses.fields(TINY):
        inner = getattr(TINY, field.name)
        if dataclasses.is_dataclass(inner):
            names += [f"{field.name}.{each.name}" for each in dataclasses.fields(inner)]
        else:
            names.append(field.name)
    return names


def changed(config, values):
    """The configuration with some fields, named as in FLIPS, set."""
    plain = to_dict(config)
    for name, value in values.items():
        *section, field = name.split(".")
        (plain[section[0]] if section else plain)[field] = value
    return from_dict(plain)


def gradient(config, **_):
    """The objective's gradient with respect to everything scored, on groups that are degenerate, close and apart."""
    batch = random_batch(key=jax.random.key(0))
    rewards = jnp.stack([jnp.full(4, 0.7), jnp.array([0.5, 0.6, 0.5, 0.5]), jnp.array([0.0, 1.0, 1.0, 0.0])])
    batch = batch._replace(rewards=rewards, task_rewards=rewards)
    scores = random_scores(batch, key=jax.random.key(1))
    made = build_objective(config.objective, 5)
    return jax.grad(lambda scores: made(scores, batch, 0.3)[0])(scores)


def betas(config, **_):
    """The betas of seven updates under a fixed sequence of KL, and which KL is asked for."""
    controller = build_controller(config.beta)
    state, found = controller.init(), []
    for kl in (0.2, 0.05, 1.0, 2.0, 0.01, 0.3, 0.1):
        found.append(float(controller.beta(state)))
        state = controller.update(state, jnp.float32(kl), jnp.float32(8))
    return found, controller.statistic


def reference_moves(config, **_):
    """What the reference is after each of six steps of a policy that grows."""
    reference = build_reference(config.reference)
    kept, found = reference.init({"w": jnp.zeros(1)}), []
    for step in range(1, 7):
        kept = reference.update(kept, {"w": jnp.full(1, float(step))}, jnp.int32(step))
        found.append(kept)
    return found


def optimizer_steps(config, **_):
    """The parameters after each of three gradients."""
    optimizer = build_optimizer(config.update)
    params = {"w": jnp.ones(2)}
    state, found = optimizer.init(params), []
    for size in (1.0, 2.0, 0.5):
        updates, state = optimizer.update({"w": jnp.array([1.0, -0.5]) * size}, state, params)
        params = optax.apply_updates(params, updates)
        found.append(params)
    return found


def update_program(config, **_):
    """The compiled update as a jaxpr: how often what is computed."""
    program = compiled(config)
    shape = (program.rows, config.rollout.group_size, program.parts.max_tokens)
    mask, log_probs = np.ones(shape, bool), np.zeros(shape, np.float32)
    width = (program.rows, program.parts.task.max_prompt_tokens)
    prompts = Prompts(np.zeros(width, np.int32), np.ones(width, bool))
    rollout = Rollout(prompts, np.zeros(shape, np.int32), mask, log_probs, mask[..., 0])
    return jax.make_jaxpr(program.update)(program.shapes, rollout, Batch(mask, log_probs[..., 0], mask[..., 0]))


def rejections(config, folder, monkeypatch):
    """How many updates in a row had to fail until the run stopped."""

    def huge(prompts, completions, **columns):
        return [(-1.0) ** number * 3e38 for number in range(len(completions))]

    with pytest.raises(grpo_jax.train.TrainingStopped) as stopped:
        trained(config, folder, monkeypatch, change=lambda program: with_reward(program, huge))
    return str(stopped.value).partition(":")[0]


def policy_numerics(config, **_):
    """Scoring as a jaxpr: the shapes of the parameters and what is computed from them."""
    policy = build(config).policy
    shape = (2, 2, 3)
    mask = np.ones(shape, bool)
    prompts = Prompts(np.zeros((2, 4), np.int32), np.ones((2, 4), bool))
    rollout = Rollout(prompts, np.zeros(shape, np.int32), mask, np.zeros(shape, np.float32), mask[..., 0])
    params = jax.eval_shape(lambda: policy.init(key=jax.random.key(0)))
    return jax.make_jaxpr(lambda params, rollout: policy.score(params, rollout, 1.0).log_probs)(params, rollout)


def adapted(config, **_):
    """What adapters add to the policy's parameters, as a jaxpr; None without adapters."""
    parts, key = build(config), jax.random.key(0)
    if parts.adapters is None:
        return None
    base, own = (jax.eval_shape(lambda each=each: each.init(key=key)) for each in (parts.policy, parts.adapters))
    return jax.make_jaxpr(parts.adapters.merge)(base, own)


def sampled(config, **_):
    """What the sampler is asked for and what its strategy chooses among, with which log-probs."""
    parts = build(config)
    logits = jnp.log(jnp.array([0.5, 0.25, 0.15, 0.1]))
    keys = jax.random.split(jax.random.key(0), 64)
    scaled = logits / parts.strategy.temperature
    chosen = jax.vmap(lambda key: parts.strategy.choose(scaled, key=key))(keys)
    shape = (config.rollout.prompts, config.rollout.group_size, parts.max_tokens)
    return shape, chosen, parts.strategy.temperature, collected_rounds(config, parts)


def sampling_program(config, **_):
    """The compiled samplers as jaxprs: how many rows decode at a time."""
    program = compiled(config)
    width = (program.rows, program.parts.task.max_prompt_tokens)
    prompts = Prompts(np.zeros(width, np.int32), np.ones(width, bool))
    samplers = (partial(each, key=jax.random.key(0)) for each in (program.generate, program.answer))
    return [jax.make_jaxpr(each)(program.shapes.params, prompts) for each in samplers]


def collected_rounds(config, parts):
    """How many rounds a collector samples where no group is ever informative."""
    rollout = config.rollout
    generate = scripted_sampler(parts.task.tokenizer, lambda _: [""] * rollout.group_size, rollout.group_size, 2)
    found = Collector(parts, generate, rollout.prompts, rollout.prompts, rollout.group_size, rollout.resample_rounds)
    experience = found.collect(None, 0, key=jax.random.key(0))
    return experience.rounds, experience.rollout.tokens.shape


class Stop(Exception):
    """A run is stopped here: what was to be seen is seen."""


def packed(config, folder, monkeypatch):
    """How the completions of a run's first batch are laid out where they reach the devices."""
    seen = []

    def place(tree):
        seen.append(tree[0].packing)
        raise Stop

    with pytest.raises(Stop):
        trained(config, folder, monkeypatch, lambda program: program._replace(place=place))
    return seen


def rewarded(config, **_):
    """The rewards of completions of every length."""
    parts = build(config)
    if config.reward.functions is not None:
        return [function.__name__ for function in parts.rewards], parts.reward_weights
    prompts = encode_prompts(parts.task.tokenizer, ["1+1="], 9)
    completions = ["", "2", "22"]
    rollout = rollout_from_texts(parts.task.tokenizer, prompts, completions, parts.max_tokens)
    return score(parts, rollout, parts.task.examples("train", 0, 1), completions, 3).rewards


def reward_functions(config, **_):
    return [type(function).__name__ for function in build(config).rewards]


def examples(config, **_):
    task = build(config).task
    return [task.examples(split, 0, min(4, size or 4)) for split, size in task.splits.items()]


def warm_start_calls(config, folder, monkeypatch):
    """What the warm start asks of the supervised learner: demonstrations, rate, when it looks and when it stops."""
    calls = []
    accuracies = iter([0.35, 0.5] * 20)

    def warm_start(score, optimizer, *, micro_batches):
        updates, _ = optimizer.update({"w": jnp.ones(1)}, optimizer.init({"w": jnp.ones(1)}), {"w": jnp.ones(1)})
        calls.append(float(updates["w"][0]))
        zero = jnp.int32(0)
        return WarmStart(lambda params: WarmStartState(params, None, zero, zero), step)

    def step(state, rollout):
        calls.append((int(np.any(rollout.prompts.mask, axis=1).sum()), int(rollout.tokens.sum())))
        return state, {"loss": 0.0}

    def solved(config, program, params, start):
        calls.append(("looks at", start))
        return next(accuracies)

    monkeypatch.setattr(grpo_jax.warm_start, "warm_start", warm_start)
    monkeypatch.setattr(grpo_jax.warm_start, "_solved", solved)
    monkeypatch.setattr(grpo_jax.warm_start.jax, "jit", lambda f, **_: f)
    base = dataclasses.replace(config.warm_start, **{"steps": 8} if config.warm_start.steps == 0 else {})
    program = compiled(TINY)._replace(initial=lambda *, key: {}, place=lambda tree: tree)
    grpo_jax.warm_start.warm_started(dataclasses.replace(config, warm_start=base), program, key=jax.random.key(0))
    return calls


def trained(config, folder, monkeypatch, change=lambda program: program):
    """Trains with the compiled steps that all tests share, without drawing curves."""
    monkeypatch.setattr(grpo_jax.train, "compile_program", lambda config, objective: change(compiled(config)))
    monkeypatch.setattr(grpo_jax.train, "save_curves", lambda *_: None)
    return grpo_jax.train.train(config, folder)


def noting(saver, note):
    """The saver of a run, which first notes the step that is to be saved."""

    @contextmanager
    def opened(*args):
        with saver(*args) as real:

            def save(state, step, **kwargs):
                note(step)
                real.save(state, step, **kwargs)

            yield real._replace(save=save)

    return opened


def run(config, folder, monkeypatch):
    """The rows, checkpoints and final parameters that a run leaves, and whether it checked its invariants."""
    checked, saved = [], []
    monkeypatch.setattr(checkpoints, "saver", noting(checkpoints.saver, saved.append))
    config = dataclasses.replace(config, keep_checkpoints=min(config.keep_checkpoints, 2))
    shared = dataclasses.replace(config, check_invariants=False)

    def change(_):
        return compiled(shared)._replace(check=lambda *_: checked.append(1))

    trained(config, folder, monkeypatch, change)
    return rows_of(folder), saved, checkpoints.steps(folder / "checkpoints"), len(checked)


def looks(config, folder, monkeypatch):
    """The steps at which the rules look at a run."""
    steps = []
    monkeypatch.setattr(grpo_jax.train, "shipped_rules", lambda: [lambda rows, config: steps.append(rows[-1]["step"])])
    trained(config, folder, monkeypatch)
    return steps


def problems_evaluated(config, folder, monkeypatch):
    program = compiled(TINY)
    answer = scripted_sampler(program.parts.task.tokenizer, lambda _: ["1"], 1, 3)
    found = grpo_jax.train._evaluated(config, program._replace(answer=answer), None, everywhere=False)
    assert isinstance(found["validation"], Evaluation)
    return found["validation"].examples


def mesh_shape(config, **_):
    return compile_program(config).mesh.shape


def sampling_mesh_shape(config, **_):
    program = compile_program(config)
    return program.mesh.shape, program.sampling_mesh.shape


OBSERVED = {
    "task": examples,
    "model": policy_numerics,
    "model.lora_rank": adapted,
    "model.lora_alpha": adapted,
    "model.lora_targets": adapted,
    "rollout": sampled,
    "rollout.slots": sampling_program,
    "rollout.lag": run,
    "rollout.mesh": sampling_mesh_shape,
    "rollout.layout": sampling_mesh_shape,
    "reward": rewarded,
    "reward.timeout": reward_functions,
    "objective": gradient,
    "beta": betas,
    "reference": reference_moves,
    "update": optimizer_steps,
    "update.updates_per_rollout": update_program,
    "update.micro_batches": update_program,
    "update.packing_widths": packed,
    "update.max_rejected": rejections,
    "warm_start": warm_start_calls,
    "evaluation.examples": problems_evaluated,
    "evaluation.every": run,
    "diagnose_every": looks,
    "mesh": mesh_shape,
}


def observer(name):
    return OBSERVED.get(name) or OBSERVED.get(name.partition(".")[0], run)


def observe(observer, config, folder, monkeypatch):
    """What an observer sees, as text in which nothing is an address."""
    with monkeypatch.context() as patch:
        found = observer(config, folder=folder, monkeypatch=patch)
    leaves, structure = jax.tree.flatten(found)
    text = "\n".join(str(leaf.tolist() if isinstance(leaf, jax.Array | np.ndarray) else leaf) for leaf in leaves)
    return re.sub("0x[0-9a-f]+", "", f"{structure}\n{text}")


def test_the_table_has_every_field_and_nothing_else():
    assert list(FLIPS) == field_names()


@pytest.mark.parametrize("name", FLIPS)
def test_the_flipped_value_is_another_one(name):
    flip = FLIPS[name]
    base = changed(TINY, flip.beside)
    assert changed(base, {name: flip.value}) != base


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """What each observer sees of a configuration before a field is flipped, looked at once."""
    seen = {}

    def look(observer, config):
        if (observer, config) not in seen:
            with pytest.MonkeyPatch.context() as patch:
                seen[observer, config] = observe(observer, config, tmp_path_factory.mktemp("before") / "run", patch)
        return seen[observer, config]

    return look


@pytest.mark.parametrize("name", FLIPS)
def test_every_field_changes_something(name, before, tmp_path, monkeypatch):
    flip = FLIPS[name]
    base = changed(TINY, flip.beside)
    after = observe(observer(name), changed(base, {name: flip.value}), tmp_path / "run", monkeypatch)
    if flip.base_fails:
        with pytest.raises(ValueError, match=r"missing|no effect|vanish|zero|too long"):
            observe(observer(name), base, tmp_path / "base", monkeypatch)
    else:
        assert before(observer(name), base) != after


@pytest.mark.parametrize("look", dict.fromkeys([*OBSERVED.values(), run]))
def test_what_is_observed_is_the_same_where_nothing_is_flipped(look, before, tmp_path, monkeypatch):
    assert observe(look, TINY, tmp_path / "run", monkeypatch) == before(look, TINY)
