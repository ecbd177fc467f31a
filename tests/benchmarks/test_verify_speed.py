"""The benchmark of `cairn verify` still works, and compares reads of the same bytes."""

from pathlib import Path

import pytest

from benchmarks.verify_speed import CHECK, COLD, PLAIN, WARM, files_of, fill, timed
from tests.benchmarks.smoke import run_smoke


@pytest.mark.slow
def test_smoke_run(tmp_path: Path) -> None:
    """Both readers are measured cold and warm, and what was cold came from the disk."""
    found = run_smoke("verify_speed", tmp_path, "--data", tmp_path)
    (directory,) = [row for row in found["rows"] if row["part"] == "directory"]
    reads = [row for row in found["rows"] if row["part"] == "read"]
    assert {(row["state"], row["reader"]) for row in reads} == {
        (state, reader) for state in (COLD, WARM) for reader in (PLAIN, CHECK)
    }
    assert all(row["mb_per_s"] > 0 and row["cpu_s_per_gib"] > 0 for row in reads)
    assert all(row["read_bytes"] >= 0.9 * directory["bytes"] for row in reads if row["state"] == COLD)


def test_the_directory_has_what_was_asked_for(tmp_path: Path) -> None:
    """A directory that is filled has at least so many bytes, and its sidecar has ended: a process that starts on it
    is the only one.
    """
    directory = fill(tmp_path, 1 << 20)
    assert sum(path.stat().st_size for path in files_of(directory)) >= 1 << 20
    assert timed(["cat", *files_of(directory)])["seconds"] > 0
