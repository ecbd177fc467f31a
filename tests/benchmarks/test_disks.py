"""Benchmarks sync file systems in one place, which tests of them can turn off."""

from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_no_benchmark_syncs_all_file_systems_by_itself() -> None:
    """A sync of all file systems waits for what any program writes: a tiny run would take minutes beside other work."""
    syncing = {
        path.relative_to(BENCHMARKS).as_posix() for path in BENCHMARKS.rglob("*.py") if "os.sync()" in path.read_text()
    }
    assert syncing == {"harness/disks.py"}
