"""What is looked for, with a compiler that answers from a formula."""

from dataclasses import replace

import pytest

from grpo_jax.config import Config, RolloutConfig
from grpo_jax.plan import CHIPS, Measured, Memory, Search, Step, TooLarge, Topology, search
from grpo_jax.plan.hlo import Traffic

CONFIG = Config(rollout=RolloutConfig(prompts=64, group_size=5))
GB = 1e9


def answer(run, where, name, peak):
    """What ``measure`` returns, as far as a search reads it."""
    step = Step(name, 1.0, Memory(0.0, peak, 0.0, 0.0), 0.0, Traffic(0.0, {}), 0.0, "")
    return Measured(run, where, {}, run.rollout.prompts, {}, 0.0, 0.0, 0.0, (step,))


@pytest.fixture
def looked(monkeypatch):
    """A search in which a device needs so many GB, what it asked for and what it reported."""
    asked, reported = [], []

    def start(update, sampling, devices=16):
        def measure(run, where, shape, names, known):
            tensor = int(run.mesh.partition("tensor=")[2] or 1)
            groups = run.rollout.prompts / (len(where.devices) // tensor)
            (name,) = names
            asked.append((where.name, tensor, run.update.micro_batches, run.rollout.prompts, name))
            each = {"update": update, "sampling": sampling}[name]
            needed = each(groups, groups / run.update.micro_batches, tensor, len(where.devices)) * GB
            if needed > 2 * where.chip.memory:
                raise TooLarge(name, needed)
            return answer(run, where, name, needed)

        monkeypatch.setattr(search, "measure", measure)
        monkeypatch.setattr(search, "least", lambda *_: 0)
        return Search(CONFIG, None, reported.append, {}, set()), slice_of(devices)

    def slice_of(devices):
        return Topology(f"v5e:{devices}", [None] * devices, CHIPS["v5e"])

    monkeypatch.setattr(search, "topology", lambda name: slice_of(int(name.partition(":")[2])))
    monkeypatch.setattr(search, "slices", lambda name: ("v5e:4", "v5e:8", "v5e:16"))
    start.asked, start.reported = asked, reported
    return start


def test_the_fewest_micro_batches_that_leave_enough_are_chosen(looked):
    found, where = looked(lambda all_, part, tensor, devices: 6 + 3 * part, lambda *_: 1)
    chosen = found.fitting(where, 0.15)  # 13.6 GB: two groups at a time, of four on each device
    assert (chosen.mesh, chosen.update.micro_batches) == ("fsdp=-1", 2)
    assert chosen.model.logits_per_chunk == 2**25


def test_heads_are_split_only_where_memory_asks_for_it(looked):
    found, where = looked(lambda all_, part, tensor, devices: 20 / tensor, lambda *_: 1)
    assert found.fitting(where, 0.15).mesh == "fsdp=-1,tensor=2"
    found, where = looked(lambda *_: 17, lambda *_: 1)
    assert found.fitting(where, 0.0) is None
    found, where = looked(lambda *_: 1, lambda all_, part, tensor, devices: 100)
    assert found.fitting(where, 0.0) is None


def test_no_device_goes_without_a_group(looked):
    found, where = looked(lambda *_: 1, lambda *_: 1, devices=256)
    assert found.fitting(where, 0.0).mesh == "fsdp=-1,tensor=4"


def test_the_most_prompts_are_found_on_a_line_and_confirmed(looked):
    found, where = looked(lambda *_: 1, lambda groups, *_: 2 + 0.5 * groups)
    run = found.fitting(where, 0.0)
    looked.asked.clear()
    assert found.most_prompts(run, where, 0.0) == 7 * 64  # 28 groups on a device need 16 GB
    assert looked.asked[-2:] == [("v5e:16", 1, 7, 448, "sampling"), ("v5e:16", 1, 7, 448, "update")]


def test_what_is_looked_up_again_is_reported_once(looked):
    found, where = looked(lambda *_: 1, lambda groups, *_: 2 + 0.5 * groups, devices=64)
    found.most_prompts(found.fitting(where, 0.0), where, 0.0)
    again = ("v5e:64", 1, 1, 64, "sampling")
    assert looked.asked.count(again) == 2
    assert len(set(looked.reported)) == len(looked.reported) == len(looked.asked) - 1


def test_where_the_line_promised_too_much_fewer_prompts_are_tried(looked):
    found, where = looked(lambda groups, *_: 17 if groups > 20 else 1, lambda groups, *_: 2 + 0.5 * groups)
    assert found.most_prompts(found.fitting(where, 0.0), where, 0.0) == 5 * 64
    found, where = looked(lambda *_: 1, lambda groups, *_: 10 if groups == 4 else 99)
    assert found.most_prompts(replace(CONFIG, mesh="fsdp=-1"), where, 0.0) == 64


def test_the_smallest_slice_is_the_first_on_which_anything_fits(looked):
    found, _ = looked(lambda all_, part, tensor, devices: 100 / devices, lambda *_: 1)
    assert found.smallest("v5e:16") == "v5e:8"
    found, _ = looked(lambda *_: 99, lambda *_: 1)
    assert found.smallest("v5e:16") is None
