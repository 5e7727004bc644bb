"""The scripts of the operations page start runs of two processes, and queue them again when they are told to end."""

import os
import re
import subprocess
import sys

import pytest

from tests.hosts.processes import ROOT, environment, free_port

PRINTS = '#!/bin/sh\nprintf \'%s\\n\' "$*" >> "$SAID"\nexit "${STATUS:-0}"\n'
SRUN = """#!/bin/sh
shift
for index in 0 1; do
  SLURM_STEP_NODELIST=localhost SLURM_NTASKS=2 SLURM_PROCID=$index SLURM_LOCALID=$index SLURM_STEP_NUM_NODES=1 "$@" &
done
wait
"""
TALK = f'#!/bin/sh\nshift\nexec "{sys.executable}" -m tests.hosts.said "$@"\n'


def executable(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return path


def ran(script, *words, folder, **more):
    """Runs a script where the stand-ins of a folder come first; returns its status and what it printed."""
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    own = environment(1, PATH=path, SAID=str(folder / "said"), **more)
    done = subprocess.run(
        [str(ROOT / "scripts" / script), *map(str, words)],
        cwd=ROOT,
        env=own,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


def said(folder):
    return (folder / "said").read_text().splitlines()


def test_several_processes_get_all_that_they_need(tmp_path):
    program = executable(tmp_path / "program", PRINTS)
    status, _ = ran("processes.sh", 2, "--out", "runs/x", folder=tmp_path, PROGRAM=str(program), PORT="1234")
    assert status == 0
    named = "train --out runs/x --hosts.coordinator 127.0.0.1:1234 --hosts.count 2 --hosts.index"
    assert sorted(said(tmp_path)) == [f"{named} 0", f"{named} 1"]
    assert ran("processes.sh", 2, folder=tmp_path, PROGRAM=str(program), STATUS="7")[0] == 7


@pytest.mark.parametrize(("begun", "status"), [(False, 0), (True, 0), (True, 143), (False, 2)])
def test_a_job_begins_or_goes_on_and_is_queued_again_only_when_it_was_told_to_end(begun, status, tmp_path):
    executable(tmp_path / "srun", PRINTS)
    executable(tmp_path / "scontrol", PRINTS.replace("${STATUS:-0}", "0"))
    if begun:
        (tmp_path / "config.json").write_text("{}")
    more = {"STATUS": str(status), "SLURM_JOB_ID": "77"}
    assert ran("slurm.sh", tmp_path, "--steps", "5", folder=tmp_path, **more)[0] == status
    options = "--resume --steps 5" if begun else "--steps 5"
    first = f"--kill-on-bad-exit=0 .venv/bin/grpo-jax train --hosts.detect --out {tmp_path} {options}"
    assert said(tmp_path) == [first, *(["requeue 77"] if status == 143 else [])]


def test_tasks_of_slurm_find_each_other(tmp_path):
    executable(tmp_path / "srun", SRUN)
    program = executable(tmp_path / "talk", TALK)
    job = str(free_port() % 2**12)  # the port follows from it
    status, printed = ran("slurm.sh", tmp_path, folder=tmp_path, PROGRAM=str(program), SLURM_JOB_ID=job)
    assert status == 0, printed
    assert sorted(re.findall(r"\d of \d: \[[\d, ]*\]", printed)) == ["0 of 2: [0, 1]", "1 of 2: [0, 1]"]


def test_every_script_and_option_of_the_page_exists():
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    for script in re.findall(r"scripts/\w+\.sh", page):
        assert (ROOT / script).is_file()
    options = (ROOT / "grpo_jax" / "hosts" / "start.py").read_text(encoding="utf-8")
    for name in re.findall(r"--hosts\.(\w+)", page):
        assert re.search(rf"^    {name}: ", options, flags=re.MULTILINE), name
