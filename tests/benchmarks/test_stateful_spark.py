"""The benchmark of stateful operators in Spark still works: its input and its right results, goals, and a tiny run."""

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from benchmarks import stateful_spark
from benchmarks.harness import results
from benchmarks.harness.report import Row, Rows
from benchmarks.microbatch import data, drawing, report
from benchmarks.microbatch.driver import Watch
from benchmarks.microbatch.engines import CAIRN, ENGINES, ROCKSDB_CHANGELOG, ROCKSDB_PLAIN, TRANSFORM_ROW
from benchmarks.microbatch.figures import COLD, KEPT, LOST, WARM
from benchmarks.microbatch.meters import CheckpointMeter
from benchmarks.microbatch.plans import FULL, QUICK, SMOKE, Plan, TimeLimit
from benchmarks.microbatch.process import DriverFailed
from benchmarks.microbatch.report import find_goals, missing_goals
from benchmarks.microbatch.running import tasks_began
from spe_adapter.cec.control import EndPositions
from spe_adapter.microbatch.committed import CommittedEpoch, EpochProgress, progress_of
from tests.benchmarks.smoke import run_smoke
from tests.support.limits import PROGRAM_S


@pytest.mark.spark
@pytest.mark.slow
def test_smoke_run(tmp_path: Path) -> None:
    """A tiny run leaves JSON with every stage and a plot, the right results, and no file, process or shared memory."""
    before = set(Path("/dev/shm").glob("cairn-bench-*"))
    left = run_smoke("stateful_spark", tmp_path, "--data", tmp_path)
    assert left["left_out"] == []
    assert {"machine", "versions", "plan", "goals", "notes", "medians"} <= left.keys()
    assert {row["what"] for row in left["rows"]} == {"fill", "update", "close", "fill again", "recovery"}
    recoveries = [row for row in left["rows"] if row["what"] == "recovery"]
    assert {(row["memory"], row["spark"]) for row in recoveries} == {(m, s) for m in (KEPT, LOST) for s in (COLD, WARM)}
    ours = {row["ours_s"] for row in recoveries if row["engine"] == CAIRN}
    assert all(0 < seconds < PROGRAM_S for seconds in ours)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stateful_spark.json", "stateful_spark.png"]
    assert set(Path("/dev/shm").glob("cairn-bench-*")) == before


