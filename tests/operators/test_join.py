"""The window join equals a naive double loop, in any batches, with late rows, nulls and crashes."""

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
from spe_adapter.operators.join import How, WindowJoin, _pairs
from spe_adapter.state.errors import StateSchemaRefused
from spe_adapter.testing.harness import OperatorHarness, check_any_batches
from tests.operators.model import US
from tests.support.examples import examples

MOMENT = pa.timestamp("us", "UTC")
LEFT = pa.struct([("ts", MOMENT), ("a", pa.string())])
RIGHT = pa.struct([("at", MOMENT), ("b", pa.int64()), ("c", pa.bool_())])
SCHEMA = pa.schema([("k", pa.string()), ("side", pa.int8()), ("left", LEFT), ("right", RIGHT)])

Row = dict[str, Any]


def left(key: str | None, second: float | None, a: str | None = None) -> Row:
    """A row of the left input."""
    return {"k": key, "side": 0, "left": {"ts": None if second is None else int(second * US), "a": a}, "right": None}


def right(key: str | None, second: float | None, b: int | None = None) -> Row:
    """A row of the right input."""
    struct = {"at": None if second is None else int(second * US), "b": b, "c": None if b is None else b > 0}
    return {"k": key, "side": 1, "left": None, "right": struct}


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """Rows as a batch; times are µs."""
    columns = [pa.array([row["k"] for row in rows], pa.string()), pa.array([row["side"] for row in rows], pa.int8())]
    for side, kind in (("left", LEFT), ("right", RIGHT)):
        fields = [
            pa.array([None if row[side] is None else row[side][field.name] for row in rows], _width(field.type)).view(
                field.type
            )
            if pa.types.is_timestamp(field.type)
            else pa.array([None if row[side] is None else row[side][field.name] for row in rows], field.type)
            for field in kind
        ]
        missing = pa.array([row[side] is None for row in rows], pa.bool_())
        columns.append(pa.StructArray.from_arrays(fields, fields=list(kind), mask=missing))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _width(kind: pa.DataType) -> pa.DataType:
    return pa.int64() if pa.types.is_timestamp(kind) else kind


HOWS: tuple[How, ...] = ("inner", "left", "right")
KEYS = st.sampled_from(["x", "y", "", None])
TIMES = st.none() | st.integers(1, 120)
ROWS = st.one_of(
    st.builds(left, KEYS, TIMES, st.none() | st.sampled_from("pq")),
    st.builds(right, KEYS, TIMES, st.none() | st.integers(-3, 3)),
)
EPOCHS = st.lists(st.lists(ROWS, max_size=10), min_size=1, max_size=7)


class NaiveJoin:
    """Every row against every row of the other side that came before it."""

    def __init__(self, within_s: float, delays_s: tuple[int, int], how: How = "inner") -> None:
        self.outer = {"inner": None, "left": 0, "right": 1}[how]
        self.lonely: list[Row] = []
        self.within, self.delays_ms = within_s * US, [delay * 1000 for delay in delays_s]
        self.before: list[Row] = []
        self.newest_ms: list[int | None] = [None, None]
        self.watermark_ms = 0

    def epoch(self, rows: Sequence[Row]) -> list[Row]:
        """One epoch's results. Nothing is ever forgotten here: forgetting must not be seen."""
        late_ms = self.watermark_ms
        known = [
            newest - delay for newest, delay in zip(self.newest_ms, self.delays_ms, strict=True) if newest is not None
        ]
        if len(known) == 2:
            self.watermark_ms = max(self.watermark_ms, min(known))
        results = []
        for row in rows:
            time = self.time(row)
            if time is None:
                continue
            newest = self.newest_ms[row["side"]]
            self.newest_ms[row["side"]] = time // 1000 if newest is None else max(newest, time // 1000)
            if time <= late_ms * 1000:
                continue
            for other in self.before:
                if self.meet(row, other):
                    one, two = (row, other) if row["side"] == 0 else (other, row)
                    results.append({"k": row["k"], "left": one["left"], "right": two["right"]})
            self.before.append(row)
            if row["side"] == self.outer:
                self.lonely.append(row)
        due = [row for row in self.lonely if self.time(row) + self.within <= self.watermark_ms * 1000]
        self.lonely = [row for row in self.lonely if row not in due]
        side = "right" if self.outer == 1 else "left"
        alone: list[Row] = [
            {"k": row["k"], "left": None, "right": None} | {side: row[side]}
            for row in due
            if not any(self.meet(row, other) for other in self.before)
        ]
        return results + sorted(alone, key=repr)

    def meet(self, row: Row, other: Row) -> bool:
        """Whether two rows are a pair."""
        near = abs(self.time(other) - self.time(row)) <= self.within
        return near and other["side"] != row["side"] and other["k"] == row["k"] and row["k"] is not None

    def time(self, row: Row) -> Any:
        """The row's own event time."""
        return row["left"]["ts"] if row["side"] == 0 else row["right"]["at"]


