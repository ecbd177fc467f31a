"""Window aggregates equal a naive model, row by row: any aggregate, kind of window, null, late row, cut and crash."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.errors import InvalidConfig
from spe_adapter.errors import SchemaRefused
from spe_adapter.operators import functions as agg
from spe_adapter.operators.aggregates import Aggregate
from spe_adapter.operators.aggregation import Aggregation
from spe_adapter.operators.base import Overlapping, Times
from spe_adapter.operators.errors import OperatorFailed
from spe_adapter.operators.windows import Counting, Running, Session, Sliding, Tumbling, Window
from spe_adapter.testing.harness import OperatorHarness, check_any_batches
from tests.operators.model import (
    FUNCTIONS,
    SCHEMA,
    US,
    NaiveCounting,
    NaiveRunning,
    NaiveSessions,
    NaiveWindows,
    Row,
    assert_same,
    batch_of,
    plain,
    rows_of,
)
from tests.support.examples import examples

MAP = pa.map_(pa.string(), pa.int32())
EPOCHS = st.lists(st.lists(rows_of(), max_size=12), min_size=1, max_size=6)
IN_ANY_ORDER = {
    name
    for name, one in FUNCTIONS.items()
    if not one.is_ordered and name not in ("sum_x", "avg_x") and not name.startswith("stddev")
}
"""Aggregates that have the same bits in any order of rows (sums of the other doubles are exact)."""
CHECKS = st.sampled_from([None, 0, 1, 3])


def harness_of(window: Window, checks: int | None = None) -> OperatorHarness:
    """A harness with every aggregate there is."""
    return OperatorHarness(Aggregate(window, **FUNCTIONS), key="key", schema=SCHEMA, checks=checks)


def sent(harness: OperatorHarness, rows: Sequence[Row], data: st.DataObject, *, cut: bool = True) -> list[Row]:
    """An epoch cut at random, perhaps with a crash behind it; its results."""
    cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=3)) if cut else ()
    before = len(harness.results())
    harness.send(batch_of(rows), cuts=cuts)
    if data.draw(st.booleans()):
        harness.crash_and_recover()
    return [row for output in harness.outputs() for row in plain(output.rows)][before:]


def by_window(rows: list[Row]) -> list[Row]:
    """Results by time, then key: windows of one time come in no promised order."""
    return by_end(rows, "window")


def by_end(rows: list[Row], window: str) -> list[Row]:
    """Results by the end of the window in this column, then key."""
    assert [row[window]["end"] for row in rows] == sorted(row[window]["end"] for row in rows)
    return sorted(rows, key=lambda row: (row[window]["end"], row["key"] is None, row["key"] or ""))


@given(EPOCHS, st.integers(1, 90), st.integers(1, 4), st.integers(-60, 60), st.integers(0, 100), CHECKS, st.data())
@settings(max_examples=examples(15, long=1000))
def test_event_time_windows_equal_the_model(
    epochs: list[list[Row]], slide: int, times: int, start: int, delay: int, checks: int | None, data: st.DataObject
) -> None:
    """Tumbling and sliding windows, shifted, before 1970, with late rows, pauses and crashes."""
    length = data.draw(st.integers(slide, slide * times))
    start = start % slide
    naive = NaiveWindows(length, slide, start, delay)
    window = Sliding(f"{length} seconds", f"{slide} seconds", "ts", f"{delay} seconds", f"{start} seconds")
    harness = harness_of(window, checks)
    for rows in [*epochs, [], []]:
        assert_same(by_window(sent(harness, rows, data)), by_window(naive.epoch(rows)))
        assert len(harness.state()) == len(naive.open)


@given(EPOCHS, st.sampled_from([(30, 30), (60, 25)]), st.integers(0, 60), CHECKS, st.data())
@settings(max_examples=examples(10, long=1000))
def test_windows_in_update_mode_equal_the_model(
    epochs: list[list[Row]], lengths: tuple[int, int], delay: int, checks: int | None, data: st.DataObject
) -> None:
    """After each batch the windows that changed in it, nothing when they end; late rows are dropped as ever."""
    length, slide = lengths
    naive = NaiveWindows(length, slide, 0, delay, update=True)
    harness = harness_of(
        Sliding(f"{length} seconds", f"{slide} seconds", "ts", f"{delay} seconds", mode="update"), checks
    )
    for rows in [*epochs, [], []]:
        found, wanted = (
            sorted(results, key=lambda row: (row["window"]["end"], row["key"] is None, row["key"] or ""))
            for results in (sent(harness, rows, data, cut=False), naive.epoch(rows))
        )
        assert_same(found, wanted)
        assert len(harness.state()) == len(naive.open)


@given(EPOCHS, st.integers(1, 60), st.integers(0, 100), CHECKS, st.data())
@settings(max_examples=examples(12, long=1000))
def test_sessions_equal_the_model(
    epochs: list[list[Row]], gap: int, delay: int, checks: int | None, data: st.DataObject
) -> None:
    """Rows in any order, so that sessions grow together; late rows, pauses and crashes. What depends on the order of
    rows is compared where they come by time.
    """
    any_order = data.draw(st.booleans())
    if not any_order:
        rows = sorted((row for rows in epochs for row in rows), key=lambda row: row["ts"] or 0)
        epochs = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    functions = {name: one for name, one in FUNCTIONS.items() if not any_order or name in IN_ANY_ORDER}
    naive = NaiveSessions(gap, delay)
    window = Session(f"{gap} seconds", "ts", f"{delay} seconds")
    harness = OperatorHarness(Aggregate(window, **functions), key="key", schema=SCHEMA, checks=checks)
    for rows in [*epochs, [], []]:
        wanted = by_end(naive.epoch(rows), "session_window")
        for row in wanted:
            for name in FUNCTIONS.keys() - functions:
                del row[name]
        assert_same(by_end(sent(harness, rows, data), "session_window"), wanted)
        assert len(harness.state()) == sum(1 for sessions in naive.open.values() if sessions)


@given(EPOCHS, st.integers())
@settings(max_examples=examples(3, long=50))
def test_sessions_do_not_depend_on_batches(epochs: list[list[Row]], seed: int) -> None:
    """But for the last bits of sums of doubles, and the order of values, where sessions grow together."""
    functions = {name: one for name, one in FUNCTIONS.items() if name in IN_ANY_ORDER}
    batches: list[Any] = [batch_of(rows).to_pylist() for rows in epochs]
    operator = Aggregate(Session("20 seconds", "ts"), **functions)
    check_any_batches(lambda: OperatorHarness(operator, key="key", schema=SCHEMA), batches, random.Random(seed))


@given(EPOCHS, st.integers(1, 5), st.integers(1, 5), CHECKS, st.data())
@settings(max_examples=examples(12, long=1000))
def test_counting_windows_equal_the_model(
    epochs: list[list[Row]], size: int, advance: int, checks: int | None, data: st.DataObject
) -> None:
    """Many windows of a key in one batch, overlapping ones, in the order of the rows that fill them."""
    advance = min(advance, size)
    naive = NaiveCounting(size, advance)
    harness = harness_of(Counting(size, advance), checks)
    for rows in epochs:
        assert_same(sent(harness, rows, data), naive.epoch(rows))


@given(EPOCHS, CHECKS, st.data())
@settings(max_examples=examples(12, long=1000))
def test_running_aggregates_equal_the_model(epochs: list[list[Row]], checks: int | None, data: st.DataObject) -> None:
    """After each batch the aggregates of the keys in it."""
    naive = NaiveRunning()
    harness = harness_of(Running(), checks)
    for rows in epochs:
        assert_same(sent(harness, rows, data, cut=False), naive.batch(rows))


@given(EPOCHS, st.sampled_from([Tumbling("1 minute", "ts"), Counting(3, 2), Counting(2), Running()]), st.integers())
@settings(max_examples=examples(3, long=50))
def test_results_do_not_depend_on_batches(epochs: list[list[Row]], window: Window, seed: int) -> None:
    """To the last bit of every sum."""
    batches: list[Any] = [batch_of(rows).to_pylist() for rows in epochs]
    results = not isinstance(window, Running)
    check_any_batches(lambda: harness_of(window), batches, random.Random(seed), results=results)


@pytest.mark.parametrize("length", range(1, 8))
@pytest.mark.parametrize("slide", range(1, 8))
@pytest.mark.parametrize("start", [-2, 0, 1])
def test_a_moment_is_in_the_windows_that_hold_it(length: int, slide: int, start: int) -> None:
    """At every microsecond around 1970, for windows that divide evenly and others; and nowhere without a time."""
    if slide > length or abs(start) >= slide:
        return
    window = Sliding(f"{length} microseconds", f"{slide} microseconds", "ts", start=f"{start} microseconds")
    moments = np.arange(-20, 20)
    given = window.assign(Times(moments, moments != 3))
    rows = np.arange(len(moments)) if given.rows is None else given.rows
    numbers = given.numbers
    if isinstance(given, Overlapping):
        counts, spread = given.spread(numbers)
        rows, numbers = np.repeat(rows, counts), spread.numbers
    found = list(zip(moments[rows].tolist(), numbers.tolist(), strict=True))
    starts = [start + slide * number for number in range(-40, 40)]
    assert found == [
        (moment, one) for moment in range(-20, 20) if moment != 3 for one in starts if one <= moment < one + length
    ]


def test_results_come_in_the_same_order_after_a_recovery() -> None:
    """Wherever the windows lie in memory by then."""
    calm, shaken = (harness_of(Tumbling("1 minute", "ts")) for _ in range(2))
    chance = random.Random(2)
    empty = dict.fromkeys(SCHEMA.names)
    for _ in range(5):
        rows = [empty | {"key": f"k{chance.randrange(50)}", "ts": chance.randrange(1, 60) * US} for _ in range(30)]
        calm.send(batch_of(rows))
        shaken.send(batch_of(rows))
        shaken.crash_and_recover()
    assert len(calm.advance_watermark(60_000)) > 40
    assert shaken.advance_watermark(60_000) == calm.results()


def test_a_full_window_leaves_nothing_behind() -> None:
    """Windows that do not overlap are closed when they are full; the state holds open ones alone."""
    harness = OperatorHarness(Aggregate(Counting(2), n=agg.count()), key="key", schema=SCHEMA)
    rows = [dict.fromkeys(SCHEMA.names) | {"key": key} for key in ("a", "b", "a")]
    assert harness.send(rows) == [{"key": "a", "n": 2}]
    assert [row["key"] for row in harness.state()] == ["b"]


def test_empty_batches_and_epochs_are_nothing() -> None:
    """No rows, no results, no state."""
    harness = harness_of(Tumbling("1 minute", "ts"))
    assert harness.send([]) == []
    assert harness.send([], cuts=[0, 0]) == []
    assert harness.state() == []


def test_a_sum_beyond_64_bits_is_an_error_that_names_the_key() -> None:
    """As in Spark's ANSI mode; the state before it stays."""
    harness = OperatorHarness(Aggregate(Running(), total=agg.sum("l")), key="key", schema=SCHEMA)
    row = dict.fromkeys(SCHEMA.names)
    harness.send([row | {"key": "a", "l": 2**63 - 1}, row | {"key": "b", "l": -(2**63)}])
    before = harness.state()
    for key, value in (("a", 1), ("b", -1)):
        with pytest.raises(OperatorFailed, match=rf"key '{key}'.*sum of column 'l' exceeds 64 bits with {value}"):
            harness.send([row | {"key": "c", "l": 1}, row | {"key": key, "l": value}])
    assert harness.state() == before


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (agg.sum("s"), "column 's' is string; sum takes integers, float, double or decimal"),
        (agg.avg("price"), "column 'price' is decimal256.10, 2.; avg takes integers, float, double or decimal"),
        (agg.collect_list("map"), "column 'map' is map<.*>; collect_list takes any type that state can hold"),
        (agg.collect_set("list"), "column 'list' is list<.*>; collect_set takes integers"),
        (agg.approx_count_distinct("list"), "column 'list' is list<.*>; approx_count_distinct takes integers"),
        (agg.percentile_approx("s", 0.5), "column 's' is string; percentile_approx takes integers"),
        (agg.stddev("b"), "column 'b' is bool; stddev takes"),
        (agg.min("list"), "column 'list' is list<.*>; min takes integers, float, double, decimal, boolean"),
        (agg.last("nothing"), "column 'nothing' of last is missing; there is key, ts"),
        (agg.count("nothing"), "column 'nothing' of count is missing"),
    ],
)
def test_columns_that_do_not_suit_are_named(function: Aggregation, message: str) -> None:
    """With the types allowed, before any row comes."""
    schema = pa.schema([*SCHEMA, ("price", pa.decimal256(10, 2)), ("list", pa.list_(pa.int32())), ("map", MAP)])
    with pytest.raises(SchemaRefused, match=message):
        OperatorHarness(Aggregate(Running(), out=function), key="key", schema=schema)


