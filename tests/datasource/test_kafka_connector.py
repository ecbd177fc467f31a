"""Spark's own Kafka source and sink work against a sidecar, unmodified."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from tests.support.spark_session import finish, require_connector

pytestmark = pytest.mark.spark

ROWS = 5000


@pytest.fixture(autouse=True)
def connector() -> None:
    """Leave the tests out, with the reason, where the connector's jars cannot be had."""
    require_connector()


def test_sparks_kafka_sink_and_source_round_trip(spark: SparkSession, address: str, topic: str) -> None:
    """What Spark's own sink writes in a batch, its own source reads back: every row, key and header."""
    rows = spark.range(ROWS).select(
        sf.col("id").cast("string").alias("key"),
        sf.concat(sf.lit("v"), sf.col("id")).alias("value"),
        sf.array(sf.struct(sf.lit("h").alias("key"), sf.lit(b"x").alias("value"))).alias("headers"),
    )
    rows.write.format("kafka").option("kafka.bootstrap.servers", address).option("topic", topic).option(
        "includeHeaders", "true"
    ).save()
    back = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", address)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .load()
    )
    found = back.select(
        sf.col("key").cast("string"), sf.col("value").cast("string"), sf.col("headers")[0]["key"]
    ).collect()
    assert sorted((int(key), value, header) for key, value, header in found) == [
        (number, f"v{number}", "h") for number in range(ROWS)
    ]


def test_a_streaming_query_between_kafka_connectors(
    spark: SparkSession, address: str, topic: str, checkpoint: Path
) -> None:
    """A streaming query with Spark's own source and sink on both sides goes on where its checkpoint says."""
    source, sink = f"{topic}-in", f"{topic}-out"

    def append(first: int) -> None:
        rows = spark.range(first, first + 100).select(sf.col("id").cast("string").alias("value"))
        rows.write.format("kafka").option("kafka.bootstrap.servers", address).option("topic", source).save()

    def run() -> None:
        stream = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", address)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .load()
        )
        finish(
            stream.select("value")
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", address)
            .option("topic", sink)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    append(0)
    run()
    append(100)
    run()
    found = spark.read.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", sink).load()
    assert sorted(int(row.value) for row in found.select(sf.col("value").cast("string")).collect()) == list(range(200))
