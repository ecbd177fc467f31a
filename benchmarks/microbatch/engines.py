"""The windowed average, once per engine: average price per key and tumbling event-time window of an hour, one result
when the window closes (append mode), with the watermark an hour behind.

Invariants:
* All engines get the same frame and say the same; each is written as its guide would have it, nothing left out.
* Spark's engines end in its `noop` sink, the cheapest there is, and results are observed on the way there. Cairn's
  results are durable records.
* All of Spark's engines use the RocksDB store; the Python ones with the changelog, which suits them better.
"""

# Spark prescribes its processors' names.
# ruff: noqa: N802, N803

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import pandas as pd
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)

from benchmarks.microbatch.data import DELAY_MS, DIGEST_SQL, WINDOW_MS, Digest
from spe_adapter.microbatch.query import StatefulQuery, stateful
from spe_adapter.operators.aggregates import Aggregate
from spe_adapter.operators.functions import avg
from spe_adapter.operators.windows import Tumbling

PARTITIONS = 2
SCHEMA = "key bigint, price int, time timestamp"
STATE_SCHEMA = "total bigint, number bigint"
RESULT_SCHEMA = "key bigint, start_ms bigint, average double"
OBSERVED = "results"
DELAY = f"{DELAY_MS} milliseconds"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
CHANGELOG_SETTING = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"


class Place(NamedTuple):
    """Where a query works."""

    source: Path
    checkpoint: Path
    address: str
    """Of the sidecar; Spark's own engines do without."""
    topic: str
    memory: str
    """Cairn's state on this host."""
    options: Mapping[str, str] = MappingProxyType({})
    """Further options of Cairn's query."""


def read(spark: SparkSession, place: Place) -> DataFrame:
    """The source that all share: a directory of Parquet files, one file an epoch."""
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(place.source))


def _keyed(frame: DataFrame) -> Any:
    start_ms = sf.expr(f"unix_millis(time) div {WINDOW_MS} * {WINDOW_MS}")
    return frame.withColumn("start_ms", start_ms).groupBy("key", "start_ms")


# ---- built-in aggregation


def builtin(frame: DataFrame) -> DataFrame:
    """Spark's own windows and average."""
    grouped = frame.groupBy("key", sf.window("time", f"{WINDOW_MS} milliseconds")).agg(sf.avg("price").alias("average"))
    return grouped.select("key", sf.unix_millis(sf.col("window.start")).alias("start_ms"), "average")


# ---- transformWithState


class RowAverage(StatefulProcessor):
    """A window per grouping key (key, start): its state is a sum and a count, its timer the window's end."""

    _state: ValueState
    _handle: StatefulProcessorHandle

    def init(self, handle: StatefulProcessorHandle) -> None:
        """One value per window."""
        self._handle = handle
        self._state = handle.getValueState("state", STATE_SCHEMA)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:
        """Add the rows to the window."""
        total, number = self._before(key)
        for row in rows:
            total += row.price
            number += 1
        self._state.update((total, number))
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Any]:
        """The window closes."""
        total, number = self._state.get() or (0, 0)
        self._state.clear()
        yield Row(key=key[0], start_ms=key[1], average=total / number)

    def _before(self, key: Any) -> tuple[int, int]:
        held = self._state.get() if self._state.exists() else None
        if held is not None:
            return int(held[0]), int(held[1])
        self._handle.registerTimer(int(key[1]) + WINDOW_MS)
        return 0, 0


