"""The processor between batches and an operator: who is late, who is to blame, what a replay leaves out."""

from __future__ import annotations

import json
import re
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spe_adapter
from spe_adapter.errors import SchemaRefused
from spe_adapter.operators import functions as agg
from spe_adapter.operators.aggregates import Aggregate
from spe_adapter.operators.base import Emitted, Operator, Results, Rows, State, next_watermark
from spe_adapter.operators.errors import OperatorFailed
from spe_adapter.operators.join import WindowJoin
from spe_adapter.operators.keys import KeyCodec
from spe_adapter.operators.output import Output
from spe_adapter.operators.processor import Processor
from spe_adapter.operators.replay import SkipPoints
from spe_adapter.operators.windows import Counting, Running, Sliding, Tumbling
from spe_adapter.state.direct import Direct
from spe_adapter.state.table import Table
from spe_adapter.testing import OperatorHarness

ROOT = Path(spe_adapter.__file__).parent
MOMENT = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("k", pa.string()), ("x", pa.int64()), ("ts", MOMENT)])
WHOLE = pa.schema([pa.field("y", pa.int64(), nullable=False)])
ONE = pa.RecordBatch.from_pydict({"y": [1]}, WHOLE)


class Free(Operator):
    """An operator made of functions."""

    def __init__(self, process: Callable[[Rows, State], Emitted], *, whole: bool = False, **settings: Any) -> None:
        self._process = process
        self._whole = whole
        self.state = {"n": pa.int64(), "note": pa.string()}
        for name, value in settings.items():
            setattr(self, name, value)

    def output(self, schema: pa.Schema) -> pa.Schema:
        """One number."""
        return WHOLE if self._whole else pa.schema([("y", pa.int64())])

    def process(self, rows: Rows, state: State) -> Emitted:
        """The function."""
        return self._process(rows, state)


def processor_of(operator: Operator, schema: pa.Schema = SCHEMA, key: str = "k") -> Processor:
    """A processor on an empty table."""
    store = Direct(Table.in_memory(operator.state_schema(schema)))
    return Processor(operator, KeyCodec(schema, [key]), schema, store)


