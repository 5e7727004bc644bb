"""Every process leaves a sign of life, and the slowest is named."""

import json
import os
import time

import pytest

import grpo_jax.metrics.beats
from grpo_jax.metrics import heartbeat, is_timing


def test_the_file_says_which_step_was_done_and_when(tmp_path):
    beat = heartbeat(tmp_path / "heartbeats")
    assert beat(3, 1.0, False) == (False, {})
    assert beat(4, 1.0, True) == (True, {})
    (file,) = (tmp_path / "heartbeats").iterdir()
    said = json.loads(file.read_text())
    assert file.name == "0.json"
    assert (said["step"], said["process"]) == (4, os.getpid())
    assert time.time() - 60 < said["time"] <= time.time()


class Others:
    """Stands in for `grpo_jax.hosts` in the second of three processes."""

    def __init__(self, others, waits):
        self.others, self.waits = others, iter(waits)

    def index(self):
        return 1

    def waited(self):
        return next(self.waits)

    def exchange(self, payload):
        return [json.dumps(self.others[0]).encode(), payload, json.dumps(self.others[1]).encode()]


def test_who_works_longest_without_waiting_is_the_slowest_and_one_wish_stops_all(tmp_path, monkeypatch):
    others = Others([(1.0, False), (1.5, True)], [5.0, 9.0, 9.5])
    monkeypatch.setattr(grpo_jax.metrics.beats, "hosts", others)
    found = heartbeat(tmp_path)(1, 6.0, False)  # 6 seconds, 4 of them waiting
    assert found.stop
    assert found.measures == {
        "seconds_slowest_host": pytest.approx(2.0),
        "seconds_fastest_host": 1.0,
        "slowest_host": 1.0,
    }
    assert all(is_timing(name) for name in found.measures)
    assert [path.name for path in tmp_path.iterdir()] == ["1.json"]