def test_expected_results_are_the_averages() -> None:
    """The digest of what is right is that of averages computed record by record."""
    again = data.CYCLE_WINDOWS
    epochs = [data.fill(300), data.update(300, 1), data.closing(300, 2, 0), data.fill(300, 3, again)]
    prices: dict[tuple[int, int], list[int]] = defaultdict(list)
    for epoch in epochs:
        for key, price, time_ms in zip(*(column.tolist() for column in epoch), strict=True):
            prices[key, (time_ms - data.FIRST_MS) // data.WINDOW_MS].append(price)
    for first, last in ((-data.EARLY_WINDOWS, 0), (0, 0), (-1, -1), (again - data.EARLY_WINDOWS, again)):
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


def test_windows_are_filled_again_behind_a_closing() -> None:
    """None of their rows is late by the watermark that closed all windows before, nor moves it; the next closing closes
    as many windows as the first.
    """
    epochs = [data.fill(1000)]
    counts = []
    for cycle in range(max(FULL.closings, 3)):
        window = cycle * data.CYCLE_WINDOWS
        if cycle:
            newest_ms = int(epochs[-1].times_ms.max())
            epochs.append(data.fill(1000, len(epochs), window))
            starts_ms = epochs[-1].times_ms // data.WINDOW_MS * data.WINDOW_MS
            assert int(starts_ms.min()) + data.WINDOW_MS > newest_ms - data.DELAY_MS
            assert int(epochs[-1].times_ms.max()) == newest_ms
        counts.append(data.expected(epochs, window - data.EARLY_WINDOWS, window).results)
        epochs.append(data.closing(1000, len(epochs), window))
        late_ms = int(epochs[-1].times_ms.max()) - data.DELAY_MS
        assert data.FIRST_MS + (window + 1) * data.WINDOW_MS <= late_ms < data.FIRST_MS + (window + 2) * data.WINDOW_MS
    assert set(counts) == {1000 + 10 * data.EARLY_WINDOWS}


@pytest.mark.parametrize("plan", [FULL, QUICK, SMOKE], ids=lambda plan: plan.mode)
def test_a_plan_has_windows_and_time_for_all_it_measures(plan: Plan) -> None:
    """Each recovery closes an early window, each part has a share; a full run's figures have three rounds or more."""
    assert plan.cold_rounds + plan.warm_rounds <= data.EARLY_WINDOWS
    assert len(plan.shares) == len(plan.recovery_keys) + 2
    assert sum(plan.shares) == pytest.approx(1.0)
    if plan.mode == results.FULL:
        assert min(plan.cold_rounds, plan.warm_rounds, plan.closings) >= 3
        assert plan.limit_seconds <= 60 * 60


def test_no_part_takes_the_time_of_those_behind_it() -> None:
    """What a part leaves goes to the next ones; what one overran is not theirs to make up for."""
    now = [100.0]
    limit = TimeLimit(replace(SMOKE, limit_seconds=100.0, shares=(0.5, 0.3, 0.2)), lambda: now[0])
    assert not limit.allows(0.0)
    limit.next_part()
    assert limit.allows(49.0)
    assert not limit.allows(51.0)
    now[0] = 110.0
    limit.next_part()
    assert limit.allows(69.0)
    assert not limit.allows(71.0)
    now[0] = 180.0
    limit.next_part()
    assert limit.allows(19.0)
    assert not limit.allows(20.0)


class Told:
    """A query whose progress the test sets."""

    progress: EpochProgress | None = None


def test_a_restart_does_not_tell_the_epoch_of_the_run_before() -> None:
    """Until its first epoch a run knows the last one from the log alone, which no task of this run began."""
    in_log = EndPositions(
        generation=0,
        batch=7,
        closing=False,
        late_watermark_ms=0,
        watermark_ms=0,
        max_event_ms=None,
        partitions=2,
        layout=0,
    )
    query = Told()
    query.progress = progress_of(CommittedEpoch(16, in_log, (), (), ()))
    assert query.progress.started_ms == 0
    watch = Watch(query)
    try:
        assert watch.told() == []
        query.progress = replace(query.progress, epoch=18, batch=8, started_ms=1_700_000_000_000)
        assert [each["epoch"] for each in watch.told()] == [18]
        assert watch.told() == []
    finally:
        watch.end()


def test_the_tasks_of_a_recovery_begin_with_its_first_epoch() -> None:
    """Where an epoch was not seen, nothing is said of when the first one began."""
    epochs = [
        {"records": 1000, "closing": False, "started_ms": 5_000},
        {"records": 1000, "closing": False, "started_ms": 7_000},
        {"records": 0, "closing": True, "started_ms": 9_000},
    ]
    assert tasks_began({"epochs": epochs}, 2) == [5.0, 7.0]
    assert tasks_began({"epochs": epochs[1:]}, 2) is None
    assert tasks_began({"epochs": []}, 2) is None


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
    """Ratios pair the rounds and come with interval and n, of addBatch and of the whole trigger; a goal without rows is
    left out, and named.
    """
    rows = Rows()
    assert find_goals(rows) == []
    names = missing_goals(rows)
    for number, slow in enumerate((1.0, 4.0)):  # the second round was disturbed, for all alike
        for engine, took in ((CAIRN, 0.2), (ROCKSDB_PLAIN, 0.5), (ROCKSDB_CHANGELOG, 0.4), (TRANSFORM_ROW, 10.0)):
            seconds = {"addBatch_s": took * slow, "trigger_s": (took + 0.1) * slow}
            rows.add(what="update", engine=engine, keys=100_000, round=number, **seconds)
    goals = {goal.name: goal for goal in find_goals(rows)}
    assert goals["epoch's work (addBatch), 100,000 keys: transformWithState / Cairn"].value == 50
    builtin = goals["epoch's work (addBatch), 100,000 keys: Cairn / built-in aggregation, RocksDB"]
    assert (builtin.value, builtin.low, builtin.high, builtin.n, builtin.holds) == (0.4, 0.4, 0.4, 2, True)
    whole = goals["epoch as a whole (trigger), 100,000 keys: Cairn / built-in aggregation, RocksDB"]
    assert (whole.value, whole.n, whole.holds) == (0.5, 2, False)
    assert not any(name.startswith("recovery") for name in goals)
    assert sorted([*goals, *missing_goals(rows)]) == sorted(names)


def test_a_goal_is_the_mean_whose_interval_stands_beside_it() -> None:
    """One statistic for both: the geometric mean of the rounds' ratios, inside its own interval."""
    rows = Rows()
    for number, ours in enumerate((0.1, 0.1, 0.8)):
        rows.add(what="update", engine=CAIRN, keys=1_000, round=number, trigger_s=ours)
        rows.add(what="update", engine=ROCKSDB_PLAIN, keys=1_000, round=number, trigger_s=1.0)
    (goal,) = find_goals(rows)
    assert goal.value == pytest.approx(0.2)
    assert goal.low is not None
    assert goal.high is not None
    assert goal.low < goal.value < goal.high


def _recoveries(rows: Rows, engine: str, memory: str, seconds: float, rounds: int = 3) -> None:
    for number in range(rounds):
        labels = {"engine": engine, "memory": memory, "keys": 100_000, "spark": WARM, "round": number}
        rows.add(what="recovery", query_s=seconds, **labels)


def test_the_better_rocksdb_is_known_once_both_recovered() -> None:
    """With one of them there is no such goal."""
    rows = Rows()
    _recoveries(rows, CAIRN, KEPT, 1.0)
    _recoveries(rows, ROCKSDB_CHANGELOG, LOST, 4.0)
    assert find_goals(rows) == []
    _recoveries(rows, ROCKSDB_PLAIN, LOST, 1.6)
    (goal,) = find_goals(rows)
    assert (goal.value, goal.n, goal.holds) == (0.625, 3, False)


def test_of_one_round_no_interval_is_known() -> None:
    """JSON has no infinity: the ends are left out."""
    rows = Rows()
    _recoveries(rows, CAIRN, LOST, 1.0, rounds=1)
    for engine in (ROCKSDB_PLAIN, ROCKSDB_CHANGELOG):
        _recoveries(rows, engine, LOST, 4.0, rounds=1)
    (goal,) = find_goals(rows)
    assert (goal.low, goal.high, goal.n) == (None, None, 1)


def test_the_plot_needs_no_row(tmp_path: Path) -> None:
    """Nor all engines, nor more than one measurement of each."""
    rows = Rows()
    drawing.draw(rows, "partial", tmp_path / "empty.png")
    rows.add(what="update", engine=CAIRN, keys=1_000, round=1, trigger_s=0.3, written_bytes=10)
    _recoveries(rows, CAIRN, KEPT, 1.0, rounds=2)
    drawing.draw(rows, "partial", tmp_path / "few.png")
    assert (tmp_path / "few.png").read_bytes().startswith(b"\x89PNG")


# ---- runs that end early


def _all_rows() -> list[Row]:
    """What a full run measures, as far as goals need it."""
    found: list[Row] = []
    took = {"addBatch_s": 1.0, "trigger_s": 1.0, "written_bytes": 100}
    for group in FULL.first:
        for engine, epochs in group.epochs.items():
            labels = {"what": "update", "engine": engine, "keys": group.keys}
            found += [{**labels, "round": number, **took} for number in range(epochs)]
    for number in range(3):
        for keys in FULL.recovery_keys:
            for engine, memory in ((CAIRN, KEPT), (CAIRN, LOST), (ROCKSDB_PLAIN, LOST), (ROCKSDB_CHANGELOG, LOST)):
                labels = {"what": "recovery", "engine": engine, "keys": keys, "memory": memory, "round": number}
                found += [{**labels, "spark": spark, "query_s": 1.0, "ours_s": 0.4} for spark in (COLD, WARM)]
    return found


def _run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: Callable[[Any], None]) -> tuple[Path, Path]:
    """A full run whose measuring is `what`; the folders of full results and of others."""
    full, trials = tmp_path / "results", tmp_path / "trials"
    monkeypatch.setattr(results, "RESULTS", full)
    monkeypatch.setattr(results, "TRIALS", trials)
    monkeypatch.setattr(stateful_spark.Benchmark, "run", what)
    stateful_spark.Run(FULL, full, Console(quiet=True)).run(tmp_path)
    return full, trials


