"""Steps chosen for the profiler are traced, and what cannot be traced is said before anything runs."""

import jax.numpy as jnp
import pytest

from grpo_jax.metrics import Steps, profiler, steps_to_profile


@pytest.mark.parametrize(("text", "steps"), [("10:12", Steps(10, 12)), ("3", Steps(3, 3)), ("1:1", Steps(1, 1))])
def test_steps_are_read(text, steps):
    assert steps_to_profile(text) == steps


@pytest.mark.parametrize("text", ["", ":", "3:", ":3", "a:b", "1-2", "1:2:3"])
def test_other_words_are_refused(text):
    with pytest.raises(ValueError, match="give the first and the last step, as 10:12"):
        steps_to_profile(text)


@pytest.mark.parametrize("text", ["0:2", "-1:2", "3:2"])
def test_steps_that_are_none_are_refused(text):
    with pytest.raises(ValueError, match="give a first step of at least 1 and a last one not before it"):
        steps_to_profile(text)


@pytest.mark.parametrize(("start", "end"), [(2, 9), (0, 3), (4, 9)])
def test_steps_that_the_run_does_not_take_are_refused(start, end, tmp_path):
    with pytest.raises(ValueError, match=f"--profile-steps 2:4: this run takes the steps {start + 1} to {end}"):
        profiler(Steps(2, 4), tmp_path, start, end)


def test_a_trace_of_the_chosen_steps_appears(tmp_path):
    at = profiler(Steps(2, 3), tmp_path / "profile", 0, 3)
    at(1)
    assert not (tmp_path / "profile").exists()
    for step in (2, 3, 4):
        at(step)
        jnp.ones(3).block_until_ready()
    assert len(list((tmp_path / "profile").rglob("*.xplane.pb"))) == 1


def test_without_steps_nothing_happens(tmp_path):
    for step in (1, 2, 3):
        profiler(None, tmp_path / "profile", 0, 2)(step)
    assert not (tmp_path / "profile").exists()
