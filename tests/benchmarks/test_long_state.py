"""The benchmark of large states still works: what it counts and judges, and a tiny run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.report import Rows
from benchmarks.lasting import report
from benchmarks.lasting.running import CHECKPOINTS, LOG_ALONE, ROCKSDB, size_of
from tests.support.limits import PROGRAM_S

ROOT = Path(__file__).parents[2]


@pytest.mark.spark
@pytest.mark.slow
def test_smoke_run(tmp_path: Path) -> None:
    """A tiny run leaves JSON with every stage and a plot, and no file, process or shared memory."""
    before = set(Path("/dev/shm").glob("cairn-bench-*"))
    command = [sys.executable, "benchmarks/long_state.py", "--smoke"]
    done = subprocess.run(
        [*command, "--results", str(tmp_path), "--data", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    left = json.loads((tmp_path / "long_state.json").read_text())
    assert left["mode"] == "smoke"
    assert left["left_out"] == []
    for side in (CHECKPOINTS, LOG_ALONE, ROCKSDB):
        assert {row["what"] for row in left["rows"] if row["side"] == side} >= {"fill", "update", "recovery"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["long_state.json", "long_state.png"]
    assert set(Path("/dev/shm").glob("cairn-bench-*")) == before


def test_bytes_of_the_last_checkpoints_count() -> None:
    """What is written behind the last epoch belongs to the updates, what filled the state does not."""
    rows = Rows()
    label = {"keys": 10, "side": CHECKPOINTS}
    rows.add(what="fill", **label, round=0, written_bytes=1_000)
    rows.add(what="update", **label, round=1, written_bytes=30)
    rows.add(what="after", **label, round=2, written_bytes=12)
    assert report.written_bytes(rows, 10, CHECKPOINTS) == 42


def test_a_log_that_goes_on_growing_misses_its_goal() -> None:
    """The last third is compared with the third before; too few epochs say nothing."""
    rows = Rows()
    for number in range(9):
        label = {"keys": 10, "round": number, "written_bytes": 5, "checkpoint_bytes": 0, "sink_bytes": 0}
        rows.add(what="update", side=CHECKPOINTS, log_bytes=100 * (number + 1), **label)
        rows.add(what="update", side=ROCKSDB, **label)
    assert report.growth(rows, 10, CHECKPOINTS) == 1.5
    assert report.growth(rows, 10, ROCKSDB) is None
    written, grown = report.find_goals(rows)
    assert (written.value, written.holds) == (1.0, True)
    assert (grown.value, grown.holds) == (1.5, False)


def test_sizes_are_those_of_all_files(tmp_path: Path) -> None:
    """Below the directory; one that is not there has none."""
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/c").write_bytes(bytes(7))
    (tmp_path / "d").write_bytes(bytes(5))
    assert size_of(tmp_path) == 12
    assert size_of(tmp_path / "nothing") == 0
