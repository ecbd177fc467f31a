"""The Spark side of the demonstration, run as a process of its own so that it can be killed: two queries.

One averages prices per item with Spark's own aggregation and writes them through the exactly-once sink; the other adds
up what each customer spends, as a stateful query whose state is checkpointed in its own output topic, and page by page
beside it.

Prints one JSON line for each finished micro-batch. Ends when its standard input closes, so it never outlives who
started it.
"""

import argparse
import json
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from spe_adapter import Aggregate, StatefulQuery, Tumbling, agg, stateful
from spe_adapter.demo.purchases import CUSTOMER_WINDOW_MS, WATERMARK_MS, WINDOW_MS

WATERMARK: Final = f"{WATERMARK_MS} milliseconds"
CHECKPOINTS_EVERY: Final = "2s"
POLL_S: Final = 0.2
MAX_STARTS: Final = 5
_SPARK_GAVE_UP: Final = "Python worker failed to connect back"


def session(heap: str) -> SparkSession:
    """A small local Spark."""
    return (
        SparkSession.builder.master("local[2]")
        .appName("cairn-demo")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", heap)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.metricsEnabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )


def parsed(purchases: DataFrame) -> DataFrame:
    """The purchases' fields as columns."""
    text = sf.col("value").cast("string")
    return purchases.select(
        sf.substring(text, 1, 6).cast("int").alias("item"),
        sf.substring(text, 8, 6).cast("long").alias("price"),
        sf.timestamp_millis(sf.substring(text, 15, 13).cast("long")).alias("time"),
        sf.substring(text, 29, 6).cast("int").cast("string").alias("customer"),
    )


def averages_of(purchases: DataFrame) -> DataFrame:
    """Average price per item and window, as records: key "item", value "window start in ms,item,count,average"."""
    grouped = (
        parsed(purchases)
        .withWatermark("time", WATERMARK)
        .groupBy(sf.window("time", f"{WINDOW_MS} milliseconds"), "item")
        .agg(sf.count("*").alias("count"), sf.avg("price").alias("average"))
    )
    start_ms = sf.unix_millis(sf.col("window.start")).cast("string")
    fields = (start_ms, sf.col("item").cast("string"), sf.col("count").cast("string"), sf.col("average").cast("string"))
    return grouped.select(sf.col("item").cast("string").alias("key"), sf.concat_ws(",", *fields).alias("value"))


def read(spark: SparkSession, options: argparse.Namespace) -> DataFrame:
    """The purchases as they come."""
    return (
        spark.readStream.format("cairn")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("subscribe", options.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", options.batch)
        .load()
    )


def start_averages(spark: SparkSession, options: argparse.Namespace) -> StreamingQuery:
    """Start the query of items, or go on where its checkpoint says."""
    return (
        averages_of(read(spark, options))
        .writeStream.format("cairn")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("topic", options.averages)
        .option("checkpointLocation", f"{options.checkpoints}/averages")
        .outputMode("append")
        .start()
    )


def start_spendings(spark: SparkSession, options: argparse.Namespace) -> StatefulQuery:
    """Start the query of customers, or go on where its log says."""
    windows = Tumbling(f"{CUSTOMER_WINDOW_MS} milliseconds", time="time", delay=WATERMARK)
    spendings = Aggregate(windows, purchases=agg.count(), spent=agg.sum("price"))
    return (
        stateful(parsed(read(spark, options)), key="customer", operator=spendings, partitions=options.partitions)
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("stateDirectory", options.state)
        .option("checkpoints", Path(options.sink).as_uri())
        .option("checkpointMinState", "0")
        .option("checkpointMinEvery", CHECKPOINTS_EVERY)
        .option("checkpointEvery", CHECKPOINTS_EVERY)
        .start(topic=options.spendings, checkpointLocation=f"{options.checkpoints}/spendings")
    )


STARTS: Final[Mapping[str, Callable[[SparkSession, argparse.Namespace], StreamingQuery | StatefulQuery]]] = {
    "averages": start_averages,
    "spendings": start_spendings,
}


class WatchedQuery:
    """A query that is started, told of, and started again when Spark gave up on one of its own Python processes.

    Spark waits ten seconds for such a process to start, which no setting changes and a busy machine exceeds.
    """

    def __init__(self, name: str, start: Callable[[], StreamingQuery | StatefulQuery]) -> None:
        self.name = name
        self._start = start
        self._starts = 1
        self._last_batch = -1
        self._is_recovery_told = False
        self.query = start()

    def goes_on(self) -> bool:
        """Whether the query runs; starts it again if Spark gave up."""
        if not self.query.isActive and _SPARK_GAVE_UP in str(self.query.exception()) and self._starts < MAX_STARTS:
            self._starts += 1
            self.query = self._start()
        return self.query.isActive

    def tell_progress(self) -> None:
        """Print a line for each batch that has ended since the last call."""
        self._tell_recovery()
        for progress in self.query.recentProgress:
            batch = int(progress["batchId"])
            if batch > self._last_batch:
                self._last_batch = batch
                _say({"query": self.name, "batch": batch, "rows": int(progress["numInputRows"])})

    def _tell_recovery(self) -> None:
        """Print where the state of the first epoch came from."""
        progress = self.query.progress if isinstance(self.query, StatefulQuery) else None
        if progress is None or not progress.how or self._is_recovery_told:
            return
        self._is_recovery_told = True
        figures = ("windows", "checkpoint_bytes", "log_bytes")
        _say({"query": self.name, "how": dict(progress.how), **{name: getattr(progress, name) for name in figures}})


def main() -> int:
    """Run until standard input closes or the query fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "source", "averages", "spendings", "checkpoints", "state", "sink", "batch"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--heap", default="1g")
    options = parser.parse_args()
    orphaned = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        orphaned.set()

    threading.Thread(target=watch, daemon=True).start()
    spark = session(options.heap)
    watched = [WatchedQuery(name, partial(start, spark, options)) for name, start in STARTS.items()]
    _say({"started": True})
    while all(each.goes_on() for each in watched) and not orphaned.is_set():
        for each in watched:
            each.tell_progress()
        orphaned.wait(POLL_S)
    failures = [(each.name, each.query.exception()) for each in watched]
    for name, failure in failures:
        if failure is not None:
            _say({"failed": f"{name}: {failure}"[:2000]})
    return 1 if any(failure for _, failure in failures) else 0


def _say(message: dict[str, object]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    sys.exit(main())
