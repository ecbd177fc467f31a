"""The benchmark of continuous checkpoints still works: its items, what it leaves out, its goals, and a tiny run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.continuous import items, report
from benchmarks.continuous.runs import divided
from benchmarks.harness.report import Rows
from logstore.format.control import encode_control_record
from logstore.format.private import Part
from spe_adapter.codec.encode import Columns, encode
from spe_adapter.continuous.port import Piece

ROOT = Path(__file__).parents[2]
SECONDS = 120


@pytest.mark.clients
def test_smoke_run(tmp_path: Path) -> None:
    """A tiny run prints its tables and leaves JSON with every figure, the paper's numbers and a plot; nothing else."""
    done = subprocess.run(
        [sys.executable, "benchmarks/cec.py", "--smoke", "--results", str(tmp_path), "--data", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for title in ("Figure 5", "Figures 6 and 7", "Figures 8 and 9", "Goals"):
        assert title in done.stdout
    results = json.loads((tmp_path / "cec.json").read_text())
    assert results["mode"] == "smoke"
    assert {"machine", "versions", "plan", "goals", "shown_apart", "paper", "notes", "medians"} <= results.keys()
    assert {row["what"] for row in results["rows"]} == {"baseline", "recovery", "period"}
    assert (tmp_path / "cec.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cec.json", "cec.png"]


def test_lives_of_windows() -> None:
    """The records that open and close each window are those that counting one by one finds."""
    ids = np.random.default_rng(3).integers(0, 7, 200)
    held: dict[int, list[int]] = {}
    lives = []
    for number, item in enumerate(ids.tolist()):
        window = held.setdefault(item, [])
        window.append(number)
        if len(window) == 4:
            lives.append((window[0], number))
            window.clear()
    found = items.lives_of(ids, 4)
    assert list(zip(found.opened.tolist(), found.closed.tolist(), strict=True)) == lives


def test_tuples_become_items() -> None:
    """The step in front of the operator reads ids and prices, of a slice too."""
    tuples = [
        number.to_bytes(4, "little") + (number * 3).to_bytes(4, "little") + bytes(items.TUPLE_BYTES - 8)
        for number in range(10)
    ]
    batch = pa.RecordBatch.from_arrays([pa.array(tuples, pa.binary())], names=["value"]).slice(2, 5)
    found = items.to_items(batch)
    assert found.column("item_id").to_pylist() == [2, 3, 4, 5, 6]
    assert found.column("item_price").to_pylist() == [6, 9, 12, 15, 18]
    assert items.to_items(batch.slice(0, 0)).num_rows == 0


def test_gopen_net_commits_results_only() -> None:
    """Control batches are left out of what is committed, and counted."""
    values = pa.array([b"a", b"b", b"c"], pa.binary())
    data, batches = encode(Columns(None, values, None, np.zeros(3, np.int64)), np.zeros(3, np.int32))
    plain = bytes(data[batches[0].start : batches[0].end])
    control = bytes(encode_control_record(1002, {"query": "q"}, b"state", 0))
    whole = Piece(Part("topic", 0, len(plain) + len(control), 2, 4), plain + control)
    kept, left_out = divided(whole)
    assert kept is not None
    assert (bytes(kept.data), kept.part) == (plain, Part("topic", 0, len(plain), 1, 3))
    assert left_out == len(control)
    assert divided(Piece(Part("topic", 0, len(control), 1, 1), control)) == (None, len(control))


def test_overhead_is_that_of_each_round() -> None:
    """A slow round slows both sides; many items are shown apart and are no goal."""
    rows = Rows()
    for number, machine in enumerate((1.0, 0.5, 0.25)):
        for workload in (report.SLOW, report.MANY):
            for kind, rate in ((report.NATIVE, 100.0), (report.DISK, 99.0)):
                cost = {"records_per_s": rate * machine, "cpu_us_per_record": 1 / rate}
                rows.add(what="baseline", workload=workload, kind=kind, round=number, **cost)
    overhead = report.overhead_of(rows, report.SLOW, report.DISK, "records_per_s")
    assert overhead == pytest.approx(0.01)
    assert all(goal.holds and goal.name.startswith("slow") for goal in report.find_goals(rows))
    assert report.find_goals(rows)
    assert {goal.name.split()[0] for goal in report.shown_apart(rows)} == {"many"}
