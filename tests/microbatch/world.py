"""A query's surroundings in tests: its input topic, its output topic, checkpoint and state directory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from spe_adapter.microbatch.query import Stateful, StatefulQuery, stateful
from spe_adapter.operators.base import Operator
from tests.microbatch.operators import Row, Visits
from tests.support.limits import PATIENCE_S
from tests.support.spark_session import read_stream
from tests.support.streams import create_topic, produce, read_all


class World:
    """See the module. The input has one partition, so that its order is that of the rows."""

    def __init__(
        self, spark: SparkSession | None, address: str, name: str, directory: Path, *, create: bool = True
    ) -> None:
        self._spark = spark
        self.address = address
        self.source = f"{name}-in"
        self.topic = f"{name}-out"
        self.checkpoint = directory / "checkpoint"
        self.state = directory / "state"
        if create:
            create_topic(address, self.source)

    @property
    def spark(self) -> SparkSession:
        """The session; tests whose queries run in other processes have none."""
        assert self._spark is not None
        return self._spark

    def feed(self, rows: Iterable[Row]) -> None:
        """Rows into the input topic."""
        produce(self.address, self.source, [row.encoded() for row in rows])

    def frame(self, rows_per_batch: int | None = None) -> DataFrame:
        """The input: key, ts, amount."""
        options = {} if rows_per_batch is None else {"maxOffsetsPerTrigger": str(rows_per_batch)}
        return parsed(read_stream(self.spark, self.address, subscribe=self.source, **options))

    def query(
        self, operator: Operator | None = None, *, rows_per_batch: int | None = None, partitions: int | None = 2
    ) -> Stateful:
        """A query over the input, with this world's server and state directory."""
        return self.over(self.frame(rows_per_batch), operator or Visits(), partitions=partitions)

    def over(
        self, frame: DataFrame, operator: Operator, *, partitions: int | None = 2, key: str | Sequence[str] = "key"
    ) -> Stateful:
        """A query over a frame."""
        made = stateful(frame, key=key, operator=operator, partitions=partitions)
        made.option("kafka.bootstrap.servers", self.address)
        made.option("kafka.delivery.timeout.ms", PATIENCE_S * 1000)
        return made.option("stateDirectory", self.state)

    def start(self, query: Stateful) -> StatefulQuery:
        """Start it on this world's checkpoint and topic."""
        return query.start(topic=self.topic, checkpointLocation=str(self.checkpoint))

    def run(self, query: Stateful) -> StatefulQuery:
        """Run it over the input that there is; raises what it fails with."""
        return ended(self.start(query.trigger(availableNow=True)))

    def told(self) -> list[tuple[str, int, int, bool]]:
        """What Visits has told, by stream and offset."""
        return [(value["key"], value["n"], value["total"], value["last"]) for value in self.values()]

    def values(self) -> list[dict[str, Any]]:
        """All results."""
        return [json.loads(text) for text in self.texts()]

    def texts(self) -> list[str]:
        """All results as they are."""
        return [(row.value or b"null").decode() for row in read_all(self.address, self.topic)]


def parsed(frame: DataFrame) -> DataFrame:
    """Rows out of records."""
    fields = sf.from_json(sf.col("value").cast("string"), "key string, ms bigint, amount bigint")
    return frame.select(fields.alias("row")).select(
        sf.col("row.key").alias("key"), sf.timestamp_millis(sf.col("row.ms")).alias("ts"), sf.col("row.amount")
    )


def ended(query: StatefulQuery) -> StatefulQuery:
    """Wait for a query that ends by itself."""
    try:
        assert query.awaitTermination(PATIENCE_S), f"the query still runs after {PATIENCE_S} s: {query.status}"
    finally:
        query.stop()
    return query


def by_key(told: Sequence[tuple[str, int, int, bool]]) -> dict[str, list[tuple[int, int, bool]]]:
    """What was told of each key, in order: streams keep the order of a key."""
    found: dict[str, list[tuple[int, int, bool]]] = {}
    for key, n, total, last in told:
        found.setdefault(key, []).append((n, total, last))
    return found
