"""One run per folder, one process per run."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass

import pytest

from grpo_jax.metrics import Sample, config_hash, run_folder, write_json, write_samples

CONFIG = {"seed": 0, "optimizer": {"rate": 0.1, "betas": (0.9, 0.999)}}


def test_a_new_run_creates_its_folder_and_writes_its_config(tmp_path):
    with run_folder(tmp_path / "runs" / "a", CONFIG) as folder:
        assert json.loads(folder.config.read_text()) == {"seed": 0, "optimizer": {"rate": 0.1, "betas": [0.9, 0.999]}}
        assert folder.config_hash == config_hash(CONFIG)
        assert folder.metrics == tmp_path / "runs" / "a" / "metrics.jsonl"


def test_a_run_is_resumed_only_when_asked_for(tmp_path):
    with run_folder(tmp_path, CONFIG):
        pass
    with pytest.raises(FileExistsError, match="already holds a run"), run_folder(tmp_path, CONFIG):
        pass
    with run_folder(tmp_path, CONFIG, resume=True) as folder:
        assert folder.path == tmp_path


def test_there_must_be_a_run_to_resume(tmp_path):
    with pytest.raises(FileNotFoundError, match="no run to resume"), run_folder(tmp_path / "x", CONFIG, resume=True):
        pass
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_of_another_config_is_refused_and_the_fields_are_named(tmp_path, resume):
    with run_folder(tmp_path, CONFIG):
        pass
    other = {"seed": 0, "optimizer": {"rate": 0.2, "betas": (0.9, 0.999)}, "extra": None}
    with (
        pytest.raises(ValueError, match=r"optimizer\.rate: 0\.1 there, 0\.2 here; extra: 'nothing' there, None here"),
        run_folder(tmp_path, other, resume=resume),
    ):
        pass
    assert json.loads((tmp_path / "config.json").read_text())["optimizer"]["rate"] == 0.1


def test_fields_that_may_differ_do_not_keep_a_run_from_being_resumed(tmp_path):
    with run_folder(tmp_path, CONFIG):
        pass
    longer = {**CONFIG, "seed": 1}
    with run_folder(tmp_path, longer, resume=True, may_differ=("seed",)) as folder:
        assert json.loads(folder.config.read_text())["seed"] == 0
    with pytest.raises(FileExistsError), run_folder(tmp_path, longer, may_differ=("seed",)):
        pass
    other = {"seed": 1, "optimizer": {"rate": 0.2, "betas": (0.9, 0.999)}}
    with (
        pytest.raises(ValueError, match=r"configuration: optimizer\.rate: 0\.1 there, 0\.2 here\."),
        run_folder(tmp_path, other, resume=True, may_differ=("seed",)),
    ):
        pass


def test_a_config_that_is_not_json_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with (
        pytest.raises(ValueError, match=r"config\.json is not JSON .* choose another folder"),
        run_folder(tmp_path, CONFIG, resume=True),
    ):
        pass


def test_a_folder_in_use_is_refused_and_its_owner_named(tmp_path):
    with (
        run_folder(tmp_path, CONFIG),
        pytest.raises(BlockingIOError, match=f"in use by process {os.getpid()}"),
        run_folder(tmp_path, CONFIG, resume=True),
    ):
        pass
    with run_folder(tmp_path, CONFIG, resume=True):
        pass


def test_a_run_that_was_killed_can_be_resumed_and_a_living_one_cannot(tmp_path):
    program = (
        "import sys, time; from grpo_jax.metrics import run_folder\n"
        "with run_folder(sys.argv[1], {'seed': 0}):\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        refused = pytest.raises(BlockingIOError, match=f"in use by process {process.pid}")
        with refused, run_folder(tmp_path, {"seed": 0}, resume=True):
            pass
        process.send_signal(signal.SIGKILL)
    with run_folder(tmp_path, {"seed": 0}, resume=True) as folder:
        assert folder.config.exists()


def test_an_error_in_the_run_frees_the_folder(tmp_path):
    with pytest.raises(RuntimeError, match="boom"), run_folder(tmp_path, CONFIG):
        raise RuntimeError("boom")
    with run_folder(tmp_path, CONFIG, resume=True):
        pass


def test_equal_configs_share_a_hash_and_every_change_changes_it():
    @dataclass(frozen=True)
    class Config:
        seed: int = 0
        rates: tuple[float, ...] = (0.1, 0.2)

    base = config_hash(asdict(Config()))
    assert base == config_hash({"rates": [0.1, 0.2], "seed": 0})
    assert len(base) == 16
    assert len({base, config_hash(asdict(Config(seed=1))), config_hash(asdict(Config(rates=(0.1,))))}) == 3
    with pytest.raises(ValueError, match="JSON"):
        config_hash({"rate": float("nan")})
    with pytest.raises(TypeError, match="serializable"):
        config_hash({"rate": object()})


def test_samples_are_written_for_a_person_to_read(tmp_path):
    path = tmp_path / "samples.txt"
    write_samples(path, [Sample("12+30=", "42", 1.0, "42"), Sample("1+1=", "é", None)])
    assert path.read_text(encoding="utf-8") == (
        "prompt:     12+30=\ncompletion: 42\nexpected:   42\nreward:     1\n"
        "\n"
        "prompt:     1+1=\ncompletion: é\nreward:     not scorable\n"
    )


def test_a_summary_is_complete_or_not_there_at_all(tmp_path):
    path = tmp_path / "summary.json"
    write_json(path, {"steps": 3, "accuracy_after": 0.5})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"steps": float("inf")})
    assert json.loads(path.read_text()) == {"steps": 3, "accuracy_after": 0.5}
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]