class PandasAverage(RowAverage):
    """The same with frames of pandas."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:
        """Add the rows to the window."""
        total, number = self._before(key)
        for frame in rows:
            total += int(frame["price"].sum())
            number += len(frame)
        self._state.update((total, number))
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Any]:
        """The window closes."""
        total, number = self._state.get() or (0, 0)
        self._state.clear()
        yield pd.DataFrame({"key": [key[0]], "start_ms": [key[1]], "average": [total / number]})


def transform_row(frame: DataFrame) -> DataFrame:
    """transformWithState."""
    return _keyed(frame).transformWithState(RowAverage(), RESULT_SCHEMA, "Append", "EventTime")


def transform_pandas(frame: DataFrame) -> DataFrame:
    """transformWithStateInPandas."""
    return _keyed(frame).transformWithStateInPandas(PandasAverage(), RESULT_SCHEMA, "Append", "EventTime")


# ---- applyInPandasWithState


def _apply(key: Any, frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    if state.hasTimedOut:
        total, number = state.get
        state.remove()
        yield pd.DataFrame({"key": [key[0]], "start_ms": [key[1]], "average": [total / number]})
        return
    total, number = state.get if state.exists else (0, 0)
    for frame in frames:
        total += int(frame["price"].sum())
        number += len(frame)
    state.update((total, number))
    state.setTimeoutTimestamp(int(key[1]) + WINDOW_MS)


def apply_pandas(frame: DataFrame) -> DataFrame:
    """applyInPandasWithState."""
    return _keyed(frame).applyInPandasWithState(_apply, RESULT_SCHEMA, STATE_SCHEMA, "append", "EventTimeTimeout")


# ---- all of them


class Engine(NamedTuple):
    """One way to keep the state."""

    name: str
    title: str
    kind: Literal["built in", "Python", "Cairn"]
    plan: Callable[[DataFrame], DataFrame] | None
    """Frame in, results out; None: the query ends in Cairn's own sink."""
    changelog: bool = True


CAIRN = "cairn"
ROCKSDB_PLAIN = "rocksdb"
ROCKSDB_CHANGELOG = "rocksdb_changelog"
TRANSFORM_ROW = "transform_row"
TRANSFORM_PANDAS = "transform_pandas"
APPLY_PANDAS = "apply_pandas"
ENGINES = {
    engine.name: engine
    for engine in (
        Engine(CAIRN, "Cairn: stateful", "Cairn", None),
        Engine(ROCKSDB_PLAIN, "built-in aggregation, RocksDB", "built in", builtin, changelog=False),
        Engine(ROCKSDB_CHANGELOG, "built-in aggregation, RocksDB with changelog", "built in", builtin),
        Engine(TRANSFORM_ROW, "transformWithState (Row)", "Python", transform_row),
        Engine(TRANSFORM_PANDAS, "transformWithStateInPandas", "Python", transform_pandas),
        Engine(APPLY_PANDAS, "applyInPandasWithState", "Python", apply_pandas),
    )
}


def start(spark: SparkSession, engine: Engine, place: Place) -> StreamingQuery | StatefulQuery:
    """Start an engine's query, or go on where its checkpoint says."""
    frame = read(spark, place)
    if engine.plan is None:
        return start_cairn(frame, place)
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    spark.conf.set(CHANGELOG_SETTING, str(engine.changelog).lower())
    names = zip(Digest._fields, DIGEST_SQL, strict=True)
    results = engine.plan(frame.withWatermark("time", DELAY)).observe(
        OBSERVED, *(sf.expr(sql).alias(name) for name, sql in names)
    )
    return (
        results.writeStream.format("noop")
        .outputMode("append")
        .option("checkpointLocation", str(place.checkpoint))
        .queryName(place.topic)
        .start()
    )


def start_cairn(frame: DataFrame, place: Place) -> StatefulQuery:
    """Cairn's stateful operator; results become records of `place.topic`."""
    length, delay = (f"{each} milliseconds" for each in (WINDOW_MS, DELAY_MS))
    operator = Aggregate(Tumbling(length, time="time", delay=delay), average=avg("price"))
    writer = (
        stateful(frame, key="key", operator=operator, partitions=PARTITIONS)
        .option("kafka.bootstrap.servers", place.address)
        .option("stateDirectory", place.memory)
        .queryName(place.topic)
    )
    for name, value in place.options.items():
        writer = writer.option(name, value)
    return writer.start(topic=place.topic, checkpointLocation=str(place.checkpoint))
