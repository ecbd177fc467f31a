"""The source under a real Spark: what a user of Spark's Kafka source relies on."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from spe_adapter.datasource.offsets import BEGAN
from tests.support.limits import PATIENCE_S
from tests.support.sidecar import Sidecar
from tests.support.spark_session import finish, last_line, read_batch, read_stream
from tests.support.streams import create_topic, delete_topic, produce

pytestmark = pytest.mark.spark

# For records with timestamps of the past, which retention would take away at once.
KEEP = {"retention.ms": "-1"}


def numbers(first: int, end: int) -> list[bytes]:
    """Values to produce."""
    return [b"%d" % number for number in range(first, end)]


def trim(address: str, topic: str, before_offset: int) -> None:
    """Delete the records before an offset, as an operator would."""
    admin = AdminClient({"bootstrap.servers": address})
    for result in admin.delete_records([ClientTopicPartition(topic, 0, before_offset)]).values():
        result.result(PATIENCE_S)


def test_columns_are_those_of_sparks_kafka_source(spark: SparkSession, address: str, topic: str) -> None:
    """Names, order, types, nulls, time zone and headers: a query need not change."""
    create_topic(address, topic, partitions=2, config=KEEP)
    produce(address, topic, [b"v"], partition=1, key=b"k", timestamp_ms=1_700_000_000_123, headers=[("h", b"x")])
    produce(address, topic, [b""], partition=0, timestamp_ms=1_700_000_000_456)
    frame = read_batch(spark, address, subscribe=topic, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    without, with_headers = (row.asDict(recursive=True) for row in frame.orderBy("partition").collect())
    assert without["key"] is None
    assert bytes(without["value"]) == b""
    assert without["headers"] is None
    assert (bytes(with_headers["key"]), bytes(with_headers["value"])) == (b"k", b"v")
    assert (with_headers["topic"], with_headers["partition"], with_headers["offset"]) == (topic, 1, 0)
    moment = frame.where("partition = 1").selectExpr("cast(timestamp as double) as t").first()
    assert moment is not None
    assert (
        datetime.fromtimestamp(moment["t"], UTC).isoformat(timespec="milliseconds") == "2023-11-14T22:13:20.123+00:00"
    )
    assert with_headers["timestampType"] == 0
    assert [(header["key"], bytes(header["value"])) for header in with_headers["headers"]] == [("h", b"x")]


def test_ranges_of_a_batch_query(spark: SparkSession, address: str, topic: str) -> None:
    """Offsets, timestamps and their precedence bound what is read; minPartitions splits it."""
    create_topic(address, topic, config=KEEP)
    for step in range(3):
        produce(address, topic, numbers(10 * step, 10 * step + 10), timestamp_ms=1_700_000_000_000 + step * 1000)

    def values(**options: str) -> list[int]:
        rows = read_batch(spark, address, subscribe=topic, **options).collect()
        return sorted(int(bytes(row["value"])) for row in rows)

    assert values() == list(range(30))
    assert values(startingOffsets=json.dumps({topic: {"0": 5}}), endingOffsets=json.dumps({topic: {"0": 12}})) == list(
        range(5, 12)
    )
    assert values(startingTimestamp="1700000001000") == list(range(10, 30))
    assert values(
        startingOffsetsByTimestamp=json.dumps({topic: {"0": 1_700_000_000_500}}), endingTimestamp="1700000002000"
    ) == list(range(10, 20))
    assert values(startingTimestamp="1800000000000", startingOffsetsByTimestampStrategy="latest") == []
    split = read_batch(spark, address, assign=json.dumps({topic: [0]}), minPartitions="3")
    assert split.rdd.getNumPartitions() == 3
    assert split.count() == 30


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({}, "exactly one of the options assign, subscribe, subscribePattern"),
        ({"subscribe": "nosuch"}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ({"subscribe": "t", "startingOffset": "earliest"}, "option 'startingoffset' is not one of"),
        ({"subscribe": "t", "startingOffsets": "latest"}, "allowed in a batch query: earliest, or JSON"),
    ],
)
def test_wrong_options_are_refused_by_name(
    spark: SparkSession, address: str, options: dict[str, str], what: str
) -> None:
    """The error names the option and what is allowed, and comes before any task runs."""
    with pytest.raises(PySparkException) as caught:
        read_batch(spark, address, **options).count()
    assert what in last_line(caught.value)


def test_an_address_where_nobody_listens_is_in_the_error(spark: SparkSession) -> None:
    """A query fails after the stated time, with the address."""
    with pytest.raises(PySparkException) as caught:
        read_batch(spark, "127.0.0.1:1", subscribe="t", **{"kafka.default.api.timeout.ms": "200"}).count()
    assert "no answer from 127.0.0.1:1 within 0.2 s" in last_line(caught.value)


def test_available_now_in_limited_steps(spark: SparkSession, address: str, topic: str, checkpoint: Path) -> None:
    """maxOffsetsPerTrigger bounds each micro-batch over all partitions; the query ends where the streams ended at its
    start.

    The progress has offsets as Spark's Kafka source writes them, the first with where the query began, and how far the
    streams reach.
    """
    create_topic(address, topic, partitions=2)
    produce(address, topic, numbers(0, 60), partition=0)
    produce(address, topic, numbers(60, 90), partition=1)
    frame = read_stream(spark, address, subscribePattern=f"{topic[:-1]}.", maxOffsetsPerTrigger="30")
    query = finish(
        frame.writeStream.format("memory")
        .queryName("limited")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    progress = [step for step in query.recentProgress if step["numInputRows"]]
    assert [step["numInputRows"] for step in progress] == [30, 30, 30]
    first, second = (json.loads(step["sources"][0]["endOffset"]) for step in progress[:2])
    assert first == {BEGAN: {f"{topic}-0": 0, f"{topic}-1": 0}, topic: {"0": 20, "1": 10}}
    assert second == {topic: {"0": 40, "1": 20}}
    assert json.loads(progress[0]["sources"][0]["latestOffset"]) == {topic: {"0": 60, "1": 30}}
    rows = spark.table("limited").selectExpr("cast(cast(value as string) as int) as n").collect()
    assert sorted(row["n"] for row in rows) == list(range(90))


def test_a_running_query_sees_new_records_partitions_and_topics(
    spark: SparkSession, address: str, topic: str, checkpoint: Path
) -> None:
    """What is added while a query runs is found at the next trigger and read from its beginning."""
    create_topic(address, f"{topic}-a")
    query = (
        read_stream(spark, address, subscribePattern=f"{topic}-.*", startingOffsets="latest")
        .writeStream.format("memory")
        .queryName("growing")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )

    def seen() -> list[int]:
        query.processAllAvailable()
        rows = spark.table("growing").selectExpr("cast(cast(value as string) as int) as n").collect()
        return sorted(row["n"] for row in rows)

    try:
        assert seen() == []
        produce(address, f"{topic}-a", numbers(0, 5))
        assert seen() == list(range(5))
        admin = AdminClient({"bootstrap.servers": address})
        grown = admin.create_partitions([NewPartitions(f"{topic}-a", 2)])
        grown[f"{topic}-a"].result(PATIENCE_S)
        produce(address, f"{topic}-a", numbers(5, 8), partition=1)
        assert seen() == list(range(8))
        create_topic(address, f"{topic}-b")
        produce(address, f"{topic}-b", numbers(8, 10))
        assert seen() == list(range(10))
    finally:
        query.stop()


def test_few_new_records_wait_for_more(spark: SparkSession, address: str, topic: str, checkpoint: Path) -> None:
    """minOffsetsPerTrigger holds a micro-batch back, but not the first, and not beyond maxTriggerDelay."""
    create_topic(address, topic)
    produce(address, topic, numbers(0, 5))
    query = (
        read_stream(spark, address, subscribe=topic, minOffsetsPerTrigger="50", maxTriggerDelay="1h")
        .writeStream.format("memory")
        .queryName("patient")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    try:
        query.processAllAvailable()
        assert spark.table("patient").count() == 5
        produce(address, topic, numbers(5, 10))
        query.processAllAvailable()
        assert spark.table("patient").count() == 5
        produce(address, topic, numbers(10, 60))
        query.processAllAvailable()
        assert spark.table("patient").count() == 60
    finally:
        query.stop()


def test_trimmed_records_are_an_error_or_left_out_as_asked(spark: SparkSession, address: str, topic: str) -> None:
    """A start below what is still there: failOnDataLoss decides, and the error names the offsets."""
    create_topic(address, topic)
    produce(address, topic, numbers(0, 20))
    trim(address, topic, 8)
    start = json.dumps({topic: {"0": 3}})
    with pytest.raises(PySparkException) as caught:
        read_batch(spark, address, subscribe=topic, startingOffsets=start).count()
    assert f"{topic}-0 starts at offset 8; records from 3 to 7 are gone" in str(caught.value)
    assert "'failOnDataLoss'" in str(caught.value)
    rows = read_batch(spark, address, subscribe=topic, startingOffsets=start, failOnDataLoss="false").collect()
    assert sorted(row["offset"] for row in rows) == list(range(8, 20))


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_made_anew_is_noticed(
    spark: SparkSession, address: str, topic: str, checkpoint: Path, fail: str
) -> None:
    """A stream that ends below where the query stands lost its records: an error, or the query goes on, as asked."""

    def run() -> int:
        name = f"anew_{fail}"
        frame = read_stream(spark, address, subscribe=topic, failOnDataLoss=fail)
        finish(
            frame.writeStream.format("noop")
            .queryName(name)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        return 0

    create_topic(address, topic)
    produce(address, topic, numbers(0, 20))
    run()
    delete_topic(address, topic)
    create_topic(address, topic)
    produce(address, topic, numbers(0, 5))
    if fail == "true":
        with pytest.raises(StreamingQueryException) as caught:
            run()
        assert f"{topic}-0 ends at offset 5, below 20 where this query stands" in str(caught.value)
    else:
        run()


def test_a_query_outlives_a_restart_of_the_sidecar(spark: SparkSession, tmp_path: Path, checkpoint: Path) -> None:
    """While the sidecar is away the query waits; when it is back the query goes on where it was."""
    with Sidecar(tmp_path / "data") as own:
        create_topic(own.address, "t")
        produce(own.address, "t", numbers(0, 10))
        query = (
            read_stream(spark, own.address, subscribe="t")
            .writeStream.format("memory")
            .queryName("patience")
            .option("checkpointLocation", str(checkpoint))
            .start()
        )
        try:
            query.processAllAvailable()
            own.kill()
            own.restart()
            produce(own.address, "t", numbers(10, 20))
            query.processAllAvailable()
            rows = spark.table("patience").selectExpr("cast(cast(value as string) as int) as n").collect()
            assert sorted(row["n"] for row in rows) == list(range(20))
        finally:
            query.stop()
