"""The benchmark of continuous checkpoints still works: its items, its counts, its intervals, and a tiny run."""

import io
import json
import math
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from benchmarks.cec import ENDING_S, FULL, SMOKE, Benchmark, finish
from benchmarks.continuous import drawing, figures, items, report
from benchmarks.continuous.baseline import counted, in_turn
from benchmarks.continuous.items import Source
from benchmarks.continuous.runs import Ran, Setting, Slice, Timeline, divided, standing
from benchmarks.harness import intervals
from benchmarks.harness.process import PeerFailed
from benchmarks.harness.report import Row, Rows
from logstore.format.control import encode_control_record
from logstore.format.epoch_api import Part
from spe_adapter.codec.encode import Columns, encode
from spe_adapter.continuous.core import Figures
from spe_adapter.continuous.fragment import EpochLimits
from spe_adapter.continuous.loop import FragmentProgress
from spe_adapter.epochs.segments import StagedSegment
from tests.benchmarks.smoke import run_benchmark


@pytest.mark.clients
def test_smoke_run(tmp_path: Path) -> None:
    """A tiny run prints its tables and leaves JSON with every figure, the paper's numbers and a plot; nothing else."""
    results, printed = run_benchmark("cec", tmp_path, "--smoke", "--data", tmp_path)
    for title in ("Figure 5", "Figures 6 and 7", "Figures 8 and 9", "Windows loaded", "Goals"):
        assert title in printed
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
    assert all(goal["holds"] for goal in results["goals"] if "that the items demand" in goal["name"])
    (costs,) = (row for row in results["rows"] if row["what"] == "costs")
    assert min(costs["footprint_s"], costs["tuple_s"]) > 0
    assert_every_part_can_be_published(results["rows"], tmp_path / "parts")
    (tmp_path / "parts").rmdir()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cec.json", "cec.png"]


