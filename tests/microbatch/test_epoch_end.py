"""The end of an epoch without Spark: footprints, checks of the slowest, counters and the extent."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spe_adapter.cec.control import Footprints, Mark, decode
from spe_adapter.cec.extent import Counters
from spe_adapter.epochs.marks import control_batches
from spe_adapter.microbatch.epoch import EpochPlan, Rebase, log_epoch, newest_of
from spe_adapter.microbatch.epoch_end import EpochEnd, conclude
from spe_adapter.state.overlay import Overlay
from spe_adapter.state.table import Table

WINDOWS = 200
ROWS = 10


def keys(numbers: np.ndarray) -> pa.BinaryArray:
    """Keys by number."""
    return pa.array([b"%d" % number for number in numbers], pa.binary())


def epoch(table: Table, touched: np.ndarray, before: Counters, number: int, limit: int | None) -> EpochEnd:
    """One epoch that changes these windows; its end, applied to the table."""
    overlay = Overlay(table)
    ids, _ = overlay.ensure(keys(touched), np.zeros(len(touched), np.int64))
    overlay.set("n", ids, overlay.get("n", ids) + 1)
    end = conclude(overlay, before.after(records=len(touched)), number, limit)
    table.put(end.changes.footprints, (number, end.counters.emitted, end.counters.seen))
    return end


@pytest.mark.parametrize("limit", [None, 0, 500])
def test_the_extent_stays_within_its_limit(limit: int | None) -> None:
    """Whatever the windows that change, checks of the others keep q at the limit (or at N, the least there can be)."""
    random = np.random.default_rng(5)
    table = Table.in_memory(pa.schema([("n", pa.int64())]))
    counters = epoch(table, np.arange(WINDOWS), Counters(), 0, limit).counters
    max_extent = 4 * WINDOWS if limit is None else max(limit, WINDOWS)
    checks = 0
    for number in range(1, 300):
        touched = random.choice(WINDOWS // 10, ROWS, replace=False)
        end = epoch(table, touched, counters, number, limit)
        counters = end.counters
        identities = end.changes.footprints.column(0).to_pylist()
        assert len(set(identities)) == len(identities) >= ROWS
        checks += len(identities) - ROWS
        assert end.open_windows == WINDOWS
        assert end.extent <= max_extent
        assert end.oldest <= number
        assert end.extent == counters.emitted - int(table.ordinals().min())
    assert checks
    assert table.get("n", table.find(keys(np.arange(WINDOWS)), np.zeros(WINDOWS, np.int64))).sum() == WINDOWS + 2990


def test_control_batches_end_with_the_mark() -> None:
    """Footprints come first, then the mark; an epoch without changes has a mark alone."""
    mark = Mark(
        query="q", epoch=7, attempt="a", partition=0, partitions=1, layout=0, operator="o", open_windows=1, emitted=1,
        seen=1, sequence=1, max_event_ms=None, watermark_ms=0, oldest_epoch=7,
    )  # fmt: skip
    table = Table.in_memory(pa.schema([("n", pa.int64())]))
    end = epoch(table, np.arange(1), Counters(), 7, None)
    first, last = (decode(batch) for batch in control_batches(mark, end.changes, 0))
    assert isinstance(first, Footprints)
    assert last == mark
    nothing = epoch(table, np.arange(0), end.counters, 8, None)
    assert [decode(batch) for batch in control_batches(mark, nothing.changes, 0)] == [mark]


def test_plans_survive_their_journey() -> None:
    """A plan is what it was when the task reads it; epochs are numbered in order."""
    plan = EpochPlan("q", "r", 4, 1, 5, 6, 2, (), (None, 3), Rebase(2))
    assert EpochPlan.from_json(plan.to_json()) == plan
    numbers = [log_epoch(0, 1, closing=False), log_epoch(0, 1, closing=True), log_epoch(0, 2, closing=False)]
    assert numbers == sorted(numbers)
    assert numbers[-1] < log_epoch(1, 0, closing=False)


def test_the_newest_event_of_each_input() -> None:
    """Inputs without a row yet count as nothing."""
    assert newest_of((), (1, None)) == (1, None)
    assert newest_of((1, None), ()) == (1, None)
    assert newest_of((1, None), (None, None)) == (1, None)
    assert newest_of((1, 5), (2, None)) == (2, 5)
