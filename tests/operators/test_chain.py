"""Operators behind each other: what the links give alone, each fed with the results of the one before."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from logstore.errors import InvalidConfig
from spe_adapter.operators import functions as agg
from spe_adapter.operators.aggregates import Aggregate
from spe_adapter.operators.base import Emitted, Operator, Results, Rows
from spe_adapter.operators.chain import Chain
from spe_adapter.operators.join import WindowJoin
from spe_adapter.operators.stateless import Filter, Map, Pipeline
from spe_adapter.operators.states.declared import ListState, MapState, ValueState
from spe_adapter.operators.states.operator import StatefulOperator, States
from spe_adapter.operators.states.timers import ExpiredTimers, Timers
from spe_adapter.operators.windows import Running, Tumbling
from spe_adapter.testing import OperatorHarness, check_any_batches

SCHEMA = pa.schema([("k", pa.string()), ("t", pa.timestamp("ms")), ("n", pa.int64())])


class Trail(StatefulOperator):
    """Per key the counts that came, and which there were; told after each call."""

    states = {  # noqa: RUF012  as users write it
        "calls": ValueState(pa.int64()),
        "counts": ListState(pa.int64()),
        "kinds": MapState(pa.int64(), pa.int64()),
    }

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The list as text, and how many kinds there were."""
        return pa.schema([("trail", pa.string()), ("kinds", pa.int64())])

    def handle_rows(self, rows: Rows, states: States, timers: Timers) -> Emitted:
        """Append."""
        count = rows.batch.column("n").to_numpy()
        states.counts.append(rows.window, count)
        states.kinds.put(rows.window, count, count)
        found: dict[int, list[str]] = defaultdict(list)
        told = states.counts.read()
        for owner, value in zip(told.owner.tolist(), told.values.column(0).to_pylist(), strict=True):
            found[owner].append(str(value))
        trails = [" ".join(found[owner]) for owner in range(states.count)]
        kinds = np.bincount(states.kinds.entries().owner, minlength=states.count)
        return pa.RecordBatch.from_pydict({"trail": trails, "kinds": kinds}, schema=self.output(pa.schema([])))


class Later(StatefulOperator):
    """Tells the trail again, ten milliseconds later."""

    states = {"trail": ValueState(pa.string())}  # noqa: RUF012  as users write it
    processing_time = True

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The trail."""
        return pa.schema([("trail", pa.string())])

    def handle_rows(self, rows: Rows, states: States, timers: Timers) -> Emitted:
        """Note it."""
        states.trail.set(rows.batch.column("trail"), rows.window)
        timers.register(None, timers.now_ms + 9)
        return None

    def handle_expired(self, expired: ExpiredTimers, states: States, timers: Timers) -> Emitted:
        """Tell it."""
        column = states.trail.column(expired.owner)
        return Results(pa.RecordBatch.from_arrays([column], names=["trail"]), expired.owner)


def rows_of(random: Random, base_ms: int, count: int) -> list[dict[str, Any]]:
    """Rows of few keys, around a time."""
    return [
        {"k": random.choice(["a", "b", "", None]), "t": base_ms + random.randint(0, 900), "n": random.randint(0, 3)}
        for _ in range(count)
    ]


@pytest.mark.parametrize("checks", [None, 0, 2])
@pytest.mark.parametrize("seed", range(3))
def test_a_chain_gives_what_its_links_give(seed: int, checks: int | None) -> None:
    """Three links, two of them with named states, one with timers, over crashes."""
    random = Random(seed)
    counts = Aggregate(Tumbling("100 milliseconds", time="t", delay="50 milliseconds"), n=agg.count())
    chain = OperatorHarness(Chain(counts, Trail(), Later()), key="k", schema=SCHEMA, checks=checks)
    first = OperatorHarness(counts, key="k", schema=SCHEMA)
    second = OperatorHarness(Trail(), key="k", schema=pa.schema([("k", pa.string()), ("n", pa.int64())]))
    third = OperatorHarness(Later(), key="k", schema=pa.schema([("k", pa.string()), ("trail", pa.string())]))
    told = 0
    for epoch in range(12):
        rows, now_ms = rows_of(random, epoch * 300, random.randint(0, 20)), epoch * 4
        windows = first.send(rows)
        trails = second.send([{"k": row["k"], "n": row["n"]} for row in windows])
        last = third.send([{"k": row["k"], "trail": row["trail"]} for row in trails], now_ms=now_ms)
        found = chain.send(rows, cuts=[len(rows) // 2], now_ms=now_ms)
        assert sorted(map(repr, found)) == sorted(map(repr, last))
        told += len(found)
        if random.random() < 0.5:
            chain.crash_and_recover()
    assert told > 4


def test_what_closes_by_a_watermark_is_not_late_for_the_next_link() -> None:
    """Windows of ten of the first link's windows are those of the rows themselves, each told in the same epoch."""
    random = Random(5)

    def last_us(batch: pa.RecordBatch) -> pa.Array:
        end = pc.struct_field(batch.column("window"), "end")
        return pc.subtract(end, pa.scalar(1, pa.duration("us")))

    small = Pipeline(Aggregate(Tumbling("100 milliseconds", time="t"), n=agg.sum("n")), Map(at=last_us, n="n"))
    large = Aggregate(Tumbling("1 second", time="at"), n=agg.sum("n"))
    chain = OperatorHarness(Chain(small, large), key="k", schema=SCHEMA)
    alone = OperatorHarness(Aggregate(Tumbling("1 second", time="t"), n=agg.sum("n")), key="k", schema=SCHEMA)
    for epoch in range(15):
        rows = rows_of(random, epoch * 1000, 12)
        alone.send(rows)
        chain.send(rows)
        chain.crash_and_recover()
        assert chain.late == 0

    def sums(harness: OperatorHarness) -> dict[Any, int]:
        return {(row["k"], row["window"]["end"].timestamp()): row["n"] for row in harness.results()}

    assert len(sums(alone)) > 8
    assert sums(alone) == sums(chain)


def test_how_rows_are_cut_does_not_matter() -> None:
    """State and results are the same for whole, single and random batches."""
    random = Random(9)
    epochs = [rows_of(random, epoch * 300, 9) for epoch in range(4)]
    counts = Aggregate(Tumbling("100 milliseconds", time="t", delay="50 milliseconds"), n=agg.count())
    check_any_batches(lambda: OperatorHarness(Chain(counts, Trail()), key="k", schema=SCHEMA), epochs, random)


@pytest.mark.parametrize(
    "second",
    [
        WindowJoin("1 second", left_time="t", right_time="t"),
        Pipeline(Filter(pc.field("n") > 0), Aggregate(Running(), n=agg.count())),
    ],
)
def test_what_cannot_come_behind_another_is_refused(second: Operator) -> None:
    """A join, and steps in front; and a chain of one."""
    with pytest.raises(InvalidConfig, match="cannot come after"):
        Chain(Trail(), second)
    with pytest.raises(InvalidConfig, match="2 to 16"):
        Chain(Trail())