def assert_every_part_can_be_published(rows: list[Row], directory: Path) -> None:
    """Whatever an error leaves of a run's rows becomes tables, JSON and a plot."""
    kept = Rows()
    console = Console(file=io.StringIO())
    for first in range(0, len(rows) + 1, max(1, len(rows) // 4)):
        kept.all = rows[:first]
        report.publish(kept, {"mode": "partial"}, directory, console)
        for name in ("cec.json", "cec.png"):
            (directory / name).unlink()


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def passes(self, seconds: float) -> None:
        """So long."""
        self.now_s += seconds


def test_a_part_that_would_end_too_late_is_left_out_by_name(tmp_path: Path) -> None:
    """How long it takes is known from the rounds before; parts that are shorter still fit in."""
    clock = Clock()
    benchmark = Benchmark(FULL, tmp_path, Console(file=io.StringIO()), clock)
    benchmark.part("long", "long, round 0", partial(clock.passes, 300.0))
    benchmark.part("short", "short, round 0", partial(clock.passes, 10.0))
    clock.now_s = FULL.limit_seconds - ENDING_S - 200.0
    benchmark.part("long", "long, round 1", partial(clock.passes, 300.0))
    benchmark.part("short", "short, round 1", partial(clock.passes, 10.0))
    assert benchmark.left_out == ["long, round 1: the run's time was up"]
    assert clock.now_s == FULL.limit_seconds - ENDING_S - 190.0


def test_a_full_run_decides_its_goals() -> None:
    """Each kind of figure 5 runs for half a minute at each speed, each CP at least five times, within half an hour."""
    assert 2 * FULL.blocks * FULL.rounds * FULL.slice_s >= 30
    assert FULL.period_turns * FULL.rounds >= 5
    assert FULL.large_loads * FULL.rounds >= 9
    assert FULL.limit_seconds <= 1800


def test_what_a_broken_run_measured_is_kept_as_partial(tmp_path: Path) -> None:
    """An error at the end of a run does not take its rows with it, nor do they pass for a full run's."""
    benchmark = Benchmark(FULL, tmp_path, Console(file=io.StringIO()), Clock())
    full, part = tmp_path / "full", tmp_path / "part"

    def run() -> None:
        benchmark.rows.add(what="costs", byte_s=1e-9)
        raise PeerFailed("the sidecar is gone")

    with pytest.raises(PeerFailed):
        finish(benchmark, run, {"mode": "full"}, full, part, Console(file=io.StringIO()))
    kept = json.loads((part / "cec.json").read_text())
    assert (kept["mode"], [row["what"] for row in kept["rows"]]) == ("partial", ["costs"])
    assert kept["left_out"] == ["everything after PeerFailed: the sidecar is gone"]
    assert not full.exists()


@pytest.mark.parametrize("left_out", [[], ["windows loaded, turn 11: the run's time was up"]])
def test_a_run_that_left_something_out_is_not_full(tmp_path: Path, left_out: list[str]) -> None:
    """It names what it left out and goes where shorter runs go; only a whole one is kept as full."""
    benchmark = Benchmark(SMOKE, tmp_path, Console(file=io.StringIO()), Clock())
    full, part = tmp_path / "full", tmp_path / "part"
    console = Console(file=io.StringIO())
    finish(benchmark, partial(benchmark.left_out.extend, left_out), {"mode": "full"}, full, part, console)
    assert full.exists() is not bool(left_out)
    kept = json.loads(((part if left_out else full) / "cec.json").read_text())
    assert (kept["mode"], kept["left_out"]) == ("partial" if left_out else "full", left_out)


def test_small_costs_are_kept() -> None:
    """What a byte costs is some nanoseconds: rows keep significant digits, not decimal places."""
    rows = Rows()
    rows.add(byte_s=1.23456789e-9, rate=1234567.89, count=7)
    assert rows.all == [{"byte_s": 1.23457e-9, "rate": 1234570.0, "count": 7}]


def test_bounds_are_judged_at_every_epoch_behind_the_warm_up() -> None:
    """An excess early in a run counts, one of its warm-up does not, and an epoch's own records are left out."""
    timeline = Timeline()
    for records, extent, to_replay in (
        (100, 900, 950),
        (200, 500, 180),
        (300, 90, 130),
        (400, 80, 120),
        (500, 70, 110),
    ):
        stood = Figures(1, 5, extent, to_replay, 0, 0, 0, records, records // 2, 0, 0)
        timeline.moments.append(records / 100)
        timeline.epochs.append(FragmentProgress(stood, 0))
    ran = Ran(
        Setting(Source("topic", 2, 100, 50), 3, EpochLimits()), timeline, (Slice(150, 3.0, 350, 0, 0, 0.1, 0.0),), 0, 0
    )
    found = standing(ran)
    assert (found["extent_most"], found["to_replay_most"], found["beats"]) == (450, 80, 4)
    assert (found["extent"], found["to_replay"], found["extent_mean"]) == (70, 110, 185.0)


def test_every_kind_begins_as_often_as_the_others() -> None:
    """A block is the same forth and back, and the kind at its ends is another one in each."""
    blocks = [in_turn("ABCD", number) for number in range(4)]
    assert ["".join(block) for block in blocks] == ["ABCDDCBA", "BCDAADCB", "CDABBADC", "DABCCBAD"]


def test_titles_do_not_run_into_each_other() -> None:
    """No title of the plot touches its neighbour's, and none is empty."""
    page = drawing.paged(Rows(), "full")
    page.savefig(io.BytesIO())
    boxes = [axis.title.get_window_extent() for axis in page.axes]
    assert all(axis.get_title() for axis in page.axes)
    assert not [(one, other) for one, other in combinations(boxes, 2) if one.overlaps(other)]


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
    whole = StagedSegment((Part("topic", 0, len(plain) + len(control), 2, 4),), plain + control)
    kept, left_out = divided(whole)
    assert kept is not None
    assert (bytes(kept.data), kept.parts) == (plain, (Part("topic", 0, len(plain), 1, 3),))
    assert left_out == len(control)
    assert divided(StagedSegment((Part("topic", 0, len(control), 1, 1),), control)) == (None, len(control))


def counts_of(ids: list[int], window: int, bounds: list[int]) -> tuple[int, int]:
    """G_opens and results, one record after the other."""
    held: dict[int, int] = {}
    opened_in: dict[int, int] = {}
    opens = results = 0
    for epoch, (first, end) in enumerate(zip([0, *bounds], bounds, strict=False)):
        for item in ids[first:end]:
            if not held.get(item):
                opened_in[item] = epoch
            held[item] = held.get(item, 0) + 1
            if held[item] == window:
                held[item] = 0
                results += 1
        opens += sum(1 for item, count in held.items() if count and opened_in[item] == epoch)
    return opens, results


@pytest.mark.parametrize("window", [1, 3, 10])
def test_what_a_run_must_write_is_counted_from_its_items(window: int) -> None:
    """Opens and results, in epochs of any length and several readings of the source, are as counted one by one."""
    source = Source("topic", 5, 300, 50)
    bounds = np.cumsum(np.random.default_rng(window).integers(1, 400, 12))
    ids = source.ids(int(bounds[-1])).tolist()
    opens, results = counts_of(ids, window, bounds.tolist())
    assert items.opens_of(source, window, bounds) == opens
    assert items.results_of(source, window, int(bounds[-1])) == results


def test_a_run_that_wrote_too_little_misses_its_goal() -> None:
    """Without the G_opens that its items demand a run is not compared, and a goal says by how much it differs."""
    source = Source("topic", 2, 100, 50)
    figures_at_end = Figures(1, 2, 0, 0, 0, 0, 0, 100, 30, 0, 0)
    timeline = Timeline([1.0], [FragmentProgress(figures_at_end, 0)])
    ran = Ran(Setting(source, 3, EpochLimits()), timeline, (Slice(0, 1.0, 100, 32, 0, 0.1, 0.0),), 0, 0)
    counts = counted(ran)
    differs = abs(counts["results_wanted"] - 30) + counts["opens_wanted"]
    assert differs > 0
    rows = Rows()
    labels = {"workload": figures.SLOW, "speed": figures.FULL_SPEED}
    for kind in (figures.NATIVE, figures.DISK):
        rows.add(what="slice", **labels, kind=kind, round=0, cpu_s=1.0, records=100)
    rows.add(what="counts", **labels, kind=figures.DISK, **counts)
    (goal,) = report.find_goals(rows)
    assert (goal.value, goal.holds) == (differs, False)
    rows.all[-1].update(opens=counts["opens_wanted"], results=counts["results_wanted"])
    overhead, goal = report.find_goals(rows)
    assert goal.holds
    assert f"{counts['opens_wanted']} G_opens, 0 G_checks, 0 closes in 1 epochs" in overhead.name


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
