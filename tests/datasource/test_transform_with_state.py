"""The same states and timers in Spark's own transformWithState and in ours: the same results, step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import Row as SparkRow
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from spe_adapter.operators.base import Emitted, Results, Rows
from spe_adapter.operators.states.declared import ListState, MapState, ValueState
from spe_adapter.operators.states.operator import StatefulOperator, States
from spe_adapter.operators.states.timers import ExpiredTimers, Timers
from tests.microbatch.operators import Row, rows_of
from tests.microbatch.world import World

pytestmark = [pytest.mark.spark]

OUTPUT = pa.schema([("what", pa.string()), ("total", pa.int64()), ("items", pa.int64()), ("kinds", pa.int64())])
COLUMNS = "key string, what string, total bigint, items bigint, kinds bigint"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PAUSE_MS = 3000


class Purchases(StatefulOperator):
    """Per row the sum so far; behind a pause the sum and how many amounts there were, then the key is forgotten."""

    states = {  # noqa: RUF012  as users write it
        "total": ValueState(pa.int64()),
        "items": ListState(pa.int64()),
        "kinds": MapState(pa.int64(), pa.int64()),
    }
    event_time = "ts"
    delay_ms = 2000

    def output(self, schema: pa.Schema) -> pa.Schema:
        """As the reference."""
        return OUTPUT

    def handle_initial(self, rows: Rows, states: States, timers: Timers) -> None:
        """The sum at the start."""
        states.total.set(rows.batch.column("total"), rows.window)

    def handle_rows(self, rows: Rows, states: States, timers: Timers) -> Emitted:
        """Sum up, and put off the end."""
        amount, owner = rows.batch.column("amount").to_numpy(), rows.window
        before = states.total.get()
        order = np.argsort(owner, kind="stable")
        sums = np.cumsum(amount[order])
        first = np.searchsorted(owner[order], np.arange(states.count))
        running = np.empty(len(owner), np.int64)
        running[order] = sums - (sums[first] - amount[order][first])[owner[order]] + before[owner[order]]
        np.add.at(before, owner, amount)
        states.total.set(before)
        states.items.append(owner, amount)
        pairs, counts = np.unique(np.stack((owner, amount)), axis=1, return_counts=True)
        had = states.kinds.get(pairs[0], pairs[1]).values.column(0).fill_null(0).to_numpy()
        states.kinds.put(pairs[0], pairs[1], had + counts)
        newest = np.zeros(states.count, np.int64)
        assert rows.times_ms is not None
        np.maximum.at(newest, owner, rows.times_ms)
        last = timers.registered()
        timers.delete(last.owner, last.at_ms)
        timers.register(None, np.maximum(newest, timers.watermark_ms) + PAUSE_MS)
        nothing = np.zeros(len(owner), np.int64)
        return Results(
            pa.RecordBatch.from_arrays(
                [pa.array(["row"] * len(owner)), pa.array(running), pa.array(nothing), pa.array(nothing)], schema=OUTPUT
            ),
            owner,
        )

    def handle_expired(self, expired: ExpiredTimers, states: States, timers: Timers) -> Emitted:
        """What there was."""
        items = np.bincount(states.items.read().owner, minlength=states.count)
        kinds = np.bincount(states.kinds.entries().owner, minlength=states.count)
        what = pa.array([f"end {at}" for at in expired.at_ms.tolist()])
        total = states.total.column(expired.owner)
        for name in self.states:
            states[name].clear()
        return Results(
            pa.RecordBatch.from_arrays(
                [what, total, pa.array(items[expired.owner]), pa.array(kinds[expired.owner])], schema=OUTPUT
            ),
            expired.owner,
        )


class Reference(StatefulProcessor):
    """The same as a processor of Spark's, key by key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """The states."""
        self._handle = handle
        self._total = handle.getValueState("total", "total bigint")
        self._items = handle.getListState("items", "amount bigint")
        self._kinds = handle.getMapState("kinds", "amount bigint", "n bigint")

    @staticmethod
    def _first(row: tuple[Any, ...] | None) -> Any:
        assert row is not None
        return row[0]

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:  # noqa: N802, N803
        """The sum at the start."""
        self._total.update((initialState.total,))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[SparkRow]:  # noqa: N802, N803
        """Sum up, and put off the end."""
        total = self._first(self._total.get()) if self._total.exists() else 0
        newest, told = 0, []
        for row in rows:
            total += row.amount
            self._items.appendValue((row.amount,))
            had = self._first(self._kinds.getValue((row.amount,))) if self._kinds.containsKey((row.amount,)) else 0
            self._kinds.updateValue((row.amount,), (had + 1,))
            newest = max(newest, row.ms)
            told.append(SparkRow(key=key[0], what="row", total=total, items=0, kinds=0))
        self._total.update((total,))
        for at_ms in list(self._handle.listTimers()):
            self._handle.deleteTimer(at_ms)
        self._handle.registerTimer(max(newest, timerValues.getCurrentWatermarkInMs()) + PAUSE_MS)
        yield from told

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[SparkRow]:  # noqa: N802, N803
        """What there was."""
        at_ms = expiredTimerInfo.getExpiryTimeInMs()
        items, kinds = len(list(self._items.get())), len(list(self._kinds.keys()))
        total = self._first(self._total.get()) if self._total.exists() else None
        for state in (self._total, self._items, self._kinds):
            state.clear()
        yield SparkRow(key=key[0], what=f"end {at_ms}", total=total, items=items, kinds=kinds)

    def close(self) -> None:
        """Nothing."""


