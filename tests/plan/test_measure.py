"""A plan for eight virtual devices is what the program that runs there needs."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

from grpo_jax.__main__ import main
from grpo_jax.config import ModelConfig
from grpo_jax.experience import Collector
from grpo_jax.plan import CHIPS, as_json, measure, table, times, topology, utilisation
from grpo_jax.plan.measure import model_operations
from grpo_jax.program import abstract_arguments, compile_program
from tests.runs import TINY

CONFIG = replace(
    TINY,
    model=ModelConfig(layers=2, width=16, heads=2, kv_heads=1, head_dim=8, hidden=32, scan_layers=True),
    rollout=replace(TINY.rollout, group_size=2),
    mesh="data=2,fsdp=4",
    evaluation=replace(TINY.evaluation, every=0),
    gradient_share_every=0,
)
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def planned():
    return measure(CONFIG, topology("cpu:8"))


@pytest.fixture(scope="module")
def run():
    """The program of a run on real devices, its state and a batch."""
    program = compile_program(CONFIG)
    state = program.state(program.initial(key=KEY), key=KEY)
    collector = Collector(program.parts, program.generate, 8, program.rows, 2, 0)
    found = collector.collect(state.params, 0, key=KEY)
    return program, state, program.place((found.rollout, found.batch))


def test_shapes_are_those_that_a_run_feeds_its_steps(run):
    program, _, batch = run
    shapes = abstract_arguments(program, 2)
    same = jax.tree.map(lambda one, other: (one.shape, one.dtype) == (other.shape, other.dtype), shapes[2:], batch)
    assert jax.tree.all(same)


def test_memory_is_what_the_executed_program_needs(planned, run):
    program, state, batch = run
    executed = program.update.function.lower(None, state, *batch).compile()
    metrics = executed(None, state, *batch)[1]
    assert np.isfinite(metrics["loss"])
    real = executed.memory_analysis()
    (update,) = (step for step in planned.steps if step.name == "update")
    reported = real.argument_size_in_bytes + real.output_size_in_bytes - real.alias_size_in_bytes
    np.testing.assert_allclose(update.memory.peak, reported + real.temp_size_in_bytes, rtol=0.1)


def test_the_state_is_as_large_as_its_arrays_on_a_device(planned):
    program = compile_program(CONFIG)
    state = program.state(program.initial(key=KEY), key=KEY)

    def held(tree):
        return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree))

    kinds = {"parameters": state.params, "optimizer": state.opt_state, "reference": state.ref_params}
    assert planned.state == {kind: held(tree) for kind, tree in kinds.items()}
    assert planned.state["optimizer"] < 2.1 * planned.state["parameters"]


def test_a_lag_costs_older_policies_and_a_pass_with_one_of_them():
    config = replace(CONFIG, rollout=replace(CONFIG.rollout, lag=2))
    found = measure(config, topology("cpu:8"), names=("old log-probs",))
    (scoring,) = found.steps
    assert found.state["older policies"] == 3 * found.state["parameters"]
    assert scoring.memory.resident == sum(found.state.values()) - found.state["parameters"]
    assert scoring.operations > 0
    program = compile_program(CONFIG)
    assert found.model_operations * 10 == 12 * model_operations(program, CONFIG)
    assert jax.tree.leaves(abstract_arguments(program, 2, lagging=True).batch.old_log_probs)[0].shape == (8, 2, 3)


def test_devices_that_do_not_all_do_the_same_are_not_planned():
    apart = replace(CONFIG, mesh="", rollout=replace(CONFIG.rollout, mesh="data=4"))
    with pytest.raises(ValueError, match="rollout.mesh=data=4: a plan is for devices that all do the same"):
        measure(apart, topology("cpu:8"))


def test_sampling_keeps_what_it_does_not_take_and_counts_every_token(planned):
    sampling, update = planned.steps
    assert sampling.memory.resident == planned.state["optimizer"] + planned.state["reference"]
    assert update.memory.resident == 0
    rows, tokens = planned.rows * 2, TINY.rollout.max_tokens
    assert planned.cache >= 2 * 2 * rows / 8 * tokens * 8 * 4  # layers, keys and values, rows, tokens, width, bytes
    assert sampling.operations > 2 * 16 * 32 * 3 * 2 * rows * tokens  # the feed-forward networks alone
    assert update.operations > 3 * sampling.operations


def test_a_plan_is_read_as_a_table_and_as_json(planned):
    text = table(planned)
    assert "cpu:8: 8 devices (data 2, fsdp 4); 8 prompts x 2 completions in 1 micro-batches" in text
    assert "to spare" not in text  # nothing is published about this machine
    found = json.loads(json.dumps(as_json(planned)))
    assert found["peak"] == planned.peak == max(step["memory"]["peak"] for step in found["steps"].values())
    assert found["utilisation"] is None
    rented = planned._replace(topology=planned.topology._replace(chip=CHIPS["v5e"]))
    estimated, used = times(rented, rented.steps[1]), utilisation(rented)
    assert estimated.compute == rented.steps[1].operations / 8 / 197e12
    assert estimated.overlapped <= estimated.in_turn
    assert 0 < used[0] <= used[1] < 1
    assert "GB to spare" in table(rented)


def test_the_command_prints_a_plan_and_writes_it(tmp_path, capsys):
    words = ["plan", "--preset", "smoke", "--topology", "cpu:2", "--gradient-share-every", "0"]
    words += ["--evaluation.every", "0", "--json", str(tmp_path / "plan.json")]
    assert main(words) == 0
    found = json.loads((tmp_path / "plan.json").read_text())
    assert found["fits"]
    assert found["plan"]["config"]["model"]["width"] == 16
    assert f"{found['plan']['rows']} prompts x 4 completions" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--spare", "1.0"], "--spare 1.0: give a share of the memory in [0, 1)"),
        (["--json", "nowhere/plan.json"], "there is no folder nowhere; make it first"),
        (["--topology", "v5e"], "write cpu:8, or a chip and the shape of its slice"),
        (["--topology", "cpu:8", "--config-json", "x"], "--config-json x has no effect without model.path"),
        (["--preset", "nothing"], "unknown preset 'nothing'"),
    ],
)
def test_what_the_command_does_not_understand_is_an_error_that_says_so(words, message, capsys):
    assert main(["plan", *words]) == 2
    assert message in capsys.readouterr().err
