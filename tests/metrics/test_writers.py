"""Rows that are written can be read, today by a person and tomorrow by a resumed run."""

import json
import math
import signal
import subprocess
import sys

import pytest

from grpo_jax.metrics import json_lines, read_rows, several, tensorboard


def write(path, steps, resume_at=None):
    writer = json_lines(path, resume_at)
    for step in steps:
        writer.write(step, {"loss": step / 10, "seconds": 0.5})
    writer.close()


def test_each_row_is_one_json_object_on_one_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, [1, 2])
    assert path.read_text() == '{"step": 1, "loss": 0.1, "seconds": 0.5}\n{"step": 2, "loss": 0.2, "seconds": 0.5}\n'
    assert read_rows(path) == [{"step": 1, "loss": 0.1, "seconds": 0.5}, {"step": 2, "loss": 0.2, "seconds": 0.5}]


def test_values_that_are_not_finite_are_null_since_json_has_no_nan(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writer = json_lines(path)
    writer.write(1, {"a": math.nan, "b": math.inf, "c": 1.0})
    writer.close()

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    assert json.loads(path.read_text(), parse_constant=refuse) == {"step": 1, "a": None, "b": None, "c": 1.0}


def test_rows_survive_a_process_that_is_killed_right_after_writing(tmp_path):
    path = tmp_path / "metrics.jsonl"
    program = (
        "import os, sys; from grpo_jax.metrics import json_lines; "
        "json_lines(sys.argv[1]).write(1, {'loss': 0.1}); os.kill(os.getpid(), 9)"
    )
    died = subprocess.run([sys.executable, "-c", program, str(path)], check=False, timeout=120)
    assert died.returncode == -signal.SIGKILL
    assert read_rows(path) == [{"step": 1, "loss": 0.1}]


def test_a_resumed_run_leaves_the_file_an_uninterrupted_one_would(tmp_path):
    write(tmp_path / "whole", range(1, 7))
    write(tmp_path / "parts", range(1, 6))
    with open(tmp_path / "parts", "a") as file:
        file.write('{"step": 6, "lo')  # killed in the middle of a row
    assert len(read_rows(tmp_path / "parts")) == 5
    write(tmp_path / "parts", range(4, 7), resume_at=3)
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()


def test_null_survives_a_resume(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writer = json_lines(path)
    writer.write(1, {"a": math.nan})
    writer.close()
    before = path.read_text()
    json_lines(path, resume_at=1).close()
    assert path.read_text() == before


def test_a_new_run_starts_an_empty_file(tmp_path):
    write(tmp_path / "m", [1, 2])
    write(tmp_path / "m", [1])
    assert [row["step"] for row in read_rows(tmp_path / "m")] == [1]


def test_no_file_has_no_rows(tmp_path):
    assert read_rows(tmp_path / "none") == []
    json_lines(tmp_path / "new", resume_at=3).close()
    assert (tmp_path / "new").read_text() == ""


@pytest.mark.parametrize("line", ["nonsense", "[1]", '{"loss": 1}', '{"step": null}'])
def test_a_line_that_is_no_row_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + line + "\n")
    with pytest.raises(ValueError, match="line 2: expected a JSON object with an integer step"):
        read_rows(path)


def events(folder):
    """All (name, step, value) in a folder of TensorBoard events, in the order written."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        while data:  # a record: 8 bytes of length, 4 of checksum, the event, 4 of checksum
            length = int.from_bytes(data[:8], "little")
            event = Event.FromString(data[12 : 12 + length])
            data = data[12 + length + 4 :]
            found += [(value.tag, event.step, round(value.simple_value, 6)) for value in event.summary.value]
            found += [("purge", event.step, None)] if event.session_log.status else []
    return found


def test_tensorboard_gets_every_finite_value_at_once(tmp_path):
    writer = tensorboard(tmp_path / "tensorboard")
    writer.write(1, {"loss": 0.25, "kl": math.nan})
    assert events(tmp_path / "tensorboard") == [("loss", 1, 0.25)]
    writer.close()


def test_tensorboard_hides_the_rows_that_a_resumed_run_writes_again(tmp_path):
    first = tensorboard(tmp_path)
    for step in (1, 2, 3):
        first.write(step, {"loss": 1.0})
    first.close()
    second = tensorboard(tmp_path, resume_at=1)
    second.write(2, {"loss": 0.5})
    second.close()
    assert events(tmp_path)[3:] == [("purge", 2, None), ("loss", 2, 0.5)]


def test_several_writers_get_the_same_rows(tmp_path):
    writer = several(json_lines(tmp_path / "a"), json_lines(tmp_path / "b"))
    writer.write(1, {"loss": 1.0})
    writer.close()
    assert read_rows(tmp_path / "a") == read_rows(tmp_path / "b") == [{"step": 1, "loss": 1.0}]
    with pytest.raises(ValueError, match="closed"):
        writer.write(2, {"loss": 1.0})