def batch(*rows: tuple[str | None, int | None, int | None]) -> pa.RecordBatch:
    """Rows of key, x and µs."""
    keys, xs, times = zip(*rows, strict=True) if rows else ((), (), ())
    columns = [pa.array(keys, pa.string()), pa.array(xs, pa.int64()), pa.array(times, pa.int64()).view(MOMENT)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def rows_of(output: Output | None) -> list[dict[str, Any]]:
    """Results as dictionaries."""
    return [] if output is None else output.rows.to_pylist()


def test_a_window_is_late_and_due_at_the_very_microsecond() -> None:
    """A window that ends at 10.0005 s is open at the watermark 10.000 s, due and late at 10.001 s."""
    operator = Aggregate(Tumbling("10 seconds", "ts", start="500 microseconds"), n=agg.count())
    processor = processor_of(operator)
    processor.process(batch(("a", 1, 10_000_499)), late_watermark_ms=10_000)
    assert processor.expire(10_000) is None
    assert [row["n"] for row in rows_of(processor.expire(10_001))] == [1]
    processor.process(batch(("a", 1, 10_000_499)), late_watermark_ms=10_001)
    assert (processor.late, processor.expire(2**60)) == (1, None)


def test_rows_without_windows_are_late_by_their_own_time() -> None:
    """As Spark's stateful operators have it: not newer than the watermark is late; without a time never."""
    seen: list[int] = []

    def note(rows: Rows, state: State) -> None:
        seen.extend(rows.batch.column("x").to_pylist())

    processor = processor_of(Free(note, event_time="ts"))
    processor.process(
        batch(("a", 1, 5_000_000), ("a", 2, 5_000_001), ("b", 3, None), ("c", 4, -7)), late_watermark_ms=5000
    )
    assert seen == [2, 3]
    assert processor.late == 2
    assert processor.max_events_ms == [5000]


def test_rows_and_records_are_counted() -> None:
    """`sequence` numbers rows behind the steps in front, `seen` counts what came in; empty batches are nothing."""
    numbers: list[int] = []
    processor = processor_of(Free(lambda rows, state: numbers.extend(rows.sequence.tolist())))
    processor.process(batch())
    processor.process(batch(("a", 1, 1), ("b", 2, 2)))
    processor.process(batch(("a", 3, 3)))
    assert numbers == [0, 1, 2]
    assert (processor.sequence, processor.seen) == (3, 3)


def test_state_is_read_as_it_was_written_in_the_call() -> None:
    """Fixed width and text, nulls, expiry; and nothing reaches the store of windows that the call closes."""

    def write(rows: Rows, state: State) -> Emitted:
        state.set("n", np.array([7, 0]), np.array([False, True]))
        state.set_column("note", pa.array([None, "ü"]))
        assert (state.get("n").tolist(), state.nulls("n").tolist()) == ([7, 0], [False, True])
        assert state.column("n").to_pylist() == [7, None]
        assert (state.column("note").to_pylist(), state.nulls("note").tolist()) == ([None, "ü"], [True, False])
        state.expire_at(5)
        state.expire_at(9, where=np.array([False, True]))
        assert state.expires().tolist() == [5, 9]
        assert (state.key_columns()[0].to_pylist(), state.keys.to_pylist()) == (["a", None], [b"a", None])
        state.close(np.array([False, True]))
        return Results(pa.RecordBatch.from_pydict({"y": [1]}), np.array([1]))

    harness = OperatorHarness(Free(write), key="k", schema=SCHEMA)
    assert harness.send(batch(("a", 1, 1), (None, 2, 2))) == [{"k": None, "y": 1}]
    assert harness.state() == [{"k": "a", "expires_ms": 5, "n": 7, "note": None}]


def test_a_window_can_be_given_more_time() -> None:
    """Behind `expire` those windows stay that were given a later time; a time that has passed does not count."""

    class Patient(Free):
        def expire(self, state: State, watermark_ms: int) -> Emitted:
            state.set("n", state.get("n") + 1)
            state.expire_at(np.where(state.get("n") < 2, watermark_ms + 1, watermark_ms))
            return pa.RecordBatch.from_pydict({"y": state.get("n")})

    def start(rows: Rows, state: State) -> None:
        state.set("n", np.zeros(state.size, np.int64))
        state.expire_at(10)

    harness = OperatorHarness(Patient(start), key="k", schema=SCHEMA)
    harness.send(batch(("a", 1, 1)))
    assert harness.advance_watermark(9) == []
    assert harness.advance_watermark(10) == [{"k": "a", "y": 1}]
    harness.crash_and_recover()
    assert harness.advance_watermark(11) == [{"k": "a", "y": 2}]
    assert harness.state() == []


@pytest.mark.parametrize(
    ("emitted", "message"),
    [
        (pa.RecordBatch.from_pydict({"y": [1, 2, 3]}), "3 results for 2 windows; give Results"),
        (Results(ONE, np.array([0, 1])), r"Results\(window=\.\.\.\): 2 values; 1 are needed"),
        (
            Results(ONE, np.array([2])),
            r"Results\(window=\.\.\.\) has 2 for result 0; the call's windows are 0 to",
        ),
        (Results(ONE, np.array([-1])), r"Results\(window=\.\.\.\) has -1 for result 0"),
        (Results(ONE, np.array([0.5])), r"Results\(window=\.\.\.\) is int64 and cannot hold 0.5"),
        (Results(ONE, np.array([True])), r"Results\(window=\.\.\.\) has booleans"),
        (Results(ONE, np.array([0]), np.array([np.nan])), r"Results\(times_ms=\.\.\.\) .* cannot hold nan"),
        ({"y": [1, 2]}, "a dict came back; give a pyarrow.RecordBatch"),
        ((ONE, np.array([0])), "a tuple came back; give a pyarrow.RecordBatch"),
        (pa.Table.from_pydict({"y": [1, 2]}), "a pyarrow.Table came back; give"),
        (pd.DataFrame({"y": [1, 2]}), "a pandas.DataFrame came back; give"),
        (Results({"y": [1]}, np.array([0])), "Results with a dict; give"),
        (Results(pa.RecordBatch.from_pydict({"z": [1]}), np.array([0])), "columns z came back; declared are y"),
        (
            Results(pa.RecordBatch.from_pydict({"y": ["t"]}), np.array([0])),
            "'y' came back as string; declared is int64",
        ),
        (
            Results(pa.RecordBatch.from_pydict({"y": [None]}, WHOLE), np.array([0])),
            "'y' is null in result 0; it is dec",
        ),
    ],
)
def test_wrong_results_are_named(emitted: Any, message: str) -> None:
    """Operator, epoch, key, what was given and what to give, and where the operator is: on one line."""
    operator = Free(lambda rows, state: emitted, whole=True)
    wanted = (
        rf"^operator Free failed in epoch 0 at key 'a': \w+: .*{message}.*process: .*test_processor.py, line \d+\)$"
    )
    with pytest.raises(OperatorFailed, match=wanted) as failure:
        processor_of(operator).process(batch(("a", 1, 1), ("b", 1, 1)))
    assert "\n" not in str(failure.value)


def test_an_error_names_sparks_batch_and_the_users_own_line() -> None:
    """The line is that of the user's code, also where the error comes from a library or from here; a message of several
    lines becomes one.
    """

    def in_a_library(rows: Rows, state: State) -> None:
        json.loads("{")

    def in_here(rows: Rows, state: State) -> None:
        state.set("n", np.array([0.5]))

    def in_cython(rows: Rows, state: State) -> None:
        rows.batch.column("gone")

    def of_several_lines(rows: Rows, state: State) -> None:
        raise ValueError("one\ntwo: three")

    for function, message in (
        (in_a_library, "JSONDecodeError: .*"),
        (in_here, "StateValueRefused: state column 'n' is int64 and cannot hold 0.5 .*"),
        (in_cython, "KeyError: .*gone.*"),
        (of_several_lines, "ValueError: one two: three "),
    ):
        processor = processor_of(Free(function))
        processor.epoch, processor.batch = 7, 3
        line = function.__code__.co_firstlineno + 1
        wanted = rf"^operator Free failed in batch 3 \(epoch 7 in the log\) at key 'a': {message}\(.*, line {line}\)$"
        with pytest.raises(OperatorFailed, match=wanted):
            processor.process(batch(("a", 1, 1)))


@pytest.mark.parametrize(
    "library",
    [
        "/opt/me/.local/lib/python3.11/site-packages/there/code.py",
        "/usr/lib/python3/dist-packages/there.py",
        "/opt/spark/python/lib/pyspark.zip/pyspark/sql/udf.py",
        "/opt/spark/python/lib/py4j-0.10.9.9-src.zip/py4j/protocol.py",
    ],
)
def test_a_library_is_known_wherever_it_is(library: str) -> None:
    """In a user's own directory, Debian's, or an archive of Spark's; a directory whose name only begins as ours, or
    like a library's, is the user's.
    """
    names: dict[str, Any] = {}
    exec(compile("def fail():\n    raise ValueError('odd')\n", library, "exec"), names)
    for directory in (f"{ROOT}_jobs", "/opt/me/site-packages-of-mine", f"{sysconfig.get_paths()['stdlib']}-mine"):
        exec(compile("def process(rows, state):\n    fail()\n", f"{directory}/operators.py", "exec"), names)
        own = re.escape(f"ValueError: odd ({directory}/operators.py, line 2)")
        with pytest.raises(OperatorFailed, match=rf"{own}$"):
            processor_of(Free(names["process"])).process(batch(("a", 1, 1)))


def test_a_result_that_cannot_be_written_is_the_operators_fault() -> None:
    """A moment beyond the year 9999 has no text: operator and epoch are named."""
    far = pa.array([2**62]).view(pa.timestamp("us"))
    operator = Free(lambda rows, state: pa.RecordBatch.from_arrays([far], names=["y"]))
    operator.output = lambda schema: pa.schema([("y", pa.timestamp("us"))])  # type: ignore[method-assign]
    processor = processor_of(operator)
    output = processor.process(batch(("a", 1, 1)))
    assert output is not None
    with pytest.raises(
        OperatorFailed, match=r"operator Free failed in epoch 0: InvalidRecord: timestamp .* years 0 to"
    ):
        processor.records(output)


def test_state_that_was_not_declared_or_does_not_fit_is_named() -> None:
    """In the error of the operator that wrote it."""

    def undeclared(rows: Rows, state: State) -> None:
        state.set("m", np.zeros(state.size))

    def short(rows: Rows, state: State) -> None:
        state.set("n", np.zeros(0))

    with pytest.raises(OperatorFailed, match="state 'm' was not declared; there is n, note"):
        processor_of(Free(undeclared)).process(batch(("a", 1, 1)))
    with pytest.raises(OperatorFailed, match="state column 'n': 0 values; 1 are needed"):
        processor_of(Free(short)).process(batch(("a", 1, 1)))


def test_what_is_written_is_a_copy() -> None:
    """An array that the operator goes on to change does not change what it has written."""

    def reuse(rows: Rows, state: State) -> None:
        values = np.array([1])
        state.set("n", values)
        values += 1
        state.expire_at(values)
        values += 1

    harness = OperatorHarness(Free(reuse), key="k", schema=SCHEMA)
    harness.send(batch(("a", 1, 1)))
    assert harness.state() == [{"k": "a", "expires_ms": 2, "n": 1, "note": None}]


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda state: state.set("note", np.array(["x"])), "state column 'note' is string: write it with set_column"),
        (lambda state: state.set_column("note", np.array(["x"])), "'note' is string; give a pyarrow.Array, not numpy"),
        (lambda state: state.set_column("note", pa.array(["x", "y"])), "'note': 2 values; 1 are needed"),
        (lambda state: state.set_column("n", pa.array([1.5])), "'n' is int64 and cannot hold 1.5 without loss"),
        (lambda state: state.set("n", pa.array([1.5])), "'n' is int64 and cannot hold 1.5 without loss"),
        (lambda state: state.set("n", np.ma.masked_array([1], [True])), "'n': a masked array"),
        (lambda state: state.set("n", np.array([1]), np.array([0])), "'n': the nulls are int64; give 1 booleans"),
        (lambda state: state.expire_at(1.5), r"expire_at.* cannot hold 1.5"),
        (lambda state: state.expire_at(float("nan")), r"expire_at.* cannot hold nan"),
        (lambda state: state.expire_at(np.array(["2026-01-01T00:00:00.0005"], "M8[us]")), "expire_at.* without loss"),
        (lambda state: state.expire_at(5, where=np.array([0])), "expire_at, the places are int64; give 1 booleans"),
        (lambda state: state.close(np.array([0])), "close, the places are int64; give 1 booleans"),
        (lambda state: state.close(np.array([True, False])), "close, the places: 2 values; 1 are needed"),
    ],
)
def test_every_way_into_state_is_checked(write: Callable[[State], None], message: str) -> None:
    """Fixed width and text, nulls, expiry, close: what does not fit is refused by name, at the line that writes it."""

    def process(rows: Rows, state: State) -> None:
        write(state)

    with pytest.raises(OperatorFailed, match=f"at key 'a': StateValueRefused: .*{message}"):
        processor_of(Free(process)).process(batch(("a", 1, 1)))


