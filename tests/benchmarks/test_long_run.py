"""The long run still works: less than half a minute of it. tests/figures has an hour."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.harness.report import Rows
from benchmarks.long_run import FIGURES, LIVES, disk_use, find_goals, growth
from benchmarks.mixed.clients import Told
from tests.benchmarks.smoke import run_smoke


@pytest.mark.clients
def test_a_short_run_with_kills_breaks_no_promise(tmp_path: Path) -> None:
    """Each record and each epoch is seen once and in order over five restarts, and everything is measured."""
    found = run_smoke("long_run", tmp_path)
    assert found["broken"] == []
    assert found["counts"]["kills"] + found["counts"]["clean stops"] == LIVES - 1
    for what in ("records of in checked", "records of out checked", "offsets committed", "epochs committed"):
        assert found["counts"][what] > 0, what
    assert all(set(FIGURES) <= set(row) for row in found["rows"])


def test_a_folder_that_goes_while_files_are_counted_is_passed_over(tmp_path: Path) -> None:
    """A topic is deleted at the very moment at which its folder is to be read: the other files are counted."""
    kept, gone = tmp_path / "streams" / "kept", tmp_path / "streams" / "gone"
    for folder in (kept, gone):
        folder.mkdir(parents=True)
        (folder / "chunk").write_bytes(bytes(10_000))
    armed = [True]

    def remove(event: str, arguments: tuple[object, ...]) -> None:
        if armed and event == "os.scandir" and Path(str(arguments[0])) == gone:
            armed.clear()
            shutil.rmtree(gone)

    sys.addaudithook(remove)
    files, size_bytes = disk_use(tmp_path)
    assert not armed, "it was removed"
    assert files == 1
    assert size_bytes >= 10_000


def test_growth_is_seen() -> None:
    """A figure that grows within each life, or from life to life, misses its goal; a level figure does not."""
    rows = Rows()
    for life in range(LIVES):
        for step in range(20):
            level = dict.fromkeys(FIGURES, 10.0)
            rows.add(life=life, share=step / 20, **(level | {"rss_mb": 10.0 + step, "handles": 10.0 + life}))
    assert growth(rows, "files") == (1.0, 1.0)
    assert growth(rows, "rss_mb")[0] > 1.3
    assert growth(rows, "handles")[1] > 1.3
    missed = {goal.name.partition(":")[0] for goal in find_goals(rows, Told()) if not goal.holds and ":" in goal.name}
    assert missed == {"rss_mb", "handles"}
