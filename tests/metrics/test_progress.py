"""A run shows that it moves, whoever watches."""

import io

import pytest

from grpo_jax.metrics import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run(stream, total, start=0):
    with progress("training", total, start=start, stream=stream) as shown:
        shown.note("warm start: accuracy [0.45]")
        for step in range(start + 1, total + 1):
            shown.update(step, {"reward": 0.123456, "kl": 1e-5})
    return stream.getvalue()


def test_without_a_terminal_plain_lines_come_out():
    text = run(io.StringIO(), 200)
    lines = text.splitlines()
    assert lines[0] == "warm start: accuracy [0.45]"
    assert lines[1].startswith("training 10/200  reward 0.1235  kl 1e-05  ")
    assert lines[1].endswith(" s left")
    assert len(lines) == 21
    assert "\x1b" not in text


def test_the_last_step_is_always_shown():
    assert run(io.StringIO(), 47).splitlines()[-1].startswith("training 47/47")
    assert run(io.StringIO(), 3).count("training") == 3


def test_steps_that_come_several_at_a_time_are_shown_as_often():
    stream = io.StringIO()
    with progress("training", 200, stream=stream) as shown:
        for step in range(3, 201, 3):
            shown.update(step, {})
    steps = [int(line.split()[1].split("/")[0]) for line in stream.getvalue().splitlines()]
    assert steps[:4] == [12, 21, 30, 42]
    assert len(steps) == 19


def test_a_resumed_run_counts_on():
    lines = run(io.StringIO(), 100, start=60).splitlines()
    assert lines[1].startswith("training 62/100")
    assert lines[-1].startswith("training 100/100")


def test_on_a_terminal_there_is_a_bar_with_the_values(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    text = run(Terminal(), 4)
    assert "warm start: accuracy [0.45]" in text
    assert "4/4" in text
    assert "reward 0.1235" in text
    assert "\x1b[" in text


def test_an_error_in_the_loop_leaves_the_terminal_as_it_was():
    stream = Terminal()
    with pytest.raises(RuntimeError, match="boom"), progress("training", 3, stream=stream):
        raise RuntimeError("boom")
    assert "\x1b[?25h" in stream.getvalue()  # the cursor is shown again
