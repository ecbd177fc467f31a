"""The benchmark of state on pages still works: its states are right in every kind of memory, and a tiny run."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness.report import Rows
from benchmarks.paging import drawing, report
from benchmarks.paging.costs import Plain
from benchmarks.paging.kinds import MAKE, PAGE_BYTES, TITLES, block_of
from benchmarks.paging.state import FIRST_ITEM, Partition, random_rows, windows_for
from tests.benchmarks.smoke import run_smoke


@pytest.mark.slow
def test_smoke_run(tmp_path: Path) -> None:
    """A tiny run leaves JSON with every part and a plot, and no file or shared memory."""
    before = set(Path("/dev/shm").glob("cairn-bench-*"))
    left = run_smoke("pages", tmp_path, "--data", tmp_path)
    assert left["left_out"] == []
    assert {"machine", "versions", "plan", "goals", "notes", "paper", "latencies"} <= left.keys()
    parts = {"aggregate", "join", "prepare", "latency", "task", "read", "bounded"}
    assert {row["what"] for row in left["rows"]} == parts
    assert {row["kind"] for row in left["rows"] if row["what"] == "latency"} == set(TITLES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pages.json", "pages.png"]
    assert set(Path("/dev/shm").glob("cairn-bench-*")) == before


@pytest.mark.parametrize("kind", sorted(MAKE))
def test_every_kind_leaves_a_checkpoint_of_the_same_windows(kind: str, tmp_path: Path) -> None:
    """While the operator goes on, the windows are those of plain arrays; what was begun becomes durable."""
    partition = Partition(3_000, PAGE_BYTES.get(kind))
    zeros, prices = np.zeros(3_000, np.int64), np.arange(3_000) + FIRST_ITEM
    plain = Plain(zeros + 1, prices.copy(), prices.copy())
    checkpointer = MAKE[kind](tmp_path)
    random = np.random.default_rng(5)
    try:
        checkpointer.begin(0, partition)
        for _ in range(5):
            batch = random_rows(random, 500, 3_000)
            partition.process(batch)
            plain.process(batch)
    finally:
        checkpointer.close()
    assert checkpointer.is_done()
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert bool(left) == (type(checkpointer).__name__ != "Nothing")
    windows = partition.table.take(partition.table.live_rows()).to_pylist()
    found = {int(row["key"]): [row[name] for name in row if name.startswith("s_")] for row in windows}
    for item in range(3_000):
        wanted = sorted((plain.counts[item], plain.lows[item], plain.highs[item]))
        assert sorted(value for value in found[item + FIRST_ITEM] if value is not None) == wanted
    partition.close()


@pytest.mark.parametrize("page_bytes", [None, 8192])
def test_the_block_is_the_tables_memory(page_bytes: int | None) -> None:
    """From its first byte on, so that ranges of the content lead to the windows."""
    partition = Partition(1_000, page_bytes)
    block = block_of(partition)
    assert len(block) >= partition.table.size_bytes
    start, end = partition.table.content()[1]
    identities = np.frombuffer(block[start:end].tobytes(), np.int64).reshape(1_000, -1)
    numbers = partition.table.numbers(partition.table.live_rows())
    assert any((identities[:, column] == numbers).all() for column in range(identities.shape[1]))
    partition.close()


def test_sizes_are_those_asked_for() -> None:
    """The content of a state is within a fiftieth of the bytes that were asked for."""
    for size in (200_000, 3_000_000):
        assert Partition(windows_for(size)).content_bytes == pytest.approx(size, rel=0.02)


def test_a_ratio_of_percentiles_is_that_of_all_values() -> None:
    """Over all rounds; the interval holds it, and an empty round is left out."""
    random = np.random.default_rng(3)
    pairs = [(random.exponential(2, 300).tolist(), random.exponential(1, 300).tolist()) for _ in range(8)]
    found = report.percentile_ratio([*pairs, ([], [1.0])], 99)
    assert found is not None
    one, other = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    assert found.mean == pytest.approx(np.percentile(one, 99) / np.percentile(other, 99))
    assert found.low <= found.mean <= found.high
    assert found.n == 8
    assert report.percentile_ratio([([], [1.0])], 99) is None


def test_goals_are_judged_by_what_was_measured() -> None:
    """An epoch that a checkpoint made twice as slow misses its goal; nothing is said of what was not measured."""
    rows = Rows()
    assert report.find_goals(rows) == []
    for number in range(4):
        figures = {"quiet": [10.0, 11.0], "during": [20.0, 22.0], "all": [10.0, 11.0, 20.0, 22.0], "stops": [1.0]}
        label = {"kind": "pages_process", "partitions": 1, "round": number, "bytes": 1}
        rows.add(what="latency", **label, **figures, checkpoint_s=[1.0, 2.0])
    (goal,) = report.find_goals(rows)
    assert (goal.value, goal.holds, goal.n) == (2.0, False, 4)
    (told,) = report.summary(rows)
    assert (told["during_p50_ms"], told["quiet_max_ms"], told["during_n"]) == (21.0, 11.0, 8)


def test_an_empty_page_is_drawn() -> None:
    """What was not measured stays empty."""
    assert len(drawing.paged(Rows(), "full").axes) == 9
