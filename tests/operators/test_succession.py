"""An operator goes on with the state of the one before it, through crashes, or says why it cannot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from logstore.errors import InvalidConfig
from spe_adapter.operators import functions as agg
from spe_adapter.operators.aggregates import Aggregate
from spe_adapter.operators.base import Emitted, Operator, Rows, State
from spe_adapter.operators.chain import Chain
from spe_adapter.operators.errors import OperatorChanged
from spe_adapter.operators.stateless import Filter, Pipeline
from spe_adapter.operators.succession import split_outside
from spe_adapter.operators.windows import Counting, Running, Session, Tumbling
from spe_adapter.state.errors import StateSchemaChanged
from spe_adapter.testing.harness import OperatorHarness

SCHEMA = pa.schema([("key", pa.string()), ("ts", pa.timestamp("us", tz="UTC")), ("x", pa.int64()), ("y", pa.float64())])
MINUTE_US = 60_000_000


class Sums(Operator):
    """Sums of `x`, under a name and a type that a test chooses."""

    def __init__(self, column: str, kind: pa.DataType) -> None:
        self._column = column
        self._kind = kind

    def state_schema(self, schema: pa.Schema) -> pa.Schema:
        """One column."""
        return pa.schema([(self._column, self._kind)])

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The sum."""
        return pa.schema([("sum", pa.float64())])

    def process(self, rows: Rows, state: State) -> Emitted:
        """Add up."""
        x = rows.batch.column("x").to_numpy()
        total = state.get(self._column) + np.bincount(rows.window, x, state.size)
        state.set(self._column, total)
        return pa.RecordBatch.from_pydict({"sum": total.astype(np.float64)})


class Renamed(Sums):
    """Sums under another class name, with a second column."""

    state: Mapping[str, pa.DataType] = {}

    def state_schema(self, schema: pa.Schema) -> pa.Schema:
        """Two columns."""
        return pa.schema([("seen", pa.int32()), *super().state_schema(schema)])


def row(key: str, x: int, *, minute: float = 0, y: float = 0.0) -> dict[str, Any]:
    """An input row."""
    return {"key": key, "ts": int(minute * MINUTE_US), "x": x, "y": y}


def harness_of(operator: Operator) -> OperatorHarness:
    """A harness with the schema of these tests."""
    return OperatorHarness(operator, key="key", schema=SCHEMA)


def test_a_column_is_renamed_and_widened() -> None:
    """The sums go on in the new column; a crash before or after the change recovers the same."""
    harness = harness_of(Sums("total", pa.int32()))
    harness.send([row("a", 1), row("b", 2)])
    harness.send([row("b", 3)])
    harness.crash_and_recover()
    harness.evolve(Sums("sum", pa.float64()).evolving(renamed={"total": "sum"}))
    assert harness.state() == [{"key": "a", "sum": 1.0}, {"key": "b", "sum": 5.0}]
    harness.crash_and_recover()
    assert harness.send([row("a", 10)]) == [{"key": "a", "sum": 11.0}]
    harness.crash_and_recover()
    harness.evolve(
        Renamed("sum", pa.float64()).evolving(
            renamed={"total": "sum"}, defaults={"seen": 7}, formerly=("Sums", "Totals")
        )
    )
    harness.crash_and_recover()
    assert harness.state() == [{"key": "a", "seen": 7, "sum": 11.0}, {"key": "b", "seen": 7, "sum": 5.0}]


def test_what_does_not_follow_leaves_the_harness_as_it_was() -> None:
    """Another class, and columns that were not declared, are refused; the operator before them goes on."""
    harness = harness_of(Sums("total", pa.int64()))
    harness.send([row("a", 1)])
    with pytest.raises(OperatorChanged, match="Renamed: it was Sums, which is not declared"):
        harness.evolve(Renamed("total", pa.int64()))
    with pytest.raises(StateSchemaChanged, match=r"'total' \(int64\) is gone"):
        harness.evolve(Sums("sum", pa.int64()))
    with pytest.raises(StateSchemaChanged, match="'total' was int64 and is double now"):
        harness.evolve(Sums("total", pa.float64()))
    assert harness.send([row("a", 2)]) == [{"key": "a", "sum": 3.0}]
    harness.crash_and_recover()
    checked = OperatorHarness(Sums("total", pa.int64()), key="key", schema=SCHEMA, checks=2)
    with pytest.raises(InvalidConfig, match="continuous runner"):
        checked.evolve(Sums("total", pa.int64()))


def test_an_aggregate_is_added() -> None:
    """In windows that are open it aggregates the rows that come from then on; windows that open later have it whole."""
    window = Tumbling("1 minute", time="ts")
    harness = harness_of(Aggregate(window, n=agg.count(), mean=agg.avg("y")))
    harness.send([row("a", 1, y=1.0), row("b", 5, y=2.0)])
    grown = Aggregate(window, most=agg.max("x"), n=agg.count(), mean=agg.avg("y"), spread=agg.stddev("y"))
    harness.evolve(grown)
    harness.crash_and_recover()
    harness.send([row("a", 7, minute=0.5, y=3.0), row("a", 9, minute=1.5, y=4.0)])
    harness.crash_and_recover()
    results = {(found["key"], found["window"]["start"].minute): found for found in harness.advance_watermark(180_000)}
    assert {key: (found["n"], found["mean"], found["most"]) for key, found in results.items()} == {
        ("a", 0): (2, 2.0, 7),
        ("b", 0): (1, 2.0, None),
        ("a", 1): (1, 4.0, 9),
    }


