"""The benchmark of stateful operators in Spark still works: its input and its right results, goals, and a tiny run."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.harness.report import Rows
from benchmarks.stateful import data
from benchmarks.stateful.engines import CAIRN, ROCKSDB_CHANGELOG, ROCKSDB_PLAIN, TRANSFORM_ROW
from benchmarks.stateful.meters import CheckpointMeter
from benchmarks.stateful.report import KEPT, LOST, find_goals
from tests.support.limits import PROGRAM_S

ROOT = Path(__file__).parents[2]


@pytest.mark.spark
@pytest.mark.slow
def test_smoke_run(tmp_path: Path) -> None:
    """A tiny run leaves JSON with every stage and a plot, the right results, and no file, process or shared memory."""
    before = set(Path("/dev/shm").glob("cairn-bench-*"))
    done = subprocess.run(
        [
            sys.executable,
            "benchmarks/stateful_spark.py",
            "--smoke",
            "--results",
            str(tmp_path),
            "--data",
            str(tmp_path),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads((tmp_path / "stateful_spark.json").read_text())
    assert results["mode"] == "smoke"
    assert {"machine", "versions", "plan", "goals", "notes", "medians", "left_out"} <= results.keys()
    assert {row["what"] for row in results["rows"]} == {"fill", "update", "close", "recovery"}
    assert {row["memory"] for row in results["rows"] if row["what"] == "recovery"} == {KEPT, LOST}
    assert (tmp_path / "stateful_spark.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stateful_spark.json", "stateful_spark.png"]
    assert set(Path("/dev/shm").glob("cairn-bench-*")) == before


def test_expected_results_are_the_averages() -> None:
    """The digest of what is right is that of averages computed record by record."""
    epochs = [data.fill(300), data.update(300, 1), data.closing(300, 2, 0)]
    prices: dict[tuple[int, int], list[int]] = defaultdict(list)
    for epoch in epochs:
        for key, price, time_ms in zip(*(column.tolist() for column in epoch), strict=True):
            prices[key, (time_ms - data.FIRST_MS) // data.WINDOW_MS].append(price)
    for first, last in ((-data.EARLY_WINDOWS, 0), (0, 0), (-1, -1)):
        wanted = {each: sum(paid) / len(paid) for each, paid in prices.items() if first <= each[1] <= last}
        keys = np.array([key for key, _ in wanted], np.int64)
        assert data.expected(epochs, first, last) == data.digest(keys, np.array(list(wanted.values())))


def test_only_the_closing_epoch_moves_the_watermark() -> None:
    """Epochs that update windows end at the same event time; the closing one passes the end of the window it names,
    watermark delay counted, and of none behind it.
    """
    fill = data.fill(1000)
    assert {int(data.update(1000, number).times_ms.max()) for number in range(1, 4)} == {int(fill.times_ms.max())}
    assert int(fill.times_ms.max()) - data.DELAY_MS < data.FIRST_MS - data.EARLY_WINDOWS * data.WINDOW_MS
    for window in range(-data.EARLY_WINDOWS, 1):
        watermark_ms = int(data.closing(1000, 5, window).times_ms.max()) - data.DELAY_MS
        end_ms = data.FIRST_MS + (window + 1) * data.WINDOW_MS
        assert end_ms <= watermark_ms < end_ms + data.WINDOW_MS


def test_files_hold_the_epoch(tmp_path: Path) -> None:
    """What an engine reads is what the right results were computed from."""
    epoch = data.update(50, 1)
    data.write(epoch, tmp_path / "0.parquet")
    table = pq.read_table(tmp_path / "0.parquet")
    assert table.column("key").to_pylist() == epoch.keys.tolist()
    assert table.column("price").to_pylist() == epoch.prices.tolist()
    assert [path.name for path in tmp_path.iterdir()] == ["0.parquet"]


def test_checkpoint_meter_counts_new_files(tmp_path: Path) -> None:
    """Files that are there already count once, files that go do not matter."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "1").write_bytes(b"x" * 10)
    meter = CheckpointMeter(tmp_path)
    assert meter.grown() == 10
    (tmp_path / "state" / "2").write_bytes(b"x" * 7)
    (tmp_path / "state" / "1").unlink()
    assert meter.grown() == 7
    assert meter.grown() == 0


def test_goals_compare_what_ran_side_by_side() -> None:
    """Ratios pair the rounds; a goal without rows is left out."""
    rows = Rows()
    assert find_goals(rows) == []
    for number, slow in enumerate((1.0, 4.0)):  # the second round was disturbed, for all alike
        for engine, took in ((CAIRN, 0.2), (ROCKSDB_PLAIN, 0.5), (ROCKSDB_CHANGELOG, 0.4), (TRANSFORM_ROW, 10.0)):
            rows.add(what="update", engine=engine, keys=100_000, round=number, addBatch_s=took * slow)
    goals = {goal.name: goal for goal in find_goals(rows)}
    assert goals["epoch, 100,000 keys: transformWithState / Cairn"].value == 50
    builtin = goals["epoch, 100,000 keys: Cairn / built-in aggregation, RocksDB"]
    assert (builtin.value, builtin.holds) == (0.4, True)
    assert not any(name.startswith("recovery") for name in goals)