class Told:
    """Spark's own query over the same input."""

    def __init__(self, frame: DataFrame, initial: DataFrame, checkpoint: Path) -> None:
        spark = frame.sparkSession
        spark.conf.set(PROVIDER, ROCKSDB)
        with_ms = frame.withWatermark("ts", "2 seconds").selectExpr("key", "ts", "amount", "unix_millis(ts) AS ms")
        made = with_ms.groupBy("key").transformWithState(
            statefulProcessor=Reference(),
            outputStructType=COLUMNS,
            outputMode="Append",
            timeMode="EventTime",
            initialState=initial.groupBy("key"),
        )
        self.results: Counter[tuple[Any, ...]] = Counter()
        try:
            self.query: StreamingQuery = (
                made.writeStream.outputMode("append")
                .option("checkpointLocation", str(checkpoint))
                .foreachBatch(self._take)
                .start()
            )
        finally:
            spark.conf.unset(PROVIDER)

    def _take(self, frame: DataFrame, batch: int) -> None:
        self.results.update(tuple(row) for row in frame.collect())


def test_states_and_timers_are_those_of_spark(world: World, tmp_path: Path) -> None:
    """Values, lists, maps, event-time timers that are put off and fire, late rows and an initial state: after each step
    both have told the same.
    """
    frame = world.frame()
    initial = world.spark.createDataFrame([("k0", 1000), ("k1", -5), ("elsewhere", 7)], "key string, total bigint")
    reference = Told(frame, initial, tmp_path / "reference")
    query = world.start(world.over(frame, Purchases()).initialState(initial))
    try:
        made = rows_of(6, 20, 5, seed=11)
        epochs = [one + other for one, other in zip(made[::2], made[1::2], strict=True)]
        last = max(row.ms for rows in epochs for row in rows)
        epochs += [[Row("k0", last + 1000, 1)], [Row("k1", last + 40_000, 1)], [Row("k2", 1000, 9)]]
        # The watermark reaches a timer's time, and then passes it.
        epochs += [[Row("k3", last + 50_000, 1)], [Row("k4", last + 55_000, 1)], [Row("k4", last + 55_001, 1)]]
        for rows in epochs:
            world.feed(rows)
            reference.query.processAllAvailable()
            query.processAllAvailable()
            ours = Counter(tuple(value[name] for name in ("key", *OUTPUT.names)) for value in world.values())
            assert ours == reference.results
        ends = [what for _, what, *_ in reference.results if what != "row"]
        assert len(ends) > 3
    finally:
        query.stop()
        reference.query.stop()