@given(st.integers(1, 40), st.sets(st.integers(0, 39), min_size=1, max_size=3))
def test_the_key_that_fails_is_found(keys: int, bad: set[int]) -> None:
    """Whichever it is among however many; the state there was is untouched."""

    def process(rows: Rows, state: State) -> None:
        state.set("n", state.get("n") + 1)
        if set(rows.batch.column("x").to_pylist()) & bad:
            raise ValueError("odd")

    processor = processor_of(Free(process))
    rows = batch(*((f"k{number}", number, 0) for number in range(keys)))
    if not bad & set(range(keys)):
        assert processor.process(rows) is None
        return
    guilty = {f"k{number}" for number in bad}
    with pytest.raises(OperatorFailed) as failure:
        processor.process(rows)
    assert any(f"at key '{name}': ValueError: odd" in str(failure.value) for name in guilty)
    assert processor._store.get("n", processor._store.all_rows()).tolist() == [0] * keys


def test_keys_that_fail_only_together_are_said_to() -> None:
    """No single key is accused."""

    def process(rows: Rows, state: State) -> None:
        if state.size > 2:
            raise ValueError("a crowd")

    with pytest.raises(OperatorFailed, match=r"ValueError: a crowd \(no key alone provokes it; the call had 4; .*\)"):
        processor_of(Free(process)).process(batch(*((name, 1, 1) for name in "abcd")))