def results_of(harness: OperatorHarness, start: int) -> list[Row]:
    """The harness's results from `start` on, with times in µs."""
    rows = []
    for output in harness.outputs():
        columns = [output.rows.column("k")]
        for side in ("left", "right"):
            parts = output.rows.column(side).flatten()
            names = [field.name for field in output.rows.schema.field(side).type]
            parts = [part.cast(pa.int64()) if pa.types.is_timestamp(part.type) else part for part in parts]
            missing = output.rows.column(side).is_null()
            columns.append(pa.StructArray.from_arrays(parts, names=names, mask=missing))
        rows += pa.RecordBatch.from_arrays(columns, names=["k", "left", "right"]).to_pylist()
    return rows[start:]


def join_of(within_s: float, delays_s: tuple[int, int] = (0, 0), how: How = "inner") -> WindowJoin:
    """A join of the two inputs."""
    return WindowJoin(
        f"{round(within_s * US)} microseconds",
        left_time="ts",
        right_time="at",
        left_delay=f"{delays_s[0]} seconds",
        right_delay=f"{delays_s[1]} seconds",
        how=how,
    )


def harness_of(join: WindowJoin, checks: int | None = None) -> OperatorHarness:
    """A harness around the join."""
    return OperatorHarness(join, key="k", schema=SCHEMA, checks=checks)