def test_sessions_that_are_open_get_an_aggregate() -> None:
    """Sessions that the former operator left begin it empty, those of other keys and later ones have it whole."""
    window = Session("2 minutes", time="ts", delay="10 minutes")
    harness = harness_of(Aggregate(window, n=agg.count()))
    harness.send([row("a", 1), row("a", 2, minute=5), row("b", 3)])
    harness.evolve(
        Aggregate(
            window,
            n=agg.count(),
            total=agg.sum("x"),
            first=agg.first("x"),
            every=agg.collect_list("x"),
            users=agg.approx_count_distinct("x"),
        )
    )
    harness.crash_and_recover()
    harness.send([row("a", 10, minute=5.5), row("a", 11, minute=9), row("c", 12, minute=9)])
    harness.crash_and_recover()
    harness.send([row("a", 13, minute=1)])
    harness.crash_and_recover()
    found = harness.advance_watermark(60 * 60_000)
    told = {(one["key"], one["session_window"]["start"].minute): one for one in found}
    names = ("n", "total", "first", "every", "users")
    assert {at: tuple(one[name] for name in names) for at, one in told.items()} == {
        ("a", 0): (2, 13, 13, [13], 1),
        ("b", 0): (1, None, None, [], 0),
        ("a", 5): (2, 10, 10, [10], 1),
        ("a", 9): (1, 11, 11, [11], 1),
        ("c", 9): (1, 12, 12, [12], 1),
    }


@pytest.mark.parametrize("window", [Running(), Counting(3), Counting(4, 2), Tumbling("1 minute", time="ts")])
def test_an_aggregate_is_renamed_and_another_dropped(window: Any) -> None:
    """All columns of an aggregate's state go with it; those of a dropped one are gone. Declarations may stay."""
    harness = harness_of(Aggregate(window, mean=agg.avg("y"), n=agg.count(), last=agg.last("x")))
    rows = [row("a", at, y=float(at)) for at in range(5)]
    harness.send(rows)
    plain = harness_of(Aggregate(window, average=agg.avg("y"), n=agg.count()))
    plain.send(rows)
    changed = Aggregate(window, average=agg.avg("y"), n=agg.count())
    changed = changed.evolving(renamed={"mean": "average"}, dropped=["last"])
    for _ in range(2):
        harness.evolve(Pipeline(Filter(pc.field("x") >= 0), changed))
        harness.crash_and_recover()
        assert harness.state() == plain.state()


def test_the_links_of_a_chain_change_in_their_places() -> None:
    """Each link declares its own changes, in its own names; the others go on."""
    minutes = Tumbling("1 minute", time="ts")
    harness = harness_of(Chain(Aggregate(minutes, x=agg.sum("x"), n=agg.count()), Sums("total", pa.int32())))
    harness.send([row("a", 1), row("b", 5), row("a", 2, minute=2)])
    harness.send([row("a", 3, minute=2.5)])
    first = Aggregate(minutes, x=agg.sum("x"), rows=agg.count(), most=agg.max("x"))
    last = Renamed("sum", pa.float64())
    changed = Chain(
        first.evolving(renamed={"n": "rows"}),
        last.evolving(renamed={"total": "sum"}, defaults={"seen": 4}, formerly=["Sums"]),
    )
    with pytest.raises(OperatorChanged, match="link 2, Renamed: it was Sums"):
        harness.evolve(Chain(first.evolving(renamed={"n": "rows"}), last))
    with pytest.raises(OperatorChanged, match=r"link 1, Aggregate: aggregate 'n' .* is gone"):
        harness.evolve(Chain(first, Sums("total", pa.int64())))
    with pytest.raises(OperatorChanged, match="a Chain follows one of as many links"):
        harness.evolve(Chain(*changed.links, Sums("total", pa.int64())))
    harness.evolve(changed)
    harness.crash_and_recover()
    assert harness.advance_watermark(180_000) == [{"key": "a", "sum": 6.0}]
    harness.crash_and_recover()
    assert {(one["key"], one["1:sum"], one["1:seen"]) for one in harness.state()} == {("a", 6.0, 4), ("b", 5.0, 4)}


def test_what_an_aggregate_refuses() -> None:
    """Other windows, another function under a name, and an aggregate that is gone."""
    window = Tumbling("1 minute", time="ts")
    harness = harness_of(Aggregate(window, n=agg.count(), most=agg.max("x")))
    harness.send([row("a", 1)])
    for other, said in (
        (Aggregate(Tumbling("2 minutes", time="ts"), n=agg.count(), most=agg.max("x")), "with other windows"),
        (Aggregate(window, n=agg.count(), most=agg.max("y")), "aggregate 'most' was Extreme.* and is"),
        (Aggregate(window, n=agg.count()), r"aggregate 'most' \(.*\) is gone: declare"),
        (
            Aggregate(window, n=agg.count(), most=agg.max("x"), y=agg.sum("y")).evolving(defaults={"y": 0}),
            "defaults for y: an aggregate that is added begins empty",
        ),
        (Sums("n", pa.int64()), "it was Aggregate"),
    ):
        with pytest.raises(OperatorChanged, match=said):
            harness.evolve(other)
    harness.evolve(Aggregate(window, n=agg.count()).evolving(dropped=["most"]))


def test_texts_are_cut_outside_of_brackets_and_quotes() -> None:
    """Names of columns may have any letters."""
    assert split_outside("A(x > y, n) > B > C", " > ") == ["A(x > y, n)", "B", "C"]
    assert split_outside("a=F(x, y), b=G('p, q)', [1, 2]), c=1") == ["a=F(x, y)", "b=G('p, q)', [1, 2])", "c=1"]
    assert split_outside("") == []
