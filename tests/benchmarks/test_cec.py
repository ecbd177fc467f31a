"""The benchmark of continuous checkpoints still works: its items, its counts, its intervals, and a tiny run."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.continuous import figures, intervals, items, report
from benchmarks.continuous.baseline import Kind, NoWork, counted
from benchmarks.continuous.items import Source
from benchmarks.continuous.runs import Ran, Setting, Slice, Timeline, divided
from benchmarks.harness.report import Rows
from logstore.format.control import encode_control_record
from logstore.format.private import Part
from spe_adapter.codec.encode import Columns, encode
from spe_adapter.continuous.core import Figures
from spe_adapter.continuous.fragment import Limits
from spe_adapter.continuous.loop import Progress
from spe_adapter.continuous.port import Piece
from tests.support.limits import PROGRAM_S

ROOT = Path(__file__).parents[2]


@pytest.mark.clients
def test_smoke_run(tmp_path: Path) -> None:
    """A tiny run prints its tables and leaves JSON with every figure, the paper's numbers and a plot; nothing else."""
    done = subprocess.run(
        [sys.executable, "benchmarks/cec.py", "--smoke", "--results", str(tmp_path), "--data", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for title in ("Figure 5", "Figures 6 and 7", "Figures 8 and 9", "Windows loaded", "Goals"):
        assert title in done.stdout
    results = json.loads((tmp_path / "cec.json").read_text())
    assert results["mode"] == "smoke"
    assert {"machine", "versions", "plan", "goals", "paper", "notes", "overheads"} <= results.keys()
    measured = {"slice", "counts", "recovery", "load", "replay", "period", "loading", "costs"}
    assert {row["what"] for row in results["rows"]} == measured
    for row in results["rows"]:
        if row["what"] == "counts" and row["kind"] != figures.NATIVE:
            assert row["opens"] == row["opens_wanted"]
            assert row["opens"] > 0 or row["workload"] == figures.FAST
            assert row["closes"] > 0 or row["workload"] == figures.SLOW
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


def counts_of(ids: list[int], window: int, bounds: list[int]) -> tuple[int, int]:
    """G_opens and results, one record after the other."""
    held: dict[int, int] = {}
    opened_in: dict[int, int] = {}
    opens = results = 0
    for beat, (first, end) in enumerate(zip([0, *bounds], bounds, strict=False)):
        for item in ids[first:end]:
            if not held.get(item):
                opened_in[item] = beat
            held[item] = held.get(item, 0) + 1
            if held[item] == window:
                held[item] = 0
                results += 1
        opens += sum(1 for item, count in held.items() if count and opened_in[item] == beat)
    return opens, results


@pytest.mark.parametrize("window", [1, 3, 10])
def test_what_a_run_must_write_is_counted_from_its_items(window: int) -> None:
    """Opens and results, in beats of any length and several readings of the source, are as counted one by one."""
    source = Source("topic", 5, 300, 50)
    bounds = np.cumsum(np.random.default_rng(window).integers(1, 400, 12))
    ids = source.ids(int(bounds[-1])).tolist()
    opens, results = counts_of(ids, window, bounds.tolist())
    assert items.opens_of(source, window, bounds) == opens
    assert items.results_of(source, window, int(bounds[-1])) == results


def test_a_run_that_wrote_too_little_is_refused() -> None:
    """Without the G_opens that its items demand a run's figures are not taken."""
    source = Source("topic", 2, 100, 50)
    figures_at_end = Figures(1, 2, 0, 0, 0, 0, 0, 100, 30, 0, 0)
    timeline = Timeline([1.0], [Progress(figures_at_end, 0)])
    ran = Ran(Setting(source, 3, Limits()), timeline, (Slice(0, 1.0, 100, 32, 0, 0.1, 0.0),), 0, 0)
    with pytest.raises(NoWork, match="the items demand"):
        counted(ran, Kind())


def test_an_overhead_is_that_of_paired_blocks() -> None:
    """A slow block slows both sides; the goal is judged by the interval's upper end, in each load."""
    rows = Rows()
    for block, machine in enumerate((1.0, 0.5, 0.25, 0.3)):
        for workload in (figures.SLOW, figures.MANY):
            for kind, cost in ((figures.NATIVE, 100.0), (figures.DISK, 101.0 + 0.1 * (block % 2))):
                row = {"what": "slice", "workload": workload, "speed": figures.PAPER_RATE, "kind": kind}
                rows.add(**row, round=block, cpu_s=cost * machine, records=1)
    overhead = figures.overhead_of(rows, figures.SLOW, figures.PAPER_RATE, figures.DISK)
    assert overhead is not None
    assert overhead.n == 4
    assert 0.0095 < overhead.low < overhead.mean < overhead.high < 0.0115
    goals = report.find_goals(rows)
    assert {goal.name.split()[0] for goal in goals} == {"slow", "many"}
    assert all(goal.holds and goal.value == pytest.approx(overhead.high, abs=1e-4) for goal in goals)


def test_intervals_are_students() -> None:
    """Mean ± t s / √n, as a table of Student's t has it; one value alone says nothing of its spread."""
    found = intervals.of_values([1.0, 2.0, 3.0, 4.0])
    assert (found.mean, found.n) == (2.5, 4)
    assert found.high - found.mean == pytest.approx(3.182 * 1.29099 / 2, rel=1e-4)
    assert intervals.of_values([1.0]).high == math.inf
