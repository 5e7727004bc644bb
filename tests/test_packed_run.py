"""A run whose completions are packed is the run whose completions are not, and resumes bit for bit."""

from dataclasses import replace

import numpy as np
import pytest

from grpo_jax import train
from grpo_jax.experience import Collector
from tests.runs import TINY, assert_same, compiled, final_state, rows_of
from tests.test_train import Stop, failing

PADDED = replace(TINY, update=replace(TINY.update, micro_batches=2), gradient_share_every=0, steps=3)
PACKED = replace(PADDED, update=replace(PADDED.update, packing_widths=1))


@pytest.fixture(autouse=True)
def _shared_programs(monkeypatch):
    monkeypatch.setattr(train, "compile_program", compiled)
    monkeypatch.setattr(train, "save_curves", lambda *_: None)


def test_packing_changes_no_metric_and_a_stopped_run_goes_on_as_it_would_have(tmp_path, monkeypatch):
    train.train(PADDED, tmp_path / "padded")
    train.train(PACKED, tmp_path / "packed")
    padded, packed = rows_of(tmp_path / "padded"), rows_of(tmp_path / "packed")
    padding = [row.pop("padding", None) for row in packed]
    assert padding[0] is None
    assert any(0 < share < 1 for share in padding[1:])
    assert len(padded) == len(packed) == 4
    for one, other in zip(packed, padded, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            np.testing.assert_allclose(value, other[name], rtol=1e-4, atol=1e-6, err_msg=name)

    with monkeypatch.context() as patch:
        failing(patch, Collector, "collect", 2)
        with pytest.raises(Stop):
            train.train(PACKED, tmp_path / "again")
    train.train(PACKED, tmp_path / "again", resume=True)
    assert rows_of(tmp_path / "again") == rows_of(tmp_path / "packed")
    assert_same(final_state(tmp_path / "again", PACKED), final_state(tmp_path / "packed", PACKED))


def test_a_number_of_widths_below_one_is_refused_before_anything_runs(monkeypatch):
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"update\.packing_widths is 0; give at least 1"):
        train.compile_program(replace(TINY, update=replace(TINY.update, packing_widths=0)))
