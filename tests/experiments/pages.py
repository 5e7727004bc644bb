"""What holds of every page that is made of `experiments.small_scale.tables.Page`."""

from collections.abc import Sequence
from types import ModuleType

from experiments.small_scale import records


def check_page(run: ModuleType, names: Sequence[tuple]) -> None:
    """Asserts that every case was run with five seeds or more, and that the page says what was recorded."""
    rows = records.recorded(run.HERE / "results.jsonl", run.PAGE.labels)
    assert sorted(rows) == sorted(names)
    assert all(row["seeds"] >= 5 for row in rows.values())
    readme = (run.HERE / "README.md").read_text(encoding="utf-8")
    for part in run.PAGE.parts({name: rows[name] for name in names}):
        assert part in readme
    assert (run.HERE / "figure.png").exists()
