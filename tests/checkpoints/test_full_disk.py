"""A checkpoint that does not fit is an error with a remedy, and costs none of those before it."""

import errno
import os
import subprocess
import sys

import jax
import orbax.checkpoint.experimental.v1 as orbax
import pytest

from grpo_jax import checkpoints
from grpo_jax.checkpoints import writing
from tests.checkpoints.states import assert_bitwise_equal, make_state

LIKE = jax.eval_shape(make_state)
FULL = ValueError("RESOURCE_EXHAUSTED: Failed to write 9 bytes: No space left on device [os_error_code='28']")


def fill_the_disk(folder):
    """Saves steps 1 and 2; then no file may grow beyond 200 bytes, and step 3 is to be saved.

    A write that fails on the way is what a full disk and a quota give too. Python ignores the signal that comes with
    it. In a process of its own, since Orbax leaves tasks and threads of a failed save to themselves.
    """
    import resource

    with checkpoints.saver(folder) as saver:
        saver.save(make_state(1), 1)
        saver.save(make_state(2), 2)
        saver.wait()
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
        saver.save(make_state(3), 3)
        try:
            saver.wait()
        except OSError as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        print(sorted(os.listdir(folder)))
        # Where there is space again, the same process can go on.
        saver.save(make_state(4), 4)


def test_a_save_for_which_there_is_no_space_says_so_and_leaves_the_others_as_they_were(tmp_path):
    program = f"from {__name__} import fill_the_disk; fill_the_disk({str(tmp_path)!r})"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert found.returncode == 0, found.stderr
    said, names = found.stdout.splitlines()
    assert said.startswith(f"the checkpoint of step 3 could not be written to {tmp_path}: no space for it (")
    assert said.endswith("Free some, or keep fewer checkpoints, and resume. The checkpoints of steps [1, 2] are intact")
    assert names == "['1', '2']", "what was written takes no space"
    for step in (1, 2, 4):
        assert_bitwise_equal(checkpoints.restore(tmp_path, LIKE, step), make_state(step))


class Failing:
    """What waits for a save that fails."""

    def result(self):
        raise FULL


@pytest.fixture
def full(monkeypatch):
    monkeypatch.setattr(orbax, "save_async", lambda *_, **__: Failing())


@pytest.mark.usefixtures("full")
def test_a_failure_is_noticed_by_a_look_that_does_not_wait_and_by_the_next_save(tmp_path):
    def look(saver):
        while True:
            saver.check()

    with checkpoints.saver(tmp_path) as saver:
        for notice in (look, lambda saver: saver.save(make_state(), 2)):
            saver.save(make_state(), 1)
            with pytest.raises(OSError, match="no space for it .*There is no earlier checkpoint"):
                notice(saver)
        saver.check()


@pytest.mark.usefixtures("full")
def test_the_end_of_a_run_notices_it_too_and_it_does_not_hide_another_error(tmp_path, capsys):
    def run(error):
        with checkpoints.saver(tmp_path) as saver:
            saver.save(make_state(), 1)
            if error is not None:
                raise error

    with pytest.raises(OSError, match="no space for it"):
        run(None)
    with pytest.raises(RuntimeError, match="of the run's own"):
        run(RuntimeError("of the run's own"))
    assert "no space for it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "no space for it ("),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "no space for it ("),
        (FULL, "no space for it ("),
        (ValueError("PERMISSION_DENIED: Failed to open x\nand more"), "PERMISSION_DENIED: Failed to open x. Mend that"),
    ],
)
def test_the_reason_is_told_however_it_is_reported(error, reason, tmp_path):
    assert reason in str(writing._explained(error, tmp_path, 7))
