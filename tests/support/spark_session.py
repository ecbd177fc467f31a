"""A small Spark for tests: two cores, up to four tries per task, no UI; and the options of its cairn source and
sink.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.harness.jars import KafkaUnavailable, spark_kafka_jars
from tests.support.limits import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


def start_spark(directory: Path, *, daemon: str = "pyspark.daemon") -> SparkSession:
    """A session of this process; `daemon` is what forks its Python workers."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = (
        SparkSession.builder.master("local[2,4]")
        .appName("cairn-tests")
        .config("spark.driver.memory", "512m")
        .config("spark.ui.enabled", "false")
        .config("spark.python.daemon.module", daemon)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.default.parallelism", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(directory))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    )
    # Spark's own connector, for the tests that use it against a sidecar; they are left out where it cannot be had.
    with suppress(KafkaUnavailable):
        builder = builder.config("spark.jars", ",".join(map(str, spark_kafka_jars())))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def require_connector() -> None:
    """Skip the test, with the reason, where the jars of Spark's own Kafka connector cannot be had."""
    try:
        spark_kafka_jars()
    except KafkaUnavailable as reason:
        pytest.skip(str(reason))


def read_batch(spark: SparkSession, address: str, **options: str) -> DataFrame:
    """A batch query's input; `startingOffsets` and the like as they are."""
    return spark.read.format("cairn").option("kafka.bootstrap.servers", address).options(**options).load()


def read_stream(spark: SparkSession, address: str, **options: str) -> DataFrame:
    """A streaming query's input, from the earliest offset unless told otherwise."""
    given = {"startingOffsets": "earliest", **options}
    return spark.readStream.format("cairn").option("kafka.bootstrap.servers", address).options(**given).load()


def write_stream(
    frame: DataFrame, address: str, checkpoint: Path, *, mode: str = "append", **options: str
) -> StreamingQuery:
    """Run a query into the cairn sink until its input, as it is now, is done; raises what the query failed with."""
    query = (
        frame.writeStream.format("cairn")
        .outputMode(mode)
        .option("kafka.bootstrap.servers", address)
        .option("checkpointLocation", str(checkpoint))
        .options(**options)
        .trigger(availableNow=True)
        .start()
    )
    return finish(query)


def finish(query: StreamingQuery) -> StreamingQuery:
    """Wait for a query that ends by itself."""
    try:
        assert query.awaitTermination(PATIENCE_S), f"the query still runs after {PATIENCE_S} s: {query.status}"
    finally:
        query.stop()
    return query


def last_line(error: BaseException) -> str:
    """The message under Python's traceback inside Spark's error."""
    lines = [line for line in str(error).splitlines() if ": " in line and not line.startswith((" ", "\t"))]
    return "\n".join(lines)