def test_a_replay_gives_each_window_the_rows_it_has_not_seen() -> None:
    """Open windows by the epoch of their footprint, closed ones by that of their close; and no results."""
    skips = SkipPoints()
    skips.add(pa.array([b"a", b"b", None], pa.binary()), np.zeros(3, np.int64), np.array([2, 1, 5]))
    skips.add(pa.array([b"b", b"a"], pa.binary()), np.zeros(2, np.int64), np.array([3, 1]))
    processor = processor_of(Aggregate(Running(), n=agg.count()))
    rows = batch(("a", 1, 1), ("b", 1, 1), ("c", 1, 1), (None, 1, 1), ("a", 2, 2))
    for epoch in (2, 3, 4):
        assert processor.process(rows, replay=skips.at(epoch)) is None
    assert processor.suppressed == 4 + 2
    assert {row["k"]: row["n"] for row in rows_of(processor.process(rows))} == {"a": 6, "b": 2, "c": 4, None: 1}
    assert processor.sequence == 20


def test_the_watermark_is_that_of_the_slowest_input() -> None:
    """Each input's newest row minus its own delay; it never goes back, and waits for an input without rows."""
    join = WindowJoin("1 second", left_time="a", right_time="b", left_delay="2 seconds", right_delay="5 seconds")
    assert [(given.column, given.delay_ms) for given in join.inputs()] == [("left.a", 2000), ("right.b", 5000)]
    assert next_watermark(join, 7, [10_000, None]) == 7
    assert next_watermark(join, 7, [10_000, 11_000]) == 6000
    assert next_watermark(join, 7000, [10_000, 11_000]) == 7000
    assert next_watermark(Aggregate(Running(), n=agg.count()), 7, []) == 7


def test_operators_describe_what_their_state_depends_on() -> None:
    """Another window or another aggregate is another description; another delay is not."""
    described = {
        Aggregate(window, **{name: function}).description
        for window in (Tumbling("1 minute", "ts"), Sliding("1 minute", "30 seconds", "ts"), Counting(3), Running())
        for name, function in (("a", agg.min("x")), ("b", agg.min("x")), ("a", agg.max("x")), ("a", agg.first("x")))
    }
    assert len(described) == 16
    longer = Aggregate(Tumbling("60 seconds", "ts", delay="1 hour"), a=agg.min("x"))
    assert longer.description in described


def test_a_key_column_that_is_missing_is_refused() -> None:
    """Before any row."""
    with pytest.raises(SchemaRefused, match="key column 'gone' is missing"):
        processor_of(Aggregate(Running(), n=agg.count()), key="gone")