@given(
    EPOCHS,
    st.sampled_from([0.0, 0.0005, 1.0, 10.0, 60.0]),
    st.tuples(st.integers(0, 30), st.integers(0, 30)),
    st.sampled_from([None, 0, 2]),
    st.sampled_from(HOWS),
    st.data(),
)
@settings(max_examples=examples(50))
def test_the_join_equals_a_double_loop(
    epochs: list[list[Row]], within: float, delays: tuple[int, int], checks: int | None, how: How, data: st.DataObject
) -> None:
    """The same pairs in the same order; what is forgotten is not missed; a crash is not noticed."""
    naive = NaiveJoin(within, delays, how)
    harness = harness_of(join_of(within, delays, how), checks)
    for rows in [*epochs, [left("z", 200), right("z", 200)], [], [left("z", 500), right("z", 500)], []]:
        start = len(harness.results())
        harness.send(batch_of(rows), cuts=data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
        found = results_of(harness, start)
        pairs = [row for row in found if row["left"] and row["right"]]
        assert pairs + sorted((row for row in found if row not in pairs), key=repr) == naive.epoch(rows)
        if data.draw(st.booleans()):
            harness.crash_and_recover()


@given(EPOCHS, st.integers())
@settings(max_examples=examples(15, long=500))
def test_results_do_not_depend_on_batches(epochs: list[list[Row]], seed: int) -> None:
    """Pairs within a batch and across batches are found alike."""
    batches: list[Any] = [batch_of(rows).to_pylist() for rows in epochs]
    check_any_batches(lambda: harness_of(join_of(30)), batches, random.Random(seed))


def test_rows_wait_as_long_as_they_can_match() -> None:
    """A row is forgotten when the watermark, the slower input's, is `within` past it; not earlier."""
    harness = harness_of(join_of(10))
    harness.send(batch_of([left("x", 100), right("x", 200)]))
    assert len(harness.state()) == 2
    harness.send(batch_of([left("x", 109)]))  # the left input is at 109 s: nothing moves before the next epoch
    harness.send(batch_of([]))
    assert len(harness.state()) == 3
    harness.send(batch_of([left("x", 110)]))
    harness.send(batch_of([]))
    assert [row["left.ts"].second for row in harness.state() if row["side"] == 0] == [49, 50]


@pytest.mark.parametrize("how", ["left", "right"])
@pytest.mark.parametrize("earlier_s", [5, 10])
def test_partners_wait_for_an_outer_rows_question(how: How, earlier_s: int) -> None:
    """A partner that could match nothing new any more is still there when the outer row asks whether it had one."""
    outer, inner = (left, right) if how == "left" else (right, left)
    harness = harness_of(join_of(10, how=how))
    harness.send(batch_of([inner("x", 100 - earlier_s), outer("x", 100), outer("y", 100)]))
    for second in range(101, 130):
        harness.advance_watermark(second * 1000)
    rows = results_of(harness, 0)
    assert [(row["k"], row["left"] is None, row["right"] is None) for row in rows] == [
        ("x", False, False),
        ("y", how == "right", how == "left"),
    ]
    assert harness.state() == []


def test_a_waiting_row_is_one_footprint() -> None:
    """Rows never change, so nothing is replayed: recovery with and without checks reads the state alone."""
    assert WindowJoin.windows_never_change
    harness = harness_of(join_of(10), checks=0)
    harness.send(batch_of([left("x", 100), left("y", 100)]))
    harness.send(batch_of([right("x", 101)]))
    harness.crash_and_recover()
    assert len(harness.send(batch_of([right("y", 101)]))) == 1


def test_what_cannot_be_joined_is_refused() -> None:
    """Missing or wrong columns by name; state that cannot be kept; a negative distance."""
    with pytest.raises(SchemaRefused, match="side, left and right; there is k"):
        OperatorHarness(join_of(1), key="k", schema=pa.schema([("k", pa.string())]))
    wrong = pa.schema([("k", pa.string()), ("side", pa.int32()), ("left", LEFT), ("right", RIGHT)])
    with pytest.raises(SchemaRefused, match="'side' is int32; it must be int8"):
        OperatorHarness(join_of(1), key="k", schema=wrong)
    with pytest.raises(SchemaRefused, match="the event time, column 'nope', is missing; there is ts, a"):
        OperatorHarness(WindowJoin("1 second", left_time="nope", right_time="at"), key="k", schema=SCHEMA)
    listed = SCHEMA.set(2, pa.field("left", pa.struct([("ts", MOMENT), ("a", pa.map_(pa.string(), pa.int8()))])))
    with pytest.raises(StateSchemaRefused, match=r"left\.a"):
        OperatorHarness(join_of(1), key="k", schema=listed)
    with pytest.raises(InvalidConfig, match="must not be negative"):
        WindowJoin("-1 second", left_time="ts", right_time="at")


def test_keys_of_one_hash_are_told_apart() -> None:
    """Rows are found by the hash of their key, and paired by the key itself; null keys meet nobody."""
    keys = pa.array([b"a", b"b", b"a", None, None], pa.binary())
    hashes, times = np.full(5, 7, np.int64), np.zeros(5, np.int64)
    later, earlier = _pairs(keys, hashes, np.array([0, 0, 1, 0, 1]), times, (0, 10))
    assert list(zip(later.tolist(), earlier.tolist(), strict=True)) == [(2, 0)]
