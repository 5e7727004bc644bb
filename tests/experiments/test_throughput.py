"""Both sides are given the work that the page of throughput describes."""

import json
import re

import pytest

from experiments.throughput.works import HERE, describe


def test_tunix_has_the_cache_that_its_command_line_sets_up_or_the_one_asked_for():
    def cache(given):
        return describe("small", 1, 0, model=None, tunix_cache=given, smoke=False)["tunix_cache"]

    assert cache(None) == 32 + 64 + 256
    assert cache(96) == 96


def test_a_cache_too_small_for_a_sequence_is_refused():
    with pytest.raises(ValueError, match="--tunix-cache is 95, but a sequence has 96 tokens"):
        describe("small", 1, 0, model=None, tunix_cache=95, smoke=False)


def test_the_ratios_of_the_page_are_those_of_the_last_six_results():
    lines = (HERE / "results.jsonl").read_text(encoding="utf-8").splitlines()[-6:]
    results = {(found["work"], found.get("tunix_cache")): found for found in map(json.loads, lines)}
    page = (HERE / "README.md").read_text(encoding="utf-8").split("**Result.**")[1]
    rows = [
        ("`small`, a step", ("small", 352), "ratio"),
        ("`small`, a step, `--tunix-cache 96`", ("small", 96), "ratio"),
        ("`short`, a step", ("short", None), "ratio"),
        ("`short`, sampling", ("short", None), "sampling_ratio"),
        ("`long`, a step", ("long", None), "ratio"),
        ("`long`, sampling", ("long", None), "sampling_ratio"),
        ("`training`", ("training", None), "ratio"),
        ("`vocabulary`, a step", ("vocabulary", None), "ratio"),
        ("`vocabulary`, peak memory", ("vocabulary", None), "memory_ratio"),
    ]
    for name, key, measure in rows:
        cells = re.search(rf"^\| {re.escape(name)} \|(.*)\|$", page, re.MULTILINE)
        assert cells is not None, name
        assert float(cells[1].split("|")[2]) == pytest.approx(results[key][measure], abs=0.0051), name