def test_names_that_collide_are_refused() -> None:
    """A result named like a key column, or like the window."""
    with pytest.raises(SchemaRefused, match="output column 'key' exists twice"):
        OperatorHarness(Aggregate(Running(), key=agg.count()), key="key", schema=SCHEMA)
    with pytest.raises(SchemaRefused, match="output column 'window' exists twice"):
        OperatorHarness(Aggregate(Tumbling("1 second", "ts"), window=agg.count()), key="key", schema=SCHEMA)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Tumbling("5 parsecs", "ts"), "duration '5 parsecs'"),
        (lambda: Tumbling("", "ts"), "duration ''"),
        (lambda: Tumbling("1 month", "ts"), "duration '1 month'"),
        (lambda: Tumbling("0 seconds", "ts"), "must be longer than 0"),
        (lambda: Sliding("1 minute", "2 minutes", "ts"), "rows between windows would be lost"),
        (lambda: Tumbling("1 minute", "ts", start="1 minute"), "shifted"),
        (lambda: Tumbling("1 minute", "ts", delay="-1 second"), "must not be negative"),
        (lambda: Tumbling("1 second", "ts", mode="complete"), "mode 'complete'; it is append or update"),  # type: ignore[arg-type]
        (lambda: Session("0 seconds", "ts"), "must be longer than 0"),
        (lambda: Session("1 second", "ts", "-1 second"), "must not be negative"),
        (lambda: Counting(0), "1 <= advance <= size"),
        (lambda: Counting(3, 4), "1 <= advance <= size"),
        (lambda: Counting(1000, 1), "at most 64"),
        (lambda: Aggregate(Running()), "give at least one"),
    ],
)
def test_windows_that_cannot_be_are_refused(wrong: Any, message: str) -> None:
    """With what was asked for, and what is allowed."""
    with pytest.raises(InvalidConfig, match=message):
        wrong()


def test_the_time_column_must_be_a_timestamp() -> None:
    """Missing, or of another type."""
    with pytest.raises(SchemaRefused, match="the event time, column 'when', is missing"):
        OperatorHarness(Aggregate(Tumbling("1 second", "when"), n=agg.count()), key="key", schema=SCHEMA)
    with pytest.raises(SchemaRefused, match="the event time, column 'l', is int64; it must be a timestamp"):
        OperatorHarness(Aggregate(Tumbling("1 second", "l"), n=agg.count()), key="key", schema=SCHEMA)
