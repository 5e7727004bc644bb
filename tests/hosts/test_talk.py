"""Two processes find each other, talk, share arrays and fail together."""

import json
import time

import numpy as np
import pytest

from tests.hosts.processes import ended, pair


@pytest.fixture(scope="module")
def talk():
    """What two processes with four devices each saw, and what was left on standard error, and how long it took."""
    began = time.monotonic()
    results = ended(pair(["-m", "tests.hosts.talk"]), 120)
    printed = [output.splitlines() for _, output, _ in results]
    lines = [[line for line in lines if line == "printed" or line.startswith("{")] for lines in printed]
    assert all(lines), results
    return lines, [json.loads(each[-1]) for each in lines], results, time.monotonic() - began


def test_processes_know_who_they_are_and_see_all_devices(talk):
    assert [seen["who"] for seen in talk[1]] == [[0, 2, True, 8, 4], [1, 2, False, 8, 4]]


def test_what_one_says_all_hear_in_order(talk):
    for seen in talk[1]:
        assert seen["said"] == ["1 0", "1 1", "1 2"]
        assert seen["gathered"] == [[0.5, 0.5], [1.5, 1.5]]
        assert seen["writer"] == {"made by": 0}


def test_where_one_fails_all_raise_the_message_of_the_first_that_did(talk):
    for seen in talk[1]:
        assert seen["refused"] == [
            None,
            "host 1 of 2 failed: KeyError: 'row 1'",
            "host 0 of 2 failed: KeyError: 'row 0'",
        ]


def test_rows_are_read_where_they_live_and_scored_once(talk):
    assert [seen["held"] for seen in talk[1]] == [[[0, 4], [0, 8]], [[4, 8], [0, 8]]]
    for seen in talk[1]:
        assert seen["scored"] == [[0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 0, 1, 0, 1, 0, 1]]


def test_arrays_are_made_of_what_each_process_has_and_gathered_in_all(talk):
    for seen in talk[1]:
        np.testing.assert_array_equal(seen["whole"], np.arange(16.0).reshape(8, 2))
    assert [seen["unwanted"] for seen in talk[1]] == [False, True]


def test_only_the_writing_process_prints(talk):
    assert [lines[:-1] for lines in talk[0]] == [["printed"], []]


def test_a_failure_that_nobody_foresaw_stops_those_who_wait_with_its_message_within_seconds(talk):
    _, _, ((_, _, first), (_, _, second)), seconds = talk
    assert "HostFailed: host 1 of 2 failed: ArithmeticError: not foreseen" in first
    assert "ArithmeticError: not foreseen" in second
    assert seconds < 60
