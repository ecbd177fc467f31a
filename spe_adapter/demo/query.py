"""The Spark side of the demonstration, run as a process of its own so that it can be killed.

Prints one JSON line for each finished micro-batch. Ends when its standard input closes, so it never outlives who
started it.
"""

import argparse
import json
import sys
import threading

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from spe_adapter.demo.purchases import WINDOW_MS

WATERMARK = "60 seconds"
"""Far above the disorder of the events and the distance of the partitions from each other, so nothing is ever late."""
POLL_S = 0.2


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


def averages_of(purchases: DataFrame) -> DataFrame:
    """Average price per item and window, as records: key "item", value "window start in ms,item,count,average"."""
    text = sf.col("value").cast("string")
    parsed = purchases.select(
        sf.substring(text, 1, 6).cast("int").alias("item"),
        sf.substring(text, 8, 6).cast("int").alias("price"),
        sf.timestamp_millis(sf.substring(text, 15, 13).cast("long")).alias("time"),
    )
    grouped = (
        parsed.withWatermark("time", WATERMARK)
        .groupBy(sf.window("time", f"{WINDOW_MS} milliseconds"), "item")
        .agg(sf.count("*").alias("count"), sf.avg("price").alias("average"))
    )
    start_ms = sf.unix_millis(sf.col("window.start")).cast("string")
    fields = (start_ms, sf.col("item").cast("string"), sf.col("count").cast("string"), sf.col("average").cast("string"))
    return grouped.select(sf.col("item").cast("string").alias("key"), sf.concat_ws(",", *fields).alias("value"))


def start(spark: SparkSession, options: argparse.Namespace) -> StreamingQuery:
    """Start the query, or go on where its checkpoint says."""
    source = (
        spark.readStream.format("cairn")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("subscribe", options.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", options.batch)
        .load()
    )
    return (
        averages_of(source)
        .writeStream.format("cairn")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("topic", options.sink)
        .option("checkpointLocation", options.checkpoint)
        .outputMode("append")
        .start()
    )


def main() -> int:
    """Run until standard input closes or the query fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "source", "sink", "checkpoint", "batch"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--heap", default="1g")
    options = parser.parse_args()
    orphaned = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        orphaned.set()

    threading.Thread(target=watch, daemon=True).start()
    query = start(session(options.heap), options)
    _say({"started": True})
    last_batch = -1
    while query.isActive and not orphaned.is_set():
        for progress in query.recentProgress:
            batch = int(progress["batchId"])
            if batch > last_batch:
                last_batch = batch
                _say({"batch": batch, "rows": int(progress["numInputRows"])})
        orphaned.wait(POLL_S)
    failure = query.exception()
    if failure is not None:
        _say({"failed": str(failure)[:2000]})
        return 1
    return 0


def _say(message: dict[str, object]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    sys.exit(main())
