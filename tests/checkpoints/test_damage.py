"""Whatever happens to a checkpoint's files is noticed, and the last good one is used, loudly."""

import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import checkpoints
from grpo_jax.checkpoints import files
from grpo_jax.checkpoints.files import read_record, write_record
from tests.checkpoints.states import assert_bitwise_equal, make_state

LIKE = jax.eval_shape(make_state)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with the checkpoints of steps 1, 2 and 3, and the states in them."""
    root = tmp_path_factory.mktemp("saved")
    states = {step: make_state(step) for step in (1, 2, 3)}
    with checkpoints.saver(root) as saver:
        for step, state in states.items():
            saver.save(state, step, extra={"turn": np.int64(step)})
    return root, states


@pytest.fixture
def folder(saved, tmp_path):
    shutil.copytree(saved[0], tmp_path / "run")
    return tmp_path / "run"


def files_in(checkpoint):
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


def shortened(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def flipped(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(bytes(data))


def zeroed(path):
    path.write_bytes(bytes(len(path.read_bytes())))


def removed(path):
    path.unlink()


@pytest.mark.parametrize("damage", [shortened, flipped, zeroed, removed])
def test_whichever_file_is_damaged_it_is_named_and_the_checkpoint_before_is_used(damage, saved, folder, capsys):
    """Orbax itself returns other arrays, without a word, for some of these."""
    root, states = saved
    places = [path.relative_to(root) for path in files_in(root / "3") if path.stat().st_size or damage is removed]
    assert len(places) > 5
    for place in places:
        damage(folder / place)
        found = checkpoints.load(folder, LIKE)
        assert (place, found.step) == (place, 2)
        said = capsys.readouterr().err
        assert f"{folder / '3'} is damaged: " in said
        assert place.name in said or (place.name == "manifest.json" and "not written" in said)
        assert "going on from step 2 instead" in said
        shutil.copy(root / place, folder / place)
    assert_bitwise_equal(found.state, states[2])
    assert int(found.extra["turn"]) == 2
    assert checkpoints.load(folder, LIKE).step == 3
    assert capsys.readouterr().err == ""


def test_sound_files_with_other_arrays_are_noticed_by_their_fingerprints(saved, folder, capsys):
    """As large files would be that were exchanged or altered where they are still readable."""
    shutil.rmtree(folder / "3" / "arrays")
    shutil.copytree(folder / "1" / "arrays", folder / "3" / "arrays")
    record = read_record(folder / "3")
    write_record(folder / "3", record["leaves"], record["score"])
    assert checkpoints.load(folder, LIKE).step == 2
    assert "arrays are not what was saved, such as params.embed" in capsys.readouterr().err


def test_of_large_files_the_size_is_known_at_once(folder, monkeypatch, capsys):
    monkeypatch.setattr(files, "_READ_WHOLE", -1)
    record = read_record(folder / "3")
    write_record(folder / "3", record["leaves"], record["score"])
    assert checkpoints.load(folder, LIKE).step == 3
    assert {checksum for _, checksum in read_record(folder / "3")["files"].values()} == {None}
    largest = max(files_in(folder / "3" / "arrays"), key=lambda path: path.stat().st_size)
    shortened(largest)
    assert checkpoints.load(folder, LIKE).step == 2
    assert re.search(rf"{largest.name} has \d+ bytes instead of \d+", capsys.readouterr().err)


def test_an_incomplete_newest_is_named_and_the_one_before_it_used(folder, capsys):
    (folder / "3" / "manifest.json").unlink()
    (folder / "7.unfinished").mkdir()
    assert checkpoints.load(folder, LIKE).step == 2
    assert f"{folder / '3'} is damaged: it was not written, copied or deleted to the end" in capsys.readouterr().err


def test_several_damaged_ones_are_all_named(folder, capsys):
    for step in (2, 3):
        removed(folder / str(step) / "arrays" / "state" / "manifest.ocdbt")
    assert checkpoints.load(folder, LIKE).step == 1
    said = capsys.readouterr().err
    assert f"{folder / '3'} is damaged" in said
    assert f"{folder / '2'} is damaged" in said


def test_where_all_are_damaged_the_error_names_each_and_what_to_do(folder):
    for step in (1, 2, 3):
        removed(folder / str(step) / "arrays" / "state" / "manifest.ocdbt")
    with pytest.raises(ValueError, match="No checkpoint in .* is whole: restore one from a copy, or start") as caught:
        checkpoints.load(folder, LIKE)
    assert all(f"{folder / str(step)} is damaged: " in str(caught.value) for step in (1, 2, 3))


def test_one_that_was_asked_for_by_its_step_is_not_replaced_by_another(folder):
    removed(folder / "2" / "arrays" / "state" / "manifest.ocdbt")
    with pytest.raises(ValueError, match=r"2 is damaged: (.|\n)*Name another one of the steps \[1, 3\]"):
        checkpoints.load(folder, LIKE, 2)


def test_a_record_that_was_altered_is_noticed(folder, capsys):
    path = folder / "3" / "manifest.json"
    path.write_text(path.read_text().replace('"score": null', '"score": 1.0'))
    assert checkpoints.load(folder, LIKE).step == 2
    assert "its manifest.json was altered" in capsys.readouterr().err


def test_another_configuration_is_no_damage(folder):
    """Or a run would go back step by step, where its options are what is wrong."""
    with pytest.raises(ValueError, match=r"3 is a checkpoint of another configuration"):
        checkpoints.load(folder, make_state(width=4))


def test_a_damaged_one_makes_place_for_the_step_that_is_saved_again(folder, capsys):
    removed(folder / "3" / "arrays" / "state" / "manifest.ocdbt")
    found = checkpoints.load(folder, LIKE)
    (folder / "4.unfinished" / "arrays.orbax-checkpoint-tmp").mkdir(parents=True)
    with checkpoints.saver(folder, start=found.step) as saver:
        saver.save(found.state._replace(step=jnp.int32(77)), 3)
    assert int(checkpoints.load(folder, LIKE, 3).state.step) == 77
    assert sorted(path.name for path in folder.iterdir()) == ["1", "2", "3", "3.damaged"]
    assert f"{folder / '3'} is kept as 3.damaged; remove it when you like" in capsys.readouterr().err