def test_what_was_measured_is_kept_when_a_run_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As a partial result, beside the full ones, and the failure is in it."""

    def measure(benchmark: stateful_spark.Benchmark) -> None:
        benchmark.rows.add(what="update", engine=CAIRN, keys=1_000, round=1, trigger_s=0.3)
        raise OSError("no space left on the device")

    with pytest.raises(OSError, match="no space left"):
        _run(monkeypatch, tmp_path, measure)
    left = json.loads((tmp_path / "trials" / "stateful_spark.json").read_text())
    assert (left["mode"], len(left["rows"])) == ("partial", 1)
    assert "no space left" in left["failures"][0]
    assert not (tmp_path / "results").exists()


def test_a_part_that_fails_leaves_the_others_their_turn(tmp_path: Path) -> None:
    """A Spark that does not start is named in the results, and is no reason to measure nothing else."""

    def fail() -> None:
        raise DriverFailed("the Spark process ended")

    benchmark = stateful_spark.Benchmark(SMOKE, tmp_path, Console(quiet=True), lambda: None)
    assert not benchmark.attempt("recovery with 100 keys", fail)
    assert benchmark.attempt("the last groups of epochs", lambda: None)
    assert benchmark.failures == ["recovery with 100 keys: DriverFailed: the Spark process ended"]


@pytest.mark.parametrize(
    "missing", ["nothing", "epochs of a slow peer", "rows", "rounds", "recoveries", "part", "engine"]
)
def test_only_a_run_that_left_nothing_out_is_full(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A part without time, a failed engine, a goal without rows or with fewer rounds than planned make it a partial
    one, which says what it lacks.
    """
    lacking: dict[str, Callable[[Row], bool]] = {
        "rows": lambda row: row["what"] == "recovery",
        "rounds": lambda row: row.get("engine") == TRANSFORM_ROW and row["round"] > 0,
        "recoveries": lambda row: row["what"] == "recovery" and row["memory"] == KEPT and row["round"] == 2,
    }

    def measure(benchmark: stateful_spark.Benchmark) -> None:
        for row in _all_rows():
            if missing not in lacking or not lacking[missing](row):
                benchmark.rows.add(**row)
        if missing == "epochs of a slow peer":
            benchmark.stopped.append("applyInPandasWithState, 100,000 keys, from epoch 2 on")
        if missing == "part":
            benchmark.left_out.append("the last groups of epochs: the time for it was up")
        if missing == "engine":
            benchmark.failures.append("an engine: WrongResult")

    full, trials = _run(monkeypatch, tmp_path, measure)
    if missing in ("nothing", "epochs of a slow peer"):
        left = json.loads(report.path_in(full).read_text())
        assert left["mode"] == results.FULL
        assert len(left["stopped"]) == (missing != "nothing")
        assert not report.path_in(trials).exists()
        return
    left = json.loads(report.path_in(trials).read_text())
    assert left["mode"] == results.PARTIAL
    assert not full.exists()
    if missing == "rows":
        assert any(each.startswith("goal not measured: recovery, 1,000,000 keys") for each in left["left_out"])
    thin = [each for each in left["left_out"] if each.startswith("goal measured in fewer rounds than planned: ")]
    if missing == "rounds":
        assert len(thin) == 2, "work and whole of an epoch"
        assert all(each.endswith("transformWithState / Cairn: n = 1 of 3") for each in thin)
    if missing == "recoveries":
        assert len(thin) == 3, "in use: of two numbers of keys; new: of one"
        assert all(" memory kept, " in each and each.endswith(": n = 2 of 3") for each in thin)


def test_a_slow_peer_that_is_stopped_names_limit_and_loss(tmp_path: Path) -> None:
    """Of its epochs as of its closing, which it does not come to any more."""
    benchmark = stateful_spark.Benchmark(replace(FULL, engine_seconds=90), tmp_path, Console(quiet=True), lambda: None)
    benchmark._limit.next_part()
    query = benchmark.query("first-0", TRANSFORM_ROW, 100_000)
    query.seconds, query.last_seconds = 70.0, 30.0
    assert not benchmark._may_go_on(query)
    assert query.is_over
    (said,) = benchmark.stopped
    assert said == (
        f"{ENGINES[TRANSFORM_ROW].title}, 100,000 keys, from epoch 0 on, and the closing of its windows: the engine "
        "had used 70 s of the 90 s for one in a group, and the next would have taken 30 s more"
    )
    assert benchmark.left_out == []
