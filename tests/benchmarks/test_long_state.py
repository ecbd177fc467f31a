"""The benchmark of large states still works: what it counts and judges, and a tiny run."""

import json
from pathlib import Path

import pytest

from benchmarks import long_state
from benchmarks.harness import results
from benchmarks.harness.report import Rows
from benchmarks.lasting import report
from benchmarks.lasting.running import CHECKPOINTS, LOG_ALONE, ROCKSDB, drop_cached, size_of, updates_of
from benchmarks.microbatch import data
from benchmarks.microbatch.meters import TableFileMeter
from tests.benchmarks.smoke import run_smoke


@pytest.mark.spark
@pytest.mark.slow
def test_smoke_run(tmp_path: Path) -> None:
    """A tiny run leaves JSON with every stage and a plot, and no file, process or shared memory."""
    before = set(Path("/dev/shm").glob("cairn-bench-*"))
    left = run_smoke("long_state", tmp_path, "--data", tmp_path)
    assert left["left_out"] == []
    for side in (CHECKPOINTS, LOG_ALONE, ROCKSDB):
        assert {row["what"] for row in left["rows"] if row["side"] == side} >= {"fill", "update", "recovery"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["long_state.json", "long_state.png"]
    assert set(Path("/dev/shm").glob("cairn-bench-*")) == before


def test_bursts_count_over_whole_intervals() -> None:
    """The first checkpoint holds what was filled and begins the first interval; what comes behind the last epoch ends
    the last one. What filled the state is no update.
    """
    rows = Rows()
    label = {"keys": 10, "side": CHECKPOINTS}
    rows.add(what="fill", **label, round=0, written_bytes=10_000, first_bytes=0)
    for number in range(1, 14):
        first = 1_000 if number >= 3 else 0
        more = {3: 1_000, 8: 500}.get(number, 0)
        rows.add(what="update", **label, round=number, written_bytes=13 + more, first_bytes=first)
    rows.add(what="after", **label, round=14, written_bytes=613, first_bytes=1_000)
    found = report.written(rows, 10, CHECKPOINTS)
    assert found is not None
    assert (found.steady_bytes, found.bursts) == (14.0, 2)
    assert found.burst_bytes == (500 + 600) / 11
    assert report.written(rows, 10, ROCKSDB) is None


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


def test_a_first_checkpoint_is_no_update() -> None:
    """It holds what was filled, and is told apart; so are RocksDB's files on the local disk."""
    rows = Rows()
    more = {CHECKPOINTS: {"written_bytes": 120, "first_bytes": 100}, ROCKSDB: {"written_bytes": 20, "local_bytes": 30}}
    for side, bytes_of in more.items():
        label = {"keys": 10, "side": side, "round": 1, "checkpoint_bytes": 0, "sink_bytes": 0, "at_s": 1.0}
        rows.add(what="update", **label, **bytes_of)
    ours, theirs = report.facts(rows)
    assert ours["steady_bytes_an_epoch"] == theirs["steady_bytes_an_epoch"] == 20
    assert ours["over_rocksdb_with_first_checkpoint"] == 6.0
    assert ours["over_rocksdb_with_its_local_files"] == 0.4
    assert [goal.value for goal in report.find_goals(rows)] == [1.0]


def test_table_files_with_two_names_count_once(tmp_path: Path) -> None:
    """A snapshot of RocksDB links its table files; other files are none."""
    (tmp_path / "a.sst").write_bytes(bytes(7))
    (tmp_path / "b.sst").hardlink_to(tmp_path / "a.sst")
    (tmp_path / "c.log").write_bytes(bytes(100))
    meter = TableFileMeter(tmp_path)
    assert (meter.grown(), meter.grown()) == (7, 0)


def test_pieces_of_an_epoch_begin_with_its_newest_event() -> None:
    """All rows are there once, and event time does not move behind the first piece."""
    whole = data.fill(1_000)
    parts = list(data.pieces(whole, 30_000))
    assert [len(part.keys) for part in parts][:-1] == [30_000] * (len(parts) - 1)
    assert parts[0].times_ms[0] == whole.times_ms.max()
    assert data.expected(parts, -6, 0) == data.expected([whole], -6, 0)


def test_rows_of_other_windows_do_not_change_what_is_expected() -> None:
    """Of an epoch, the rows of the windows that are compared are enough."""
    epochs = [data.fill(1_000), updates_of(1_000, 1), updates_of(1_000, 2)]
    kept = [data.of_windows(epoch, -6, -1) for epoch in epochs]
    assert 0 < len(kept[1].keys) < len(epochs[1].keys) / 50
    assert data.expected(kept, -2, -1) == data.expected(epochs, -2, -1)


def test_windows_that_recoveries_close_change_until_the_end() -> None:
    """Each of them in one of six epochs: a recovery that lost the newest epochs has other results."""
    epochs = [data.fill(1_000), *(updates_of(1_000, number) for number in range(1, 7))]
    for window in range(-data.EARLY_WINDOWS, 0):
        digests = [data.expected(epochs[:count], window, window) for count in range(1, 8)]
        assert len(set(digests)) == 2
        assert {found.results for found in digests} == {10}
    assert max(epoch.times_ms.max() for epoch in epochs[1:]) <= epochs[0].times_ms.max()


def test_a_run_goes_on_only_where_the_measured_code_is_the_same(tmp_path: Path) -> None:
    """Rows and pieces of the run before are kept; of another or an unknown commit nothing is."""
    partial = tmp_path / "long_state.json"
    commit = results.commit()["commit"]
    piece = {"keys": 10, "commit": commit}
    partial.write_text(json.dumps({"pieces": [piece], "rows": [{"what": "update", "keys": 10}]}))
    rows = Rows()
    if results.measures_the_same("long_state", commit):
        assert long_state.resumed(partial, rows) == [piece]
        assert rows.select(keys=10) == [{"what": "update", "keys": 10}]
    assert long_state.resumed(None, Rows()) == []
    partial.write_text(json.dumps({"pieces": [{**piece, "commit": "0" * 40}], "rows": []}))
    with pytest.raises(SystemExit, match="the measured code has changed"):
        long_state.resumed(partial, Rows())


def test_sizes_are_those_of_all_files(tmp_path: Path) -> None:
    """Below the directory; one that is not there has none."""
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/c").write_bytes(bytes(7))
    (tmp_path / "d").write_bytes(bytes(5))
    assert size_of(tmp_path) == 12
    assert size_of(tmp_path / "nothing") == 0
    assert drop_cached(tmp_path) == 12
